"""The role ``firewall`` on hosts of two Debian releases, from the playbook of somebody else.

Who may connect, and that rules which lock Ansible out are taken back: molecule/cluster/verify.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.support.firewall_role import LISTEN, connect, run, tables
from tests.support.set_up_role import Play, play, run_tasks, shell, systemd_hosts
from tests.support.testbed import BOOKWORM, TRIXIE, Testbed, docker, wait_for_systemd

pytestmark = pytest.mark.docker
RULES = "/etc/train-firewall/rules.nft"
UNITS = "/etc/systemd/system"

bed = systemd_hosts(2, bases=(BOOKWORM, TRIXIE), stranger=True)


def module(bed: Testbed, **given: Any) -> Play:
    """Run the role's module by itself."""
    library = {"ansible.builtin.import_role": {"name": "firewall"}, "when": False}
    tasks = [library, {"firewall": given, "become": True}]
    return run_tasks(bed, tasks)


def test_the_rules_are_shown_before_and_hold_after_a_restart(bed: Testbed) -> None:
    shown = run(bed, "--check", "--diff").checked().output
    for line in ("+\t\t\t12345", "+\tset members4 {", "+ExecStart=", "- nftables is not installed"):
        assert line in shown
    assert all(run(bed).checked().changes)
    one, two = bed.hosts
    docker("restart", "-t", "20", two.container)
    wait_for_systemd(two)
    shell(bed, LISTEN, 1, check=True)
    assert bed.stranger
    assert connect(bed, one, two) == ""
    assert "Connection refused" in connect(bed, bed.stranger, two)


def test_missing_and_wrong_arguments_are_refused(bed: Testbed) -> None:
    missing = "missing required arguments: firewall_members, firewall_ports"
    assert missing in play(bed, "firewall").shown
    assert "port '7-3': use a number from 1 to 65535" in run(bed, firewall_ports=["7-3"]).shown
    assert "cannot resolve no..host: give it an" in run(bed, firewall_members=[["no..host"]]).shown


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
        shell(bed, command, number, check=True)
    repaired = run(bed)
    assert all(repaired.changes), repaired.shown
    assert tables(bed) == before
    for number in (0, 1):
        asked = f"grep -c 12345 {RULES}; systemctl is-enabled train-firewall"
        assert shell(bed, asked, number).split() == ["1", "enabled"]


def test_rules_of_a_run_that_ends_too_early_are_taken_back(bed: Testbed) -> None:
    before = tables(bed)
    module(bed, members=[["192.0.2.1"]], ports=[777], confirm_timeout=20)
    loaded = time.monotonic()
    assert all("777" in listed for listed in tables(bed))
    # The next run on one host keeps its own rules; on the other, the timer takes the rules back.
    run(bed, "--limit", "host-0").checked()
    time.sleep(max(0, loaded + 22 - time.monotonic()))
    assert tables(bed) == before
    late = module(bed, state="confirmed", token="0")
    assert late.shown.count("the new rules were taken back") >= 2, late.shown
    assert [row["failed"] for row in late.counts.values()] == [1, 1]


def test_removal_leaves_nothing(bed: Testbed) -> None:
    assert all(run(bed, "--check", entry="remove").changes)
    assert tables(bed)[0]
    run(bed, entry="remove").checked()
    assert run(bed, entry="remove").changed == 0
    assert tables(bed) == ["", ""]
    for number in (0, 1):
        left = f"find {UNITS} /etc/train-firewall -name '*train-firewall*'"
        assert shell(bed, left, number) == ""
