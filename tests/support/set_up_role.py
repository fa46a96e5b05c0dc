"""Runs set-up roles as somebody else's playbook does, on hosts with systemd or on this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import REPOSITORY
from tests.support.testbed import Testbed, docker_available, running_testbed

CONFIG = f"""
[defaults]
roles_path = {REPOSITORY / "roles"}
internal_poll_interval = 0.02
[connection]
pipelining = True
"""
END_OF_CASE = "The role refused the case"
Tasks = Sequence[Mapping[str, Any]]
#: Variables of a role, and words of the message with which it refuses them.
Cases = Sequence[tuple[Mapping[str, Any], str]]


@dataclass(frozen=True)
class Play:
    """What a playbook did: its exit code, its output, the counts by host."""

    code: int
    output: str

    @property
    def shown(self) -> str:
        """The output with single spaces."""
        return " ".join(self.output.split())

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        return recap(self.output)

    @property
    def changes(self) -> list[int]:
        """How many changes there were on each host."""
        return [row["changed"] for row in self.counts.values()]

    @property
    def changed(self) -> int:
        return sum(self.changes)

    def checked(self) -> Play:
        assert self.code == 0, self.output
        return self


def recap(shown: str) -> dict[str, dict[str, int]]:
    """Return the counts of Ansible's recap by host."""
    rows = re.findall(r"^(\S+) +: (ok=.*)$", shown.partition("PLAY RECAP")[2], re.MULTILINE)
    return {
        host: {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", counts)}
        for host, counts in rows
    }


def role_task(role: str, entry: str = "main", **variables: Any) -> dict[str, Any]:
    included = {"name": role, "tasks_from": entry}
    return {"ansible.builtin.include_role": included, "vars": variables}


def assert_refused(run: Callable[[Tasks], Play], role: str, cases: Cases) -> None:
    """Assert that a role fails with the variables of each case, one after the other in one play."""
    end = {"name": END_OF_CASE, "ansible.builtin.debug": {}}
    done = run([{"block": [role_task(role, **given)], "rescue": [end]} for given, _ in cases])
    parts = done.checked().shown.split(END_OF_CASE)[:-1]
    assert len(parts) == len(cases), done.output
    for (given, words), shown in zip(cases, parts, strict=True):
        assert words in shown, given


def run_plays(
    folder: Path,
    inventory: Path | str,
    plays: Sequence[Mapping[str, Any]],
    *options: str,
    **environ: str,
) -> Play:
    """Run a playbook in a folder whose ansible.cfg has nothing but the roles, and for speed."""
    (folder / "ansible.cfg").write_text(CONFIG, encoding="utf-8")
    (folder / "play.yml").write_text(json.dumps(plays), encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    done = subprocess.run(
        [Path(sys.executable).parent / "ansible-playbook", "-i", inventory, "play.yml", *options],
        cwd=folder,
        env={**kept, "COLUMNS": "10000", **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    return Play(done.returncode, done.stdout)


def run_tasks(bed: Testbed, tasks: Tasks, *options: str, **variables: Any) -> Play:
    """Run tasks on all hosts of a test bed, with these variables of the play; see `run_plays`."""
    play = {"hosts": "all", "gather_facts": False, "vars": variables, "tasks": tasks}
    return run_plays(bed.directory, bed.directory / "inventory", [play], *options)


def play(bed: Testbed, role: str, *options: str, entry: str = "main", **variables: Any) -> Play:
    """Run a role on all hosts of a test bed, with these variables of the play."""
    return run_tasks(bed, [role_task(role, entry)], *options, **variables)


def systemd_hosts(count: int = 1, **given: Any) -> Any:
    """Return a fixture of a test module, to be called ``bed``: hosts with systemd."""

    @pytest.fixture(scope="module")
    def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
        if not docker_available():
            pytest.skip("no Docker engine answers")
        folder = tmp_path_factory.mktemp("hosts") / "bed"
        with running_testbed(count, folder, systemd=True, **given) as made:
            yield made

    return bed


def shell(bed: Testbed, command: str, host: int = 0, check: bool = False) -> str:
    """Run a shell's command as root on a host; return its output."""
    target = bed.hosts[host]
    return bed.exec(target, "sh", "-c", command, user="root", check=check, timeout=300).stdout
