"""Measures the watch and the other commands for jobs of many local ranks."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.ranks import print_header, print_row, scratch
from bench.scale import watch_load
from tests.support.jobs import PLAIN
from tests.support.lab import REPOSITORY, Lab, environment, write_local_inventory

#: Numbers of ranks.
_SIZES = (16, 64, 256)
_COMMANDS = ("status", "list", "logs", "report", "stop")
_JOB = "many"


class _Used(NamedTuple):
    """What a command used, with all of its processes."""

    seconds: float
    cpu: float  # processor time in seconds
    mib: float  # peak memory of its largest process

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s, {self.cpu:.1f} s, {self.mib:.0f} MiB"


#: Runs a command and prints its processor time in seconds and its peak memory in KiB.
_MEASURED = """\
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
sys.exit(code)
"""


def _measured(words: Sequence[str]) -> _Used:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, sys.executable, "-m", "train", *words],
        cwd=REPOSITORY,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{words[0]} ended with {done.returncode}: {done.stderr}")
    cpu, kib = map(float, done.stdout.split())
    return _Used(time.monotonic() - began, cpu, kib / 1024)


def _lab(folder: Path, count: int) -> Lab:
    inventory = folder / "inventory"
    inventory.mkdir()
    write_local_inventory(inventory, {"worker": count})
    given = {
        "train_job_root": str(folder / "hosts"),
        "train_job_lease_dir": str(folder / "leases"),
        "train_job_python": sys.executable,
        "train_job_min_free_mb": 1,
    }
    return Lab(inventory, folder / "runs", given)


def _job_of(count: int) -> list[str]:
    """Run a job of local ranks, and return the cells of its row in the table."""
    with scratch() as folder:
        lab = _lab(folder, count)
        words = ("--steps", "1000000", "--seconds", "5")
        began = time.monotonic()
        command = lab.start("--job", _JOB, "--script", str(PLAIN), arguments=words)
        running: set[str] = set()
        while len(running) < count:
            running.add(command.wait_for(lambda event: event.get("phase") == "running")["task"])
        started = time.monotonic() - began
        cores, mib = watch_load(lab, command.process.pid)
        used = [str(_measured(lab.words(name, _JOB))) for name in _COMMANDS if name != "list"]
        used.insert(1, str(_measured(lab.words("list"))))
        command.end()
        return [f"{started:.0f} s", f"{cores:.2f} cores, {mib:.0f} MiB", *used]


def commands(rounds: int) -> None:
    """Measure a job of 16, 64 and 256 local ranks: start, watch and the other commands.

    For each command: seconds, processor time, and peak memory of its largest process. This runs
    only on request, because 256 ranks overload a small machine.
    """
    print_header("ranks", "all are running after", "watch", *(f"`{name}`" for name in _COMMANDS))
    for count in _SIZES:
        for _ in range(rounds):
            print_row(count, *_job_of(count))
