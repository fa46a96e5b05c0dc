"""The role ``firewall`` on hosts with another firewall: ufw, firewalld, chains of their own."""

from __future__ import annotations

import re

import pytest

from tests.support.firewall_role import LISTEN, connect, run, tables
from tests.support.set_up_role import shell, systemd_hosts
from tests.support.testbed import Testbed

pytestmark = pytest.mark.docker
INSTALL = "apt-get -q update && apt-get -qy install --no-install-recommends"
UFW = f"{INSTALL} ufw nftables && ufw allow 22/tcp && ufw --force enable"
OWN = (
    "table inet own { chain in { type filter hook input priority 0; policy drop; iif lo accept;"
    " ct state established,related accept; tcp dport 22 accept; }; }"
)


made = systemd_hosts(2, stranger=True)


@pytest.fixture(scope="module", name="bed")
def firewalls(made: Testbed) -> Testbed:
    """host-0 has ufw, host-1 firewalld, both as their packages set them up."""
    for number, command in enumerate((UFW, f"{INSTALL} firewalld netbase nftables")):
        shell(made, f"{command} && {LISTEN}", number, check=True)
    return made


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


def assert_open(bed: Testbed) -> None:
    done = run(bed)
    assert (remedies(done.output), done.changes) == ({}, [0, 0]), done.shown
    assert reached(bed) == [True, True, False, False]


def test_ufw_and_firewalld_are_opened_with_the_commands_of_the_warnings(bed: Testbed) -> None:
    found = remedies(run(bed).checked().output)
    assert sorted(found) == ["firewalld", "ufw"]
    assert found["ufw"].startswith("ufw allow from ")
    assert found["firewalld"].startswith("firewall-cmd --permanent --zone=trusted --add-source=")
    assert reached(bed) == [False] * 4
    assert remedies(run(bed).output) == found, "the warning stays until the ports are open"
    shell(bed, found["ufw"], 0, check=True)
    shell(bed, found["firewalld"], 1, check=True)
    assert_open(bed)


def test_the_rules_outlast_reloads_of_the_other_firewall(bed: Testbed) -> None:
    before = tables(bed)
    shell(
        bed,
        "ufw reload && ufw disable && ufw --force enable && systemctl restart ufw",
        0,
        check=True,
    )
    shell(bed, "firewall-cmd --complete-reload && systemctl restart firewalld", 1, check=True)
    assert tables(bed) == before
    assert reached(bed) == [True, True, False, False]


def test_chains_of_the_operators_own(bed: Testbed) -> None:
    """An nftables chain on host-1, the policy of iptables on host-0."""
    policy = "iptables -A INPUT -p tcp --dport 22 -j ACCEPT; iptables -P INPUT DROP"
    keep = "iptables -I INPUT -m state --state ESTABLISHED -j ACCEPT"
    shell(bed, f"ufw disable; {policy}; {keep}", 0, check=True)
    shell(bed, f"systemctl stop firewalld; echo '{OWN}' | nft -f -", 1, check=True)
    found = remedies(run(bed).output)
    ours, theirs = "The chain INPUT of the table ip filter", "The chain in of the table inet own"
    assert sorted(found) == [ours, theirs]
    assert reached(bed) == [False] * 4
    for number, name in enumerate((ours, theirs)):
        shell(bed, found[name].partition(" (and")[0], number, check=True)
    assert_open(bed)
