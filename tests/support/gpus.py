"""Machines with GPUs from a fake nvidia-smi."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import REPOSITORY, Lab, environment, run, write_local_inventory
from train.gang.plan import gpu_assignment, planned_ranks
from train.host import gpus

UUIDS = [f"GPU-{digit * 8}-0000-4000-8000-000000000000" for digit in "abcdef"]
MIG = [f"MIG-{digit * 8}-0000-5000-8000-000000000000" for digit in "12"]


class Machine:
    """A machine whose driver and nvidia-smi are files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.dev, self.bin, self.calls = folder / "dev", folder / "bin", folder / "calls"
        self.listed = folder / "listed"
        for path in (self.dev, self.bin):
            path.mkdir(parents=True)
        self.listed.touch()

    def has(self, count: int, *, code: int = 0, said: str = "", instances: int = 0) -> None:
        """Give the machine GPUs, the first one with MIG instances, or an nvidia-smi that fails."""
        lines = [f"GPU {i}: NVIDIA A100 (40GB) (UUID: {UUIDS[i]})" for i in range(count)]
        lines[1:1] = [f"  MIG 3g.20gb     Device  {i}: (UUID: {MIG[i]})" for i in range(instances)]
        for index in range(count):
            (self.dev / f"nvidia{index}").touch()
        program = self.bin / "nvidia-smi"
        text = said or "\n".join(lines)
        program.write_text(
            f'#!/bin/sh\necho "$@" >>{self.calls}\n'
            f"case $1 in --query*) cat {self.listed}; exit;; esac\n"
            f"cat <<'.'\n{text}\n.\nexit {code}"
        )
        program.chmod(0o755)

    def runs(self, *found: str) -> None:
        """Add processes on its GPUs: lines such as ``GPU-..., 4711, 512, python3``."""
        self.listed.write_text("".join(f"{line}\n" for line in found))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path / "machine")
    monkeypatch.setattr(gpus, "DEV", str(made.dev))
    monkeypatch.setattr(gpus, "PROC", str(tmp_path / "no-proc"))
    monkeypatch.setenv("PATH", f"{made.bin}{os.pathsep}{os.environ['PATH']}")
    return made


def gang(
    groups: dict[str, list[str]],
    wanted: dict[str, Any],
    count: int = 4,
    machines: dict[str, str] | None = None,
    instances: int = 0,
    busy: dict[str, dict[str, Any]] | None = None,
    ranks_of: dict[str, str] | None = None,
) -> dict[str, tuple[str, ...] | None]:
    """Return the GPUs by inventory host; hosts not in ``machines`` share one machine.

    ``ranks_of`` has the hosts whose further ranks some names are.
    """
    names = [name for members in groups.values() for name in members]
    listed = [
        {"index": i, "uuid": UUIDS[i], "instances": [] if i else MIG[:instances]}
        for i in range(count)
    ]
    hosts: Any = {
        name: {
            "machine": (machines or {}).get(name, "M"),
            "address": "10.0.0.1",
            "port": 12345 + number,
            "tensorflow": "2.21.0",
            "gpus": listed,
            "gpus_wanted": wanted.get(name, "auto"),
            "gpus_busy": busy or {},
        }
        for number, name in enumerate(names)
    }
    planned = planned_ranks.plan_ranks(groups, hosts)
    gpu_assignment.share(planned, hosts, lambda host: (ranks_of or {}).get(host, host))
    return {rank["host"]: None if rank["gpus"] is None else tuple(rank["gpus"]) for rank in planned}


class Copy:
    """A copy of the repository that looks for the driver in a folder instead of /dev.

    All its folders have a space in their names.
    """

    def __init__(self, folder: Path, machine: Machine, ranks: int = 2) -> None:
        self.root, self.runs = folder / "my repository", folder / "my runs"
        self.hosts = folder / "the hosts"
        ignored = shutil.ignore_patterns("__pycache__")
        for name in ("meta", "playbooks", "plugins", "roles", "train"):
            shutil.copytree(REPOSITORY / name, self.root / name, symlinks=True, ignore=ignored)
        for name in ("ansible.cfg", "galaxy.yml"):
            shutil.copy(REPOSITORY / name, self.root)
        module = self.root / "train/host/gpus.py"
        text = module.read_text()
        assert 'DEV = "/dev"\n' in text
        module.write_text(text.replace('DEV = "/dev"\n', f"DEV = {str(machine.dev)!r}\n"))
        self.script = folder / "my script/main.py"
        self.script.parent.mkdir()
        self.script.write_text(SCRIPT)
        self.inventory = write_local_inventory(folder / "my inventory", {"worker": ranks})
        (self.inventory / "group_vars/all/train_job.yml").unlink()  # auto, the default

    def run(self, job: str, **variables: Any) -> subprocess.CompletedProcess[str]:
        fixed = {"train_job_root": str(self.hosts), "train_job_python": sys.executable}
        lab = Lab(self.inventory, self.runs, fixed)
        words = lab.words("run", "--json", "--job", job, "--script", str(self.script), **variables)
        env = {**environment(), "ANSIBLE_CONFIG": str(self.root / "ansible.cfg")}
        return run(sys.executable, "-m", "train", *words, cwd=self.root, env=env)

    def seen(self, job: str) -> list[str]:
        logs = sorted((self.runs / job / "logs").glob("*.log"))
        return [log.read_text().partition("SEES ")[2].strip() for log in logs]


SCRIPT = """\
import os
print("SEES", *(os.environ.get(f"{n}", "-") for n in (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "TF_FORCE_GPU_ALLOW_GROWTH")))
"""
