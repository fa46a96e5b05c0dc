"""The role ``firewall`` on two Debian releases, by itself and alongside another firewall.

molecule/default tests a second run and the removal.
"""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from tests.support.set_up_role import (
    REFUSED,
    Play,
    on_each,
    play,
    role_task,
    run_tasks,
    shell,
    systemd_hosts,
)
from tests.support.testbed import BOOKWORM, TRIXIE, Host, Testbed, docker, wait_for_systemd

pytestmark = pytest.mark.docker
RULES = "/etc/train-firewall/rules.nft"
UNITS = "/etc/systemd/system"
#: Waits until the port is open: 3039 is 12345.
LISTEN = (
    "systemd-run --quiet --collect --unit=rank python3 -m http.server 12345"
    " && until cat /proc/net/tcp* | grep -q :3039; do sleep 0.1; done"
)

bed = systemd_hosts(2, bases=(BOOKWORM, TRIXIE), stranger=True)


def given(bed: Testbed) -> dict[str, Any]:
    members = [[host.name, host.address] for host in bed.hosts]
    return {"firewall_members": members, "firewall_ports": [12345]}


def run(bed: Testbed, *options: str, entry: str = "main") -> Play:
    return play("firewall", bed, *options, entry=entry, **given(bed))


def tables(bed: Testbed) -> list[str]:
    """Return the role's table on each host, or an empty text if there is none."""
    return on_each(bed, "nft --stateless list table inet train")


def connect(bed: Testbed, source: Host, target: Host) -> str:
    """Connect from one host to another; return the error, if any."""
    code = f"import socket; socket.create_connection(({target.address!r}, 12345), 1)"
    done = bed.exec(source, "python3", "-c", code, check=False)
    return done.stderr.strip().rpartition("\n")[2]


def module(**options: Any) -> dict[str, Any]:
    return {"tensorflow_ansible.cluster.firewall": options, "become": True}


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


@pytest.mark.parametrize(
    "damages",
    [
        (
            f"nft delete table inet train && rm {UNITS}/train-firewall.service",
            "nft add rule inet train input accept && systemctl disable train-firewall",
        ),
        pytest.param(
            (f"sed -i s/12345/1/ {RULES}", "rm /etc/train-firewall/listed.nft"),
            marks=pytest.mark.soak,
        ),
    ],
)
def test_damage_is_seen_and_repaired(bed: Testbed, damages: tuple[str, str]) -> None:
    run(bed).checked()
    before = tables(bed)
    for number, command in enumerate(damages):
        shell(bed, command, number, check=True)
    repaired = run(bed)
    assert all(repaired.changes), repaired.shown
    assert tables(bed) == before
    asked = f"grep -c 12345 {RULES}; systemctl is-enabled train-firewall"
    assert on_each(bed, asked) == 2 * ["1\nenabled\n"]


def test_rules_that_are_not_confirmed_are_taken_back(bed: Testbed) -> None:
    before = tables(bed)
    # A run that ends too early.
    run_tasks(bed, [module(members=[["192.0.2.1"]], ports=[777], confirm_timeout=20)])
    loaded = time.monotonic()
    assert all("777" in listed for listed in tables(bed))
    # On host-0, the next run restores the rules. On the other host, the timer reverts to them.
    run(bed, "--limit", "host-0").checked()
    time.sleep(max(0, loaded + 22 - time.monotonic()))
    assert tables(bed) == before
    # Rules that lock Ansible out, and a run that confirms too late.
    wrong: dict[str, Any] = {"firewall_protected_ports": ["22"], "firewall_confirm_timeout": 5}
    lock_out = role_task("firewall", **given(bed), **wrong)
    late = module(state="confirmed", token="0")
    done = run_tasks(bed, [{"block": [lock_out], "rescue": [REFUSED]}, late])
    assert tables(bed) == before
    first, _, second = done.shown.partition(REFUSED["name"])
    assert first.count("The new rules were reverted after 5 s") >= 2, done.shown
    assert "Remove the SSH port from" in first
    assert second.count("the new rules were reverted") >= 2, done.shown
    assert [row["failed"] for row in done.counts.values()] == [1, 1]


