"""Measures how soon a killed rank is seen, its gang stopped, and the next attempt at work."""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.ranks import REPOSITORY
from tests.support.lab import environment
from train.host import processes, records

TASKS = ("worker-0", "worker-1")
OPTIONS = ("--epochs=1000000", "--evaluate-every=0", "--checkpoint-every=200")
#: Seconds that anything here may take.
_LIMIT = 120.0


class Followed:
    """A job of two local ranks, as ``python -m train run --json`` tells of it.

    Args:
        folder: of the job's files, on the hosts and here.
    """

    def __init__(self, folder: Path) -> None:
        self._ranks = {task: folder / "hosts/jobs/killed" / task for task in TASKS}
        given = {"train_job_root": f"{folder}/hosts", "train_job_runs_dir": f"{folder}/runs"}
        self._words = ["-e", json.dumps(given)]
        self._seen: list[tuple[float, dict[str, Any]]] = []
        self.began = time.time()
        self._run = subprocess.Popen(
            [*self._command("run", "--json", "--job", "killed"), "--", *OPTIONS],
            cwd=REPOSITORY,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "train", *words, *self._words]

    def _read(self) -> None:
        assert self._run.stdout is not None
        for line in self._run.stdout:
            self._seen.append((time.time(), json.loads(line)))

    def first_step(self, attempt: int) -> float:
        """Wait until all ranks have made a step, and return when the last of them had."""

        def made() -> float:
            times = []
            for rank in self._ranks.values():
                spec = records.read_json(str(rank / records.RANK_FILE)) or {"attempt": 0}
                progress = rank / records.PROGRESS_FILE
                if spec["attempt"] != attempt or not progress.exists():
                    return 0.0
                told = records.parse_progress(progress.read_text())
                times.append(next((record["t"] for record in told if record.get("step")), 0.0))
            return max(times) if all(times) else 0.0

        return _wait(made)

    def kill(self, task: str) -> float:
        """Kill a rank's script, and return when that was."""
        state = records.read_json(str(self._ranks[task] / records.STATE_FILE)) or {}
        os.kill(state["pid"], signal.SIGKILL)
        return time.time()

    def stopped(self) -> float:
        """Wait until no process of the gang is left, and return when that was."""

        folders = {str(folder) for folder in self._ranks.values()}

        def over() -> float:
            marked = processes.marked(records.ENV_RANK_DIR)
            return 0.0 if any(folder in folders for _, folder in marked) else time.time()

        return _wait(over)

    def told(self, task: str) -> float:
        """Return when the end of a rank was told."""

        def failed() -> float:
            for when, event in list(self._seen):
                if event["event"] == "rank" and (event["task"], event["phase"]) == (task, "failed"):
                    return when
            return 0.0

        return _wait(failed)

    def end(self) -> None:
        """Stop the job."""
        stop = self._command("stop", "killed")
        subprocess.run(
            stop, cwd=REPOSITORY, env=environment(), stdout=subprocess.DEVNULL, check=True
        )
        self._run.wait(_LIMIT)


def _wait(look: Callable[[], float]) -> float:
    """Look until there is something other than 0, and return it.

    Raises:
        RuntimeError: it takes too long.
    """
    deadline = time.monotonic() + _LIMIT
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise RuntimeError(f"nothing happened for {_LIMIT:.0f} s")
        time.sleep(0.05)


def one() -> dict[str, float]:
    """Kill a rank of one job, and return the seconds of each part."""
    folder = Path(tempfile.mkdtemp(prefix="train-bench-"))
    try:
        job = Followed(folder)
        try:
            fresh = job.first_step(1) - job.began
            time.sleep(2)
            killed = job.kill("worker-1")
            found = {"a fresh start's first step": fresh}
            found["the gang is stopped"] = job.stopped() - killed
            found["it is seen"] = job.told("worker-1") - killed
            found["the next attempt's first step"] = job.first_step(2) - killed
        finally:
            job.end()
    finally:
        shutil.rmtree(folder)
    found["later than a fresh start's"] = found["the next attempt's first step"] - fresh
    return found


def faults(rounds: int) -> None:
    """Print the table of what follows when a rank is killed."""
    taken = []
    for number in range(rounds):
        taken.append(one())
        shown = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in taken[-1].items())
        print(f"round {number + 1}: {shown}", file=sys.stderr)
    print("| a rank is killed, until | s: median (least to most) | bar, s |")
    print("|---|---|---|")
    bars = {
        "it is seen": "3",
        "the gang is stopped": "10",
        "the next attempt's first step": "",
        "a fresh start's first step": "",
        "later than a fresh start's": "10",
    }
    for name, bar in bars.items():
        values = sorted(found[name] for found in taken)
        spread = f"{statistics.median(values):.1f} ({values[0]:.1f} to {values[-1]:.1f})"
        print(f"| {name} | {spread} | {bar} |")
