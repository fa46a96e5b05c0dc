"""The role ``firewall`` on hosts with another firewall: ufw, firewalld, chains of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.support.firewall_role import LISTEN, connect, counts, play, root, tables
from tests.support.testbed import Testbed, docker_available, running_testbed

pytestmark = pytest.mark.docker
INSTALL = "apt-get -q update && apt-get -qy install --no-install-recommends"
UFW = f"{INSTALL} ufw nftables && ufw allow 22/tcp && ufw --force enable"
OWN = (
    "table inet own { chain in { type filter hook input priority 0; policy drop; iif lo accept;"
    " ct state established,related accept; tcp dport 22 accept; }; }"
)


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """host-0 has ufw, host-1 firewalld, both as their packages set them up."""
    if not docker_available():
        pytest.skip("no Docker engine answers")
    folder = tmp_path_factory.mktemp("alongside") / "bed"
    with running_testbed(2, folder, systemd=True, stranger=True) as bed:
        for number, command in enumerate((UFW, f"{INSTALL} firewalld netbase nftables")):
            root(bed, number, f"{command} && {LISTEN}")
        yield bed


def remedies(shown: str) -> dict[str, str]:
    """Return the commands of the warnings, by the firewall's name."""
    pattern = r"WARNING\]: (.+?) closes the ports 12345 of .* in there, permanently: (.*)"
    return dict(re.findall(pattern, shown))


def reached(bed: Testbed) -> list[bool]:
    """Return whether each host can be reached by the other one, and by the stranger."""
    one, two = bed.hosts
    assert bed.stranger
    ways = ((two, one), (one, two), (bed.stranger, one), (bed.stranger, two))
    return [connect(bed, *way) == "" for way in ways]


def test_ufw_and_firewalld_are_opened_with_the_commands_of_the_warnings(bed: Testbed) -> None:
    shown = play(bed)
    assert counts(shown, "failed") == [0, 0], shown
    found = remedies(shown)
    assert sorted(found) == ["firewalld", "ufw"], shown
    assert found["ufw"].startswith("ufw allow from ")
    assert found["firewalld"].startswith("firewall-cmd --permanent --zone=trusted --add-source=")
    assert reached(bed) == [False] * 4
    assert remedies(play(bed)) == found, "the warning stays until the ports are open"
    root(bed, 0, found["ufw"])
    root(bed, 1, found["firewalld"])
    shown = play(bed)
    assert (remedies(shown), counts(shown)) == ({}, [0, 0]), shown
    assert reached(bed) == [True, True, False, False]


def test_the_rules_outlast_reloads_of_the_other_firewall(bed: Testbed) -> None:
    before = tables(bed)
    root(bed, 0, "ufw reload && ufw disable && ufw --force enable && systemctl restart ufw")
    root(bed, 1, "firewall-cmd --complete-reload && systemctl restart firewalld")
    assert tables(bed) == before
    assert reached(bed) == [True, True, False, False]


def test_chains_of_the_operators_own(bed: Testbed) -> None:
    """An nftables chain on host-1, the policy of iptables on host-0."""
    root(
        bed, 0, "ufw disable; iptables -A INPUT -p tcp --dport 22 -j ACCEPT; iptables -P INPUT DROP"
    )
    root(bed, 0, "iptables -I INPUT -m state --state ESTABLISHED -j ACCEPT")
    root(bed, 1, f"systemctl stop firewalld; echo '{OWN}' | nft -f -")
    found = remedies(play(bed))
    ours, theirs = "The chain INPUT of the table ip filter", "The chain in of the table inet own"
    assert sorted(found) == [ours, theirs]
    assert reached(bed) == [False] * 4
    for number, name in enumerate((ours, theirs)):
        root(bed, number, found[name].partition(" (and")[0])
    shown = play(bed)
    assert (remedies(shown), counts(shown)) == ({}, [0, 0]), shown
    assert reached(bed) == [True, True, False, False]
