"""The role ``clock_sync`` on hosts with systemd that may not set their clock.

molecule/default tests sources, clients, check mode, a second run and the removal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from tests.support.lab import ansible_playbook
from tests.support.set_up_role import (
    REFUSED,
    assert_refused,
    on_each,
    play,
    role_task,
    run_tasks,
    shell,
    systemd_hosts,
)
from tests.support.testbed import Testbed

pytestmark = pytest.mark.docker
OWN = "/etc/chrony/conf.d/train.conf"
SOURCES = "/etc/apt/sources.list"
#: The state of another time daemon.
NTPD = "systemctl is-active ntpd; systemctl is-enabled ntpd"
#: An NTP server whose clock is 5 s ahead.
NTP_SERVER = """
import socket, struct, time
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("", 123))
while True:
    asked, address = server.recvfrom(512)
    now = int((time.time() + 2208988800 + 5) * 2**32)
    head = struct.pack("!BBbbII4sQ", 0x24, 1, 6, -20, 0, 0, b"TEST", now)
    server.sendto(head + asked[40:48] + struct.pack("!QQ", now, now), address)
"""

bed = systemd_hosts(2)
run = partial(play, "clock_sync")


def cluster(bed: Testbed) -> dict[str, Any]:
    """Return the variables of a cluster whose source is its first host, with a name to resolve."""
    addresses = {host.name: host.address for host in bed.hosts}
    return {"clock_sync_source": "host-0", "clock_sync_addresses": {**addresses, "me": "host-0"}}


def start_ntpd(bed: Testbed) -> None:
    """Run another time daemon on the last host."""
    unit = "[Service]\\nExecStart=/bin/sleep 9999\\n[Install]\\nWantedBy=multi-user.target\\n"
    ntpd = "/etc/systemd/system/ntpd.service; systemctl enable --now ntpd"
    shell(bed, f"printf '{unit}' > {ntpd}", 1, check=True)


def assert_refused_as_too_old(bed: Testbed) -> None:
    done = run(bed, "--limit", "host-1")
    assert done.code == 2
    assert "chrony 3.5 of Debian 12" in done.shown, done.output
    assert "is too old, because the role clock_sync needs 4.0 or newer: upgrade" in done.shown
    assert shell(bed, NTPD, 1).split() == ["active", "enabled"]
    assert shell(bed, f"ls {OWN}; grep -c clock_sync /etc/chrony/chrony.conf", 1) in ("", "0\n")


def test_an_old_chrony_is_refused_and_another_time_daemon_kept(bed: Testbed) -> None:
    start_ntpd(bed)
    package = "Package: chrony\\nVersion: 3.5-6ubuntu6.2\\nArchitecture: all\\nSize: 9\\n"
    package += f"Filename: ./chrony.deb\\nSHA256: {'0' * 64}\\n"
    old = f"mkdir /old; printf '{package}' > /old/Packages; mv {SOURCES} {SOURCES}.d/none"
    old += f"; echo 'deb [trusted=yes] file:/old ./' > {SOURCES}; apt-get update"
    needed = "apt-get update; apt-get install --yes python3-apt"
    shell(bed, f"{needed} && {old}", 1, check=True)
    assert_refused_as_too_old(bed)

    shell(bed, f"mv {SOURCES}.d/none {SOURCES}; rm -r /old; apt-get update", 1, check=True)
    daemon = "/usr/sbin/chronyd"
    installed = f"echo 'echo \"chronyd (chrony) version 3.5 (+CMDMON)\"' > {daemon}"
    installed += f"; chmod 755 {daemon}; mkdir /etc/chrony; echo pool x > /etc/chrony/chrony.conf"
    shell(bed, installed, 1, check=True)
    assert_refused_as_too_old(bed)
    shell(bed, f"rm -r {daemon} /etc/chrony", 1, check=True)


def test_a_time_daemon_is_kept_if_chrony_cannot_be_installed(bed: Testbed) -> None:
    start_ntpd(bed)
    # The package chrony removes this one.
    shell(bed, "apt-get update; apt-get install --yes systemd-timesyncd", 1, check=True)
    shell(bed, f"mv {SOURCES} {SOURCES}.d/none", 1, check=True)
    done = run(bed, "--limit", "host-1").checked()
    assert "Warning: chrony could not be installed (" in done.shown
    assert shell(bed, NTPD, 1).split() == ["active", "enabled"]
    assert shell(bed, "systemctl is-enabled systemd-timesyncd", 1) == "enabled\n"
    shell(bed, f"mv {SOURCES}.d/none {SOURCES}", 1, check=True)
    run(bed, "--limit", "host-1", clock_sync_max_skew=0).checked()
    assert shell(bed, NTPD, 1).split() == ["inactive", "disabled"]


def test_a_cluster_with_a_source_of_its_own(bed: Testbed) -> None:
    start_ntpd(bed)
    run(bed, **cluster(bed)).checked()
    # The source keeps the distribution's sources, because it may reach them.
    pools = "grep -c '^pool' /etc/chrony/chrony.conf"
    assert on_each(bed, pools) == ["1\n", "0\n"]
    states = "systemctl is-active ntpd chrony; systemctl is-enabled ntpd chrony"
    assert shell(bed, states, 1).split() == ["inactive", "active", "disabled", "enabled"]
    assert "chronyd" in shell(bed, "ps -e -o args | grep 'chronyd.* -x$'", 1)


@pytest.mark.soak
def test_what_was_changed_by_hand_or_cut_off_is_put_right(bed: Testbed) -> None:
    run(bed, **cluster(bed)).checked()
    process = "systemctl show --value --property=MainPID chrony"
    before = shell(bed, process)
    shell(bed, f"touch {OWN}")  # interrupted before chrony was restarted
    pool = "echo 'pool ntp.example.org' >> /etc/chrony/chrony.conf"
    shell(bed, f"systemctl disable --now chrony; {pool}", 1)
    run(bed, **cluster(bed)).checked()
    assert shell(bed, process) != before
    assert "#clock_sync# pool ntp.example.org" in shell(bed, "cat /etc/chrony/chrony.conf", 1)
    assert "ntp.example.org" not in shell(bed, "chronyc -N sources", 1)
    assert shell(bed, "systemctl is-enabled chrony", 1) == "enabled\n"


@pytest.mark.soak
def test_a_wrong_clock_is_named(bed: Testbed) -> None:
    on_each(bed, "systemctl stop chrony")  # after a restart, chrony asks at once
    bed.exec("host-0", "systemd-run", "--unit=ntp", "python3", "-c", NTP_SERVER, user="root")
    server = bed.hosts[0].address
    ahead: dict[str, Any] = {"clock_sync_servers": [server]}
    tasks = [
        {"block": [role_task("clock_sync", **ahead)], "rescue": [REFUSED]},
        role_task("clock_sync", **ahead, clock_sync_max_skew=6),
        role_task("clock_sync", clock_sync_servers=["192.0.2.1"], clock_sync_max_skew=0),
    ]
    done = run_tasks(bed, tasks, "--limit", "host-1").checked()
    assert done.shown.count(REFUSED["name"]) == 1, done.shown
    for part in (
        "The clock of this host is 5.0",
        f"s behind its source {server}, but clock_sync_max_skew allows only 0.5 s",
        "this host may not set its clock (no CAP_SYS_TIME): set the clock of its machine",
    ):
        assert part in done.shown


@contextmanager
def shifted_clock(bed: Testbed, seconds: float) -> Iterator[None]:
    """Set ``date`` on the last host ahead, because containers use the clock of their machine."""
    script = f"#!/bin/sh\nexec /bin/date --date='{seconds} seconds' \"$@\"\n"
    date = bed.exec("host-1", "tee", "/usr/local/bin/date", user="root", stdin=script)
    assert date.returncode == 0
    shell(bed, "chmod 755 /usr/local/bin/date", 1, check=True)
    try:
        yield
    finally:
        shell(bed, "rm /usr/local/bin/date", 1, check=True)


@pytest.mark.soak
def test_clocks_without_a_source_are_compared(bed: Testbed) -> None:
    nobody: dict[str, Any] = {"clock_sync_servers": ["192.0.2.1"]}
    done = run(bed, **nobody).checked()
    assert "RETRYING" not in done.output
    for part in (
        "Warning: chrony got no answer from 192.0.2.1 within 15 s.",
        " s, which is close enough for training. Clocks drift:",
        "list NTP servers in clock_sync_servers, or let the hosts follow one of them",
    ):
        assert part in done.shown, done.output

    nobody["clock_sync_timeout"] = 2
    alone = run(bed, "--limit", "host-1", **nobody).checked()
    assert "No other host in this run has a clock that agrees with it" in alone.shown
    with shifted_clock(bed, -3):
        apart = run(bed, **nobody)
        assert [row["failed"] for row in apart.counts.values()] == [0, 1], apart.output
        # The slower the answers, the larger the uncertainty.
        assert re.search(
            r"The clock of this host is [12]\.\d+ s behind that of host-0, but clock_sync_max_skew"
            r" allows only 0\.5 s, and chrony got no answer from 192\.0\.2\.1 within 2 s: this"
            r" host may not set its clock",
            apart.shown,
        ), apart.output
        # chrony measures hosts that follow one of them.
        run(bed, **cluster(bed)).checked()


@pytest.mark.soak
def test_the_other_roles_run_on_a_host_without_chrony_and_with_a_wrong_clock(bed: Testbed) -> None:
    removed = "apt-get -qq purge chrony && mv /etc/apt/sources.list /etc/apt/sources.list.d/none"
    on_each(bed, removed)
    given = {"setup_roles": ["clock_sync", "ssh_keys"]}
    inventory = bed.directory / "inventory"
    done = ansible_playbook("setup.yml", inventory, given)
    assert done.returncode == 0, done.stdout
    shown = " ".join(done.stdout.split())
    assert "Warning: chrony could not be installed (No package matching 'chrony'" in shown
    assert "All 2 machines are ready. Next:" in shown
    with shifted_clock(bed, 4):
        done = ansible_playbook("setup.yml", inventory, given)
    assert done.returncode == 2
    shown = " ".join(done.stdout.split())
    assert (
        "s ahead of that of host-0, but clock_sync_max_skew allows only 0.5 s, and chrony could"
        in shown
    )
    assert "Ready: host-0. Not ready, see above: host-1. When all are ready:" in shown
    assert on_each(bed, "ls /home/train/.ssh/train-cluster/config") == [
        "/home/train/.ssh/train-cluster/config\n",
        "/home/train/.ssh/train-cluster/config\n",
    ]
    on_each(bed, "mv /etc/apt/sources.list.d/none /etc/apt/sources.list")
    run(bed, **cluster(bed)).checked()


def test_wrong_variables_are_refused(bed: Testbed) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        (
            {"clock_sync_source": "host-7"},
            "is host-7, which is not in the inventory: choose one of host-0",
        ),
        (
            {"clock_sync_addresses": {}},
            "do not permit any host to query the clock of host-0: list the permitted clients in",
        ),
        (
            {"clock_sync_allow": ["node-3.invalid", "192.0.2.0/24"]},
            "host-0 cannot resolve node-3.invalid: set clock_sync_allow to addresses or networks",
        ),
    ]
    assert_refused(
        lambda tasks: run_tasks(bed, tasks, "--limit", "host-0", **cluster(bed)),
        "clock_sync",
        cases,
    )
