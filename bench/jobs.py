"""Measures jobs and hosts: a rank is killed, a gang is stopped, hosts that are ready are set up."""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.ranks import local_lab, print_header, print_row, scratch, spread, stop
from tests.support.jobs import plain, rank_pid, ssh_processes
from tests.support.lab import Lab, ansible_playbook, free_port, tensorflow_mounts
from tests.support.testbed import Rank, Testbed, running_testbed
from train.host import processes, records

TASKS = ("worker-0", "worker-1")
OPTIONS = ("--epochs=1000000", "--evaluate-every=0", "--checkpoint-every=200")
#: Seconds that a part of ``faults`` may take.
_LIMIT = 120.0
#: What is measured from the kill of a rank on, and the bar in seconds.
PARTS = {
    "it is seen": "3",
    "the gang is stopped": "10",
    "the next attempt's first step": "",
    "a fresh start's first step": "",
    "later than a fresh start's": "10",
}


def _wait(check: Callable[[], float]) -> float:
    """Call ``check`` until it returns something other than 0, and return that."""
    deadline = time.monotonic() + _LIMIT
    while True:
        found = check()
        if found:
            return found
        if time.monotonic() > deadline:
            raise RuntimeError(f"nothing happened for {_LIMIT:.0f} s")
        time.sleep(0.05)


def killed_rank(folder: Path) -> dict[str, float]:
    """Kill a rank of one job of two local ranks, and return the seconds of each part."""
    root, lab = folder / "hosts", local_lab(folder)
    ranks = [root / "jobs/killed" / task for task in TASKS]
    seen: list[float] = []  # when the failure was shown
    began = time.time()
    run = lab.start("--job", "killed", arguments=OPTIONS).process

    def read() -> None:
        assert run.stdout is not None
        for line in run.stdout:
            event = json.loads(line)
            if event["event"] == "rank" and (event["task"], event["phase"]) == (TASKS[1], "failed"):
                seen.append(time.time())

    def first_step(attempt: int) -> float:
        times = []
        for rank in ranks:
            spec = records.read_json(str(rank / records.RANK_FILE)) or {"attempt": 0}
            progress = rank / records.PROGRESS_FILE
            if spec["attempt"] != attempt or not progress.exists():
                return 0.0
            found = records.parse_progress(progress.read_text())
            times.append(next((record["t"] for record in found if record.get("step")), 0.0))
        return max(times) if all(times) else 0.0

    def stopped() -> float:
        marked = processes.marked(records.ENV_RANK_DIR)
        return 0.0 if any(Path(folder) in ranks for _, folder in marked) else time.time()

    threading.Thread(target=read, daemon=True).start()
    try:
        fresh = _wait(lambda: first_step(1)) - began
        time.sleep(2)
        os.kill(rank_pid(root, "killed", TASKS[1]), signal.SIGKILL)
        killed = time.time()
        found = {"the gang is stopped": _wait(stopped) - killed}
        found["it is seen"] = _wait(lambda: min(seen, default=0.0)) - killed
        found["the next attempt's first step"] = _wait(lambda: first_step(2)) - killed
    finally:
        stop(lab, "killed")
        run.wait(_LIMIT)
    found["a fresh start's first step"] = fresh
    found["later than a fresh start's"] = found["the next attempt's first step"] - fresh
    return found


def faults(rounds: int) -> None:
    """Print the table of what follows when a rank is killed."""
    taken = []
    for number in range(rounds):
        with scratch() as folder:
            taken.append(killed_rank(folder))
        shown = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in taken[-1].items())
        print(f"round {number + 1}: {shown}", file=sys.stderr)
    print_header("a rank is killed, until", "s: median (least to most)", "bar, s")
    for name, bar in PARTS.items():
        print_row(name, spread([found[name] for found in taken]), bar)


RANKS = 8
#: What is stopped, the arguments of its script, and the bar in seconds.
JOBS = {
    "8 ranks": ("", "5"),
    "8 ranks that ignore TERM": ("--deaf", "35"),
    "8 ranks that have ended": (None, ""),
}


def _start_and_abandon(lab: Lab, job: str, arguments: str) -> None:
    """Start a job, and kill what watches it once every rank has reported a step."""
    command = plain(lab, job, f"--steps 100000 {arguments}")
    seen: set[str] = set()

    def all_train(event: dict[str, Any]) -> bool:
        if event["event"] == "rank" and event["progress"].get("step"):
            seen.add(event["task"])
        return len(seen) == RANKS

    command.wait_for(all_train)
    command.kill()  # else it would notice the end, and fetch the results


def stops(rounds: int) -> None:
    """Print the table of the time that it takes to stop a gang."""
    taken: dict[str, list[float]] = {name: [] for name in JOBS}
    with scratch() as folder, running_testbed(RANKS, folder) as bed:
        ranks = [
            Rank(f"worker{index}", host, {"train_job_port": free_port()})
            for index, host in enumerate(bed.hosts)
        ]
        inventory = bed.write_inventory({"worker": ranks}, path=folder / "inventory")
        given = {"train_job_python": "/usr/bin/python3", "train_job_max_restarts": 0}
        lab = Lab(inventory, folder / "runs", given)
        for number in range(rounds):
            job = ""
            for kind, (arguments, _) in JOBS.items():
                if arguments is not None:
                    job = f"stopped-{number}-{len(arguments)}"
                    _start_and_abandon(lab, job, arguments)
                taken[kind].append(stop(lab, job))
                if left := ssh_processes(bed):
                    raise RuntimeError(f"a stop has left {left}")
    nothing = statistics.median(taken["8 ranks that have ended"])
    print_header("stop of", "s: median (least to most)", "of a stop with nothing to do", "bar, s")
    for kind, (_, bar) in JOBS.items():
        values = taken[kind]
        print_row(kind, spread(values), f"{statistics.median(values) / nothing:.2f}", bar)


COUNTS = (4, 16)
#: Containers reach no time server.
SETUP = {"tensorflow_wheelhouse": "/wheelhouse", "clock_sync_source": "host-0"}


def _set_up(bed: Testbed) -> str:
    """Run ``playbooks/setup.yml`` and return its output."""
    done = ansible_playbook("setup.yml", bed.directory / "inventory", SETUP)
    if done.returncode:
        raise RuntimeError(done.stdout[-3000:])
    return done.stdout


def setup(rounds: int) -> None:
    """Print the table of the time that set-up takes on hosts that are ready."""
    medians: dict[int, float] = {}
    print_header("ready hosts", "s: median (least to most)", "of 4 hosts")
    for count in COUNTS:
        given: dict[str, Any] = {"mounts": tensorflow_mounts(), "systemd": True}
        with scratch() as folder, running_testbed(count, folder, **given) as bed:
            _set_up(bed)
            taken = []
            for _ in range(rounds):
                began = time.monotonic()
                shown = _set_up(bed)
                taken.append(time.monotonic() - began)
                if re.search(r"changed=[1-9]", shown):
                    raise RuntimeError(f"something was changed again: {shown[-3000:]}")
        medians[count] = statistics.median(taken)
        print_row(count, spread(taken), f"{medians[count] / medians[COUNTS[0]]:.2f}")
