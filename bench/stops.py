"""Measures how soon ``python -m train stop`` has ended a gang on SSH hosts in Docker."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.jobs import PLAIN, ssh_processes
from tests.support.lab import Command, Lab, free_port
from tests.support.testbed import Rank, Testbed, running_testbed

RANKS = 8
#: What is stopped, the arguments of its script, and the bar in seconds.
JOBS = {
    "8 ranks": ([], "5"),
    "8 ranks that ignore TERM": (["--deaf"], "35"),
    "8 ranks that have ended": (None, ""),
}


def _inventory(bed: Testbed, folder: Path) -> Path:
    ranks = [
        Rank(f"worker{index}", host, {"train_job_port": free_port()})
        for index, host in enumerate(bed.hosts)
    ]
    return bed.write_inventory({"worker": ranks}, path=folder / "inventory")


def _at_work() -> Callable[[dict[str, Any]], bool]:
    """Return a condition for events: every rank has told a step."""
    seen: set[str] = set()

    def wanted(event: dict[str, Any]) -> bool:
        if event["event"] == "rank" and event["progress"].get("step"):
            seen.add(event["task"])
        return len(seen) == RANKS

    return wanted


def _stop(lab: Lab, bed: Testbed, job: str) -> float:
    """Stop a job and return the seconds.

    Raises:
        RuntimeError: something is left of it, or the command failed.
    """
    began = time.monotonic()
    done = Command(*lab.words("stop", job)).end()
    seconds = time.monotonic() - began
    left = ssh_processes(bed)
    if done.code or left:
        raise RuntimeError(f"stop ended with {done.code}, left: {left}\n{done.error}")
    return seconds


def stops(rounds: int) -> None:
    """Print the table of the time that it takes to stop a gang.

    Raises:
        RuntimeError: something was left of a job, or a stop failed.
    """
    taken: dict[str, list[float]] = {name: [] for name in JOBS}
    with (
        tempfile.TemporaryDirectory(prefix="train-bench-") as name,
        running_testbed(RANKS, Path(name)) as bed,
    ):
        given = {"train_job_python": "/usr/bin/python3", "train_job_max_restarts": 0}
        lab = Lab(_inventory(bed, Path(name)), Path(name) / "runs", given)
        for number in range(rounds):
            job = ""
            for kind, (arguments, _) in JOBS.items():
                if arguments is not None:
                    job = f"stopped-{number}-{len(arguments)}"
                    words = ["--steps", "100000", *arguments]
                    command = lab.start("--job", job, "--script", str(PLAIN), arguments=words)
                    command.wait_for(_at_work())
                    command.process.kill()  # else it would tell the end, and bring it home
                    command.process.wait()
                taken[kind].append(_stop(lab, bed, job))
    nothing = statistics.median(taken["8 ranks that have ended"])
    print("| stop of | s: median (least to most) | of a stop with nothing to do | bar, s |")
    print("|---|---|---|---|")
    for kind, (_, bar) in JOBS.items():
        values = sorted(taken[kind])
        middle = statistics.median(values)
        spread = f"{middle:.1f} ({values[0]:.1f} to {values[-1]:.1f})"
        print(f"| {kind} | {spread} | {middle / nothing:.2f} | {bar} |")
