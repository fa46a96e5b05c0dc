"""Runs set-up roles from other playbooks, on hosts with systemd or on this machine."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import REPOSITORY, environment, run
from tests.support.testbed import Testbed, running_testbed

CONFIG = f"""
[defaults]
collections_path = {REPOSITORY / "playbooks/collections"}
internal_poll_interval = 0.02
[connection]
pipelining = True
"""
#: The rescue task of a block that should fail.
REFUSED: dict[str, Any] = {"name": "The role refused the case", "ansible.builtin.debug": {}}
Tasks = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Play:
    """The outcome of a playbook: exit code, output, and counts by host."""

    code: int
    output: str

    @property
    def shown(self) -> str:
        """The output with repeated spaces removed."""
        return " ".join(self.output.split())

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """The counts of Ansible's recap by host."""
        recap = self.output.partition("PLAY RECAP")[2]
        rows = re.findall(r"^(\S+) +: (ok=.*)$", recap, re.MULTILINE)
        return {
            host: {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", counts)}
            for host, counts in rows
        }

    @property
    def changes(self) -> list[int]:
        return [row["changed"] for row in self.counts.values()]

    @property
    def changed(self) -> int:
        return sum(self.changes)

    def checked(self) -> Play:
        assert self.code == 0, self.output
        return self


def role_task(role: str, entry: str = "main", **variables: Any) -> dict[str, Any]:
    included = {"name": f"tensorflow_ansible.cluster.{role}", "tasks_from": entry}
    return {"ansible.builtin.include_role": included, "vars": variables}


def assert_refused(
    run: Callable[[Tasks], Play], role: str, cases: Sequence[tuple[Mapping[str, Any], str]]
) -> None:
    """Assert that a role fails with each case's variables and message, all in one play."""
    done = run([{"block": [role_task(role, **given)], "rescue": [REFUSED]} for given, _ in cases])
    parts = done.checked().shown.split(REFUSED["name"])[:-1]
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
    """Run a playbook in a folder whose ansible.cfg sets only the roles and options for speed."""
    (folder / "ansible.cfg").write_text(CONFIG, encoding="utf-8")
    (folder / "play.yml").write_text(json.dumps(plays), encoding="utf-8")
    kept = {k: v for k, v in environment().items() if not k.startswith("ANSIBLE_")}
    env = {**kept, "COLUMNS": "10000", **environ}
    command = ["ansible-playbook", "-i", str(inventory), "play.yml", *options]
    done = run(*command, cwd=folder, env=env, stderr=subprocess.STDOUT, timeout=900)
    return Play(done.returncode, done.stdout)


def run_tasks(bed: Testbed, tasks: Tasks, *options: str, **variables: Any) -> Play:
    """Run tasks on all hosts of a test bed with variables of the play; see `run_plays`."""
    play = {"hosts": "all", "gather_facts": False, "vars": variables, "tasks": tasks}
    return run_plays(bed.directory, bed.directory / "inventory", [play], *options)


def play(role: str, bed: Testbed, *options: str, entry: str = "main", **variables: Any) -> Play:
    return run_tasks(bed, [role_task(role, entry)], *options, **variables)


def systemd_hosts(count: int = 1, **given: Any) -> Any:
    """Return a fixture for a test module, to be named ``bed``: hosts with systemd."""

    @pytest.fixture(scope="module")
    def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
        folder = tmp_path_factory.mktemp("hosts") / "bed"
        with running_testbed(count, folder, systemd=True, **given) as made:
            yield made

    return bed


def shell(bed: Testbed, command: str, host: int = 0, check: bool = False) -> str:
    target = bed.hosts[host]
    return bed.exec(target, "sh", "-c", command, user="root", check=check, timeout=300).stdout


def on_each(bed: Testbed, command: str) -> list[str]:
    return [shell(bed, command, number) for number in range(len(bed.hosts))]
