"""Measures the first step of a gang on SSH hosts, compared with a shell loop over ssh."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import IO

from bench.ranks import in_turns, print_header, print_row, scratch, spread, training
from tests.support.lab import REPOSITORY, Lab, free_port, tensorflow_testbed
from tests.support.testbed import Rank, Testbed
from train.host.rank_environment import ENV_MALLOC, MALLOC_OPTIONS

HOSTS, RANKS = 4, 8
OPTIONS = ("--epochs", "2")
#: The number of threads that the supervisor assigns to each rank of a host.
THREADS = str(max(1, (os.cpu_count() or 1) * HOSTS // RANKS))
#: Files that worker.py needs.
CODE = ("train/__init__.py", "train/worker.py", "train/host", "train/training")


class _Gang:
    """The hosts, and a lab with the ranks of an inventory; rank i is on host i modulo HOSTS."""

    def __init__(self, bed: Testbed, folder: Path) -> None:
        self.bed, self.folder = bed, folder
        self._ports = [free_port() for _ in range(RANKS)]
        self._hosts = [bed.hosts[index % HOSTS] for index in range(RANKS)]
        ranks = [
            Rank(f"worker{index}", host, {"train_job_port": port})
            for index, (host, port) in enumerate(zip(self._hosts, self._ports, strict=True))
        ]
        self._inventory = bed.write_inventory({"worker": ranks}, path=folder / "inventory")

    def _lab(self) -> tuple[Lab, dict[str, str]]:
        """Return a new lab, and an environment without open connections to the hosts."""
        name = str(time.time_ns())
        lab = Lab(self._inventory, self.folder / name, {})
        sockets = self.folder / f"c{name[-6:]}"
        return lab, {"ANSIBLE_SSH_CONTROL_PATH_DIR": str(sockets)}

    def by_playbook(self) -> float:
        lab, environment = self._lab()
        os.environ.update(environment)
        lab.playbook("train.yml", train_job_args=list(OPTIONS)).check_returncode()
        return _first_step(lab.runs_dir)

    def by_wrapper(self) -> float:
        lab, environment = self._lab()
        os.environ.update(environment)
        done = lab.start(arguments=OPTIONS).end(600)
        if done.code:
            raise RuntimeError(done.error)
        return _first_step(lab.runs_dir)

    def by_loop(self) -> float:
        """Copy the code to each host and start each rank over ssh, all in the background."""
        folder = f"loop-{time.time_ns()}"
        code = self.folder / f"{folder}.tgz"
        words = ["tar", "-czf", str(code), "--exclude=__pycache__", *CODE]
        subprocess.run(words, cwd=REPOSITORY, check=True)
        copies = []
        for host in self.bed.hosts:
            with code.open("rb") as stream:
                command = f"mkdir {folder} && tar -xzC {folder}"
                copies.append(self._ssh(host.address, command, stream))
        if any(copy.wait() for copy in copies):
            raise RuntimeError("the code could not be copied")
        members = [
            f"{host.address}:{port}" for host, port in zip(self._hosts, self._ports, strict=True)
        ]
        ranks = []
        for index, host in enumerate(self._hosts):
            config = {"cluster": {"worker": members}, "task": {"type": "worker", "index": index}}
            variables = {
                "TF_CONFIG": json.dumps(config),
                "TRAIN_PROGRESS_FILE": f"{index}.jsonl",
                "TF_NUM_INTRAOP_THREADS": THREADS,
                "TF_NUM_INTEROP_THREADS": THREADS,
                ENV_MALLOC: MALLOC_OPTIONS,
            }
            given = [f"{name}={value}" for name, value in variables.items()]
            words = ["env", *given, "../train/venv/bin/python", "train/worker.py", *OPTIONS]
            ranks.append(self._ssh(host.address, f"cd {folder} && {shlex.join(words)}"))
        codes = [rank.wait() for rank in ranks]
        if any(codes):
            raise RuntimeError(f"the ranks ended with {codes}")
        fetched = self.folder / folder / "progress"
        fetched.mkdir(parents=True)
        for index, host in enumerate(self._hosts):
            found = self.bed.exec(host, "cat", f"{folder}/{index}.jsonl").stdout
            (fetched / f"worker-{index}.jsonl").write_text(found, encoding="utf-8")
        return _first_step(fetched.parent.parent, folder)

    def _ssh(
        self, address: str, command: str, stdin: int | IO[bytes] = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        words = [
            *("ssh", "-i", str(self.bed.directory / "id_ed25519"), "-o", "IdentitiesOnly=yes"),
            *("-o", f"UserKnownHostsFile={self.bed.directory / 'known_hosts'}"),
            *("-o", "StrictHostKeyChecking=yes", f"train@{address}", command),
        ]
        quiet = subprocess.DEVNULL
        return subprocess.Popen(words, stdin=stdin, stdout=quiet, stderr=quiet)


def _first_step(runs: Path, job: str = "*") -> float:
    """Return when the slowest rank made its first step."""
    paths = sorted(runs.glob(f"{job}/progress/worker-*.jsonl"))
    firsts = [training(path)[0]["t"] for path in paths]
    if len(firsts) != RANKS:
        raise RuntimeError(f"{len(firsts)} of {RANKS} ranks made a step")
    return max(firsts)


def remote(rounds: int) -> None:
    """Measure the seconds from the command to the first step of 8 ranks on 4 SSH hosts."""
    with scratch() as folder, tensorflow_testbed(HOSTS, folder, folder) as bed:
        gang = _Gang(bed, folder)
        ways: Mapping[str, Callable[[], float]] = {
            "shell loop": gang.by_loop,
            "ansible-playbook": gang.by_playbook,
            "python -m train": gang.by_wrapper,
        }

        def sample(way: str) -> float:
            began = time.time()
            return ways[way]() - began

        taken = in_turns(rounds, list(ways), sample)
    loop = median(taken["shell loop"])
    print_header("way", "first step after, s: median (least to most)", "more than the loop")
    for way, values in taken.items():
        print_row(way, spread(values), f"{median(values) - loop:+.1f} s")
