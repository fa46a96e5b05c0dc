"""Runs one set-up role on the hosts of a test bed, as a play of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.lab import REPOSITORY, environment
from tests.support.testbed import Testbed


@dataclass(frozen=True)
class Play:
    """What a playbook did: its exit code, its output with single spaces, the counts by host."""

    code: int
    shown: str
    counts: dict[str, dict[str, int]]

    @property
    def changed(self) -> int:
        """How many changes there were on all hosts."""
        return sum(row["changed"] for row in self.counts.values())


def recap(shown: str) -> dict[str, dict[str, int]]:
    """Return the counts of Ansible's recap by host."""
    rows = re.findall(r"^(\S+) +: (ok=.*)$", shown.partition("PLAY RECAP")[2], re.MULTILINE)
    return {
        host: {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", counts)}
        for host, counts in rows
    }


def play(bed: Testbed, role: str, *options: str, entry: str = "main", **variables: Any) -> Play:
    """Run a role on all hosts of a test bed, with these variables of the play."""
    task = {
        "name": "Run the role",
        "ansible.builtin.include_role": {"name": role, "tasks_from": entry},
    }
    return run_plays(
        bed,
        [{"hosts": "worker", "gather_facts": False, "vars": variables, "tasks": [task]}],
        *options,
    )


def run_plays(
    bed: Testbed,
    plays: list[Mapping[str, Any]],
    *options: str,
    config: Path = REPOSITORY / "ansible.cfg",
) -> Play:
    """Run a playbook of these plays, with the settings of an ansible.cfg."""
    playbook = bed.directory / "play.yml"
    playbook.write_text(json.dumps(plays), encoding="utf-8")
    program = Path(sys.executable).parent / "ansible-playbook"
    done = subprocess.run(
        [program, "-i", bed.directory / "inventory", playbook, *options],
        cwd=config.parent,
        env={**environment(), "ANSIBLE_CONFIG": str(config)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    return Play(done.returncode, " ".join(done.stdout.split()), recap(done.stdout))
