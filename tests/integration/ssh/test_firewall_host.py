"""The role ``firewall`` on hosts of two Debian releases, from the playbook of somebody else."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.support.firewall_role import LISTEN, connect, counts, play, root, tables
from tests.support.testbed import (
    BOOKWORM,
    TRIXIE,
    Testbed,
    docker,
    docker_available,
    running_testbed,
    start,
)

pytestmark = pytest.mark.docker
FOLDER = "/etc/train-firewall"
RULES = f"{FOLDER}/rules.nft"
UNITS = "/etc/systemd/system"


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    if not docker_available():
        pytest.skip("no Docker engine answers")
    folder = tmp_path_factory.mktemp("firewall") / "bed"
    bases = (BOOKWORM, TRIXIE)
    with running_testbed(2, folder, bases=bases, systemd=True, stranger=True) as bed:
        for host in bed.hosts:
            bed.exec(host, *LISTEN.split(), user="root")
        yield bed


def test_check_mode_on_fresh_hosts_shows_the_rules_and_changes_nothing(bed: Testbed) -> None:
    shown = play(bed, "--check", "--diff")
    assert counts(shown, "failed") == [0, 0], shown
    for line in ("+\t\t\t12345", "+\tset members4 {", "+ExecStart=", "- nftables is not installed"):
        assert line in shown
    for number in (0, 1):
        assert root(bed, number, f"ls /usr/sbin/nft {FOLDER} {UNITS}/train* || true") == ""


def test_missing_and_wrong_arguments_are_refused(bed: Testbed) -> None:
    shown = play(bed, firewall_members=None, firewall_ports=None)
    assert "missing required arguments: firewall_members, firewall_ports" in shown
    assert "port '7-3': use a number from 1 to 65535" in play(bed, firewall_ports=["7-3"])
    assert "cannot resolve no..host: give it an" in play(bed, firewall_members=[["no..host"]])


def test_members_connect_and_strangers_do_not(bed: Testbed) -> None:
    first = play(bed)
    assert counts(first, "failed") == [0, 0], first
    assert all(counts(first))
    assert counts(play(bed)) == [0, 0]
    one, two = bed.hosts
    assert bed.stranger
    for source, target in ((one, two), (two, one), (one, one)):
        assert connect(bed, source, target) == ""
    for target in bed.hosts:
        assert "Connection refused" in connect(bed, bed.stranger, target)
        assert connect(bed, bed.stranger, target, 22) == ""
    docker("restart", "-t", "20", two.container)
    start.wait_for_systemd(two)
    root(bed, 1, LISTEN)
    assert "Connection refused" in connect(bed, bed.stranger, two)


@pytest.mark.parametrize(
    "damages",
    [
        ("nft delete table inet train", "nft add rule inet train input accept"),
        (f"sed -i s/12345/1/ {RULES}", "rm /etc/train-firewall/listed.nft"),
        (f"rm {UNITS}/train-firewall.service", "systemctl disable train-firewall"),
    ],
)
def test_damage_is_seen_and_repaired(bed: Testbed, damages: tuple[str, str]) -> None:
    before = tables(bed)
    for number, command in enumerate(damages):
        root(bed, number, command)
    shown = play(bed)
    assert all(counts(shown)), shown
    assert tables(bed) == before
    for number in (0, 1):
        asked = f"grep -c 12345 {RULES}; systemctl is-enabled train-firewall"
        assert root(bed, number, asked).split() == ["1", "enabled"]


def test_rules_that_lock_ansible_out_are_taken_back_and_others_are_kept(bed: Testbed) -> None:
    before = tables(bed)[0]
    ports = "{{ ['22'] if inventory_hostname == 'host-0' else ['23456'] }}"
    shown = play(bed, firewall_protected_ports=ports, firewall_confirm_timeout=30)
    assert counts(shown, "failed") == [1, 0], shown
    assert "The new rules were taken back after 30 s" in shown
    assert "Connection refused. Take the port of SSH out of" in shown
    assert tables(bed)[0] == before
    assert root(bed, 0, "ls /etc/train-firewall").split() == ["listed.nft", "rules.nft"]
    assert "23456" in tables(bed)[1]
    assert counts(play(bed)) == [0, 2]


def test_rules_of_a_run_that_ends_too_early_are_taken_back(bed: Testbed) -> None:
    before = tables(bed)
    play(bed, module={"members": [["192.0.2.1"]], "ports": [777], "confirm_timeout": 20})
    loaded = time.monotonic()
    assert all("777" in listed for listed in tables(bed))
    # The next run on one host keeps its own rules; on the other, the timer takes the rules back.
    again = play(bed, "--limit", "host-0")
    assert counts(again, "failed") == [0], again
    time.sleep(max(0, loaded + 22 - time.monotonic()))
    assert tables(bed) == before
    late = play(bed, module={"state": "confirmed", "token": "0"})
    assert (counts(late, "failed"), "the new rules were taken back" in late) == ([1, 1], True), late


def test_removal_leaves_nothing(bed: Testbed) -> None:
    assert all(counts(play(bed, "--check", part="remove")))
    assert tables(bed)[0]
    shown = play(bed, part="remove")
    assert counts(shown, "failed") == [0, 0], shown
    assert counts(play(bed, part="remove")) == [0, 0]
    assert tables(bed) == ["", ""]
    for number in (0, 1):
        assert root(bed, number, f"find {UNITS} {FOLDER} -name '*train-firewall*' || true") == ""