def test_the_removal_is_shown_before(bed: Testbed) -> None:
    assert all(run(bed, "--check", entry="remove").changes)
    assert all(tables(bed))


# Alongside another firewall.

INSTALL = "apt-get -q update && apt-get -qy install --no-install-recommends"
UFW = f"{INSTALL} ufw nftables && ufw allow 22/tcp && ufw --force enable"
OWN = (
    "table inet own { chain in { type filter hook input priority 0; policy drop; iif lo accept;"
    " ct state established,related accept; tcp dport 22 accept; }; }"
)


def remedies(shown: str) -> dict[str, str]:
    """Return the commands of the warnings, by the firewall's name."""
    pattern = r"WARNING\]: (.+?) blocks connections from .* permanently, run on the host: (.*)"
    return dict(re.findall(pattern, shown))


def reached(bed: Testbed) -> list[bool]:
    """Return whether the other host and the stranger can reach each host."""
    one, two = bed.hosts
    assert bed.stranger
    ways = ((two, one), (one, two), (bed.stranger, one), (bed.stranger, two))
    return [connect(bed, *way) == "" for way in ways]


def assert_open(bed: Testbed) -> None:
    done = run(bed)
    assert (remedies(done.output), done.changes) == ({}, [0, 0]), done.shown
    assert reached(bed) == [True, True, False, False]


@pytest.mark.soak
def test_ufw_and_firewalld_are_opened_with_the_commands_of_the_warnings(bed: Testbed) -> None:
    for number, command in enumerate((UFW, f"{INSTALL} firewalld netbase nftables")):
        shell(bed, f"systemctl stop rank; {command} && {LISTEN}", number, check=True)
    found = remedies(run(bed).checked().output)
    assert sorted(found) == ["firewalld", "ufw"]
    assert found["ufw"].startswith("sudo ufw allow from ")
    firewalld = "sudo firewall-cmd --permanent --zone=trusted --add-source="
    assert found["firewalld"].startswith(firewalld)
    assert reached(bed) == [False] * 4
    shell(bed, found["ufw"], 0, check=True)
    shell(bed, found["firewalld"], 1, check=True)
    assert_open(bed)


@pytest.mark.soak
def test_the_rules_outlast_reloads_of_the_other_firewall(bed: Testbed) -> None:
    before = tables(bed)
    ufw = "ufw reload && ufw disable && ufw --force enable && systemctl restart ufw"
    shell(bed, ufw, 0, check=True)
    shell(bed, "firewall-cmd --complete-reload && systemctl restart firewalld", 1, check=True)
    assert tables(bed) == before
    assert reached(bed) == [True, True, False, False]


@pytest.mark.soak
def test_chains_of_the_operators_own(bed: Testbed) -> None:
    """host-1 has an nftables chain, and host-0 an iptables policy."""
    policy = "iptables -A INPUT -p tcp --dport 22 -j ACCEPT; iptables -P INPUT DROP"
    keep = "iptables -I INPUT -m state --state ESTABLISHED -j ACCEPT"
    shell(bed, f"ufw disable; {policy}; {keep}", 0, check=True)
    shell(bed, f"systemctl stop firewalld; echo '{OWN}' | nft -f -", 1, check=True)
    done = run(bed)
    found = remedies(done.output)
    assert done.changes == [0, 0]
    ours, theirs = "The chain INPUT of the table ip filter", "The chain in of the table inet own"
    assert sorted(found) == [ours, theirs]
    assert reached(bed) == [False] * 4
    for number, name in enumerate((ours, theirs)):
        shell(bed, found[name].partition(" (and")[0], number, check=True)
    assert_open(bed)


@pytest.mark.soak
def test_the_rules_outlast_the_service_that_flushes_all_rules(bed: Testbed) -> None:
    """This is the last test, because Docker's rules for resolving names are flushed as well."""
    assert bed.stranger
    for verb in ("start", "reload", "restart", "stop"):
        shell(bed, f"systemctl {verb} nftables", 1, check=True)
    assert "Connection refused" in connect(bed, bed.stranger, bed.hosts[1])
