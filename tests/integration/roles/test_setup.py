"""``playbooks/setup.yml`` with hosts that fail, join, leave or are unsuitable."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.bare_ranks import wait_until
from tests.support.faults import unplugged
from tests.support.lab import REPOSITORY, ansible_playbook
from tests.support.set_up_role import Play, on_each, shell
from tests.support.testbed import Host, Testbed, docker, running_testbed

ROLES = ["training_host", "ssh_keys"]
LIMITS = "/etc/security/limits.d/train.conf"
SOURCES = "/etc/apt/sources.list"
AUTHORIZED = "/home/train/.ssh/authorized_keys"
#: Filesystems of the hosts on which TensorFlow cannot be installed.
OPTIONS = (
    *("--tmpfs", "/small:exec,mode=1777,size=64m"),
    *("--tmpfs", "/noexec:noexec,mode=755,size=20g"),
)
#: Answers like the Python of Debian 11.
OLD_PYTHON = """#!/bin/sh
echo '{"version": "3.9.2", "implementation": "cpython", "bits": 64, "free_threaded": false,' \\
  '"has_venv": true, "glibc": "glibc 2.31"}'
"""
#: Lists the changes on a host since the file /before, except the traces of the login itself.
CHANGED = (
    "find / -xdev -newer /before ! -path '/proc/*' ! -path '/sys/*' ! -path '/var/log/*'"
    " ! -path '/run*' ! -path '/tmp*' ! -path '/home/train/.ansible*' -print; ls -A /small /noexec"
    " | grep -v -e : -e '^$'"
)


def play(name: str, inventory: Path, **given: Any) -> Play:
    done = ansible_playbook(name, inventory, {"setup_roles": ROLES, **given})
    return Play(done.returncode, done.stdout)


def ssh(bed: Testbed, source: Host, *words: str) -> str:
    """Log in from a host; return the output of the command there, or that of ssh."""
    command = ("ssh", "-n", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", *words)
    done = bed.exec(source, *command, check=False)
    return done.stdout.strip() or done.stderr


def assert_all_let_in(bed: Testbed, hosts: Sequence[Host]) -> None:
    for source in hosts:
        for host in hosts:
            assert ssh(bed, source, host.name, "hostname") == host.name


def admitted(bed: Testbed, host: Host) -> list[str]:
    lines = bed.exec(host, "cat", AUTHORIZED).stdout.splitlines()
    return [line for line in lines if not line.startswith("#")]


@pytest.mark.soak
@pytest.mark.docker
def test_hosts_that_break_come_leave_and_get_new_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANSIBLE_TIMEOUT", "5")
    inventory = tmp_path / "inventory"
    with running_testbed(3, tmp_path, stranger=True, options=OPTIONS) as bed:
        one, two, three = bed.hosts
        check_hosts_that_are_ruled_out(bed, tmp_path / "unsuited")
        (inventory / "host_vars").mkdir()
        wanted = "training_host_packages: {debian: [rsync]}\n"
        (inventory / "host_vars/host-2.yml").write_text(wanted)
        check_a_broken_run(bed, inventory)

        play("setup.yml", inventory).checked()
        assert_all_let_in(bed, bed.hosts)
        assert ssh(bed, one, two.address, "hostname") == "host-1"
        check_what_is_refused(bed)
        before = admitted(bed, one)
        operator = (tmp_path / "id_ed25519.pub").read_text().strip()
        assert before[0] == operator
        keys = [re.fullmatch(r'from="[0-9.]+",restrict,pty (.*) .*', line) for line in before[1:]]
        assert len({key[1] for key in keys if key}) == 3, before

        fewer = bed.write_inventory({"worker": [one, two]}, path=tmp_path / "fewer")
        play("setup.yml", fewer, setup_roles=["ssh_keys"]).checked()
        assert_all_let_in(bed, [one, two])
        for host in (one, two):
            assert "Permission denied" in ssh(bed, three, host.name, "hostname")

        play("setup.yml", inventory, setup_roles=["ssh_keys"], ssh_keys_rekey=True).checked()
        assert_all_let_in(bed, bed.hosts)
        for host in bed.hosts:
            after = admitted(bed, host)
            assert (len(after), {*before} & {*after}) == (4, {operator})


def check_hosts_that_are_ruled_out(bed: Testbed, path: Path) -> None:
    """Hosts on which TensorFlow cannot be installed are not changed; the others continue."""
    python = "/usr/local/bin/old-python"
    inventory = bed.write_inventory({"worker": bed.hosts}, path=path)
    (path / "host_vars").mkdir()
    faults: list[dict[str, Any]] = [
        # This is accepted if no role is selected that needs it.
        {"setup_roles": ["training_host"], "training_host_packages": {}},
        {"tensorflow_root": "/noexec/train"},
        {"tensorflow_root": "/small/train"},
    ]
    for host, values in zip(bed.hosts, faults, strict=True):
        given = json.dumps({**values, "tensorflow_python": python})
        (path / f"host_vars/{host.name}.yml").write_text(given)
        bed.exec(host, "tee", python, user="root", stdin=OLD_PYTHON)
        bed.exec(host, "chmod", "755", python, user="root")
    on_each(bed, "touch /before; sleep 0.1")
    command = ansible_playbook("setup.yml", inventory, {})
    done = Play(command.returncode, command.stdout)
    assert done.code == 2, done.output
    assert [done.counts[host.name]["failed"] for host in bed.hosts] == [0, 1, 1]
    for text in (
        f"host-1 and host-2: Python 3.9.2 ({python}) is too old for the locked TensorFlow",
        "host-1: /noexec is not writable: Permission denied",
        "host-1: /noexec is mounted with noexec",
        "sudo mount -o remount,exec /noexec",
        "host-2: not enough space for TensorFlow (cpu) on the filesystem of /small (6",
    ):
        # When the hosts are examined, and at the end.
        assert done.shown.count(text) == 2, done.output
    prepared, *refused = on_each(bed, CHANGED)
    assert LIMITS in prepared
    assert refused == ["", ""], refused


def check_a_broken_run(bed: Testbed, inventory: Path) -> None:
    """host-1 loses its network during the run, and host-2 finds no packages."""
    source = f"sed -i.before 's#http[s]*://[^ ]*#http://127.0.0.1:9/debian#' {SOURCES}"
    shell(bed, source, 2, check=True)
    with ThreadPoolExecutor() as pool:
        running = pool.submit(play, "setup.yml", inventory)
        wait_until(lambda: shell(bed, f"ls {LIMITS}", 1), "the limits of host-1", timeout=300)
        with unplugged(bed.hosts[1]):
            first = running.result()
    shell(bed, f"mv {SOURCES}.before {SOURCES}", 2, check=True)
    assert first.code in (2, 4), first.output
    good, lost, failed = (first.counts[host.name] for host in bed.hosts)
    assert (good["failed"], good["unreachable"]) == (0, 0), first.output
    assert (lost["unreachable"], failed["failed"]) == (1, 1), first.output
    assert "Unable to locate package" in first.shown, first.output


def check_what_is_refused(bed: Testbed) -> None:
    one, two, three = bed.hosts
    for message, *words in (
        # A host that shows another host's key, and one whose key is unknown.
        ("Host key verification failed", "-o", f"HostKeyAlias={three.name}", two.name, "hostname"),
        ("Host key verification failed", "-o", "HostKeyAlias=nobody", two.name, "hostname"),
        ("prohibited", "-W", "127.0.0.1:22", two.name),
        # A host's key from an address that is not the host's.
        ("Permission denied", "-o", "HostName=127.0.0.1", "-o", "HostKeyAlias=host-0", "host-0"),
    ):
        assert message in ssh(bed, one, *words)
    # A key that was stolen, on a host that is not a member.
    assert bed.stranger
    key = bed.exec(one, "cat", ".ssh/train-cluster/id_ed25519").stdout
    bed.exec(bed.stranger, "sh", "-c", "umask 077; cat > .ssh/id_ed25519", stdin=key)
    known = (bed.directory / "known_hosts").read_text()
    bed.exec(bed.stranger, "tee", ".ssh/known_hosts", stdin=known)
    assert "Permission denied" in ssh(bed, bed.stranger, two.address, "hostname")
    log = docker("logs", two.container).stderr
    assert re.search(f"not from a permitted host .*{bed.stranger.address}", log), log


@pytest.mark.parametrize(
    ("playbook", "given", "options", "message"),
    [
        (
            "setup.yml",
            {"setup_roles": ["tensorfow"]},
            [],
            "unknown roles (tensorfow): choose from train",
        ),
        # Two inventory hosts of one machine.
        (
            "setup.yml",
            {},
            ["--limit", "localhost-1"],
            "pass the first inventory host of each machine to --limit, from localhost-0",
        ),
        ("teardown.yml", {}, [], "Set the roles to revert"),
    ],
)
def test_what_is_refused(
    playbook: str, given: dict[str, Any], options: list[str], message: str
) -> None:
    done = ansible_playbook(playbook, REPOSITORY / "inventory/local", given, *options)
    assert done.returncode == 2
    assert message in " ".join(done.stdout.split())
