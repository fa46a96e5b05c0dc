"""``playbooks/setup.yml`` on fresh hosts, some of which break half-way, and what it refuses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.bare_ranks import wait_until
from tests.support.faults import unplugged
from tests.support.lab import REPOSITORY, ansible_playbook
from tests.support.set_up_role import Play, on_each, shell
from tests.support.testbed import running_testbed

ROLES = ["training_host", "ssh_keys"]
GIVEN = {"setup_roles": ROLES, "teardown_roles": ROLES}
LIMITS = "/etc/security/limits.d/train.conf"
SOURCES = "/etc/apt/sources.list"


@pytest.mark.docker
def test_a_host_that_breaks_is_named_and_fixed_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """host-1 loses its network in the middle, host-2 finds no packages."""
    monkeypatch.setenv("ANSIBLE_TIMEOUT", "5")

    def play(name: str) -> Play:
        done = ansible_playbook(name, tmp_path / "inventory", GIVEN)
        return Play(done.returncode, done.stdout)

    with running_testbed(3, tmp_path) as bed, ThreadPoolExecutor() as pool:
        source = f"sed -i.before 's#http[s]*://[^ ]*#http://127.0.0.1:9/debian#' {SOURCES}"
        shell(bed, source, 2, check=True)
        (tmp_path / "inventory/host_vars").mkdir()
        wanted = "training_host_packages: {debian: [rsync]}\n"
        (tmp_path / "inventory/host_vars/host-2.yml").write_text(wanted)
        running = pool.submit(play, "setup.yml")
        wait_until(lambda: shell(bed, f"ls {LIMITS}", 1), "the limits of host-1", timeout=300)
        with unplugged(bed.hosts[1]):
            first = running.result()
        shell(bed, f"mv {SOURCES}.before {SOURCES}", 2, check=True)
        assert first.code in (2, 4), first.output
        good, lost, failed = (first.counts[f"host-{number}"] for number in range(3))
        assert (good["failed"], good["unreachable"]) == (0, 0), first.output
        assert (lost["unreachable"], failed["failed"]) == (1, 1), first.output
        assert "Unable to locate package" in first.output, first.output

        play("setup.yml").checked()
        for host in bed.hosts:
            for other in bed.hosts:
                done = bed.exec(host, "ssh", "-o", "BatchMode=yes", other.name, "hostname")
                assert done.stdout.strip() == other.name

        play("teardown.yml").checked()
        assert on_each(bed, f"ls -d /home/train/.ssh/train-cluster {LIMITS}") == ["", "", ""]


@pytest.mark.parametrize(
    ("playbook", "given", "options", "message"),
    [
        ("setup.yml", {"setup_roles": ["tensorfow"]}, [], "names tensorfow: the roles are train"),
        # Two inventory hosts of one machine.
        ("setup.yml", {}, ["--limit", "localhost-1"], "give those to --limit, of localhost-0"),
        ("teardown.yml", {}, [], "Name the roles whose work is to be taken away"),
    ],
)
def test_what_is_refused(
    playbook: str, given: dict[str, Any], options: list[str], message: str
) -> None:
    done = ansible_playbook(playbook, REPOSITORY / "inventory/local", given, *options)
    assert done.returncode == 2
    assert message in " ".join(done.stdout.split())
