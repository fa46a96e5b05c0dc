"""Measures jobs and hosts: a killed rank, a stopped gang, hosts that are set up and examined."""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from bench.ranks import in_turns, local_lab, print_header, print_row, scratch, spread, stop
from tests.support.faults import slow_network
from tests.support.jobs import plain, rank_pid, ssh_processes, training
from tests.support.lab import (
    Command,
    Lab,
    Run,
    ansible_playbook,
    free_port,
    tensorflow_mounts,
    tensorflow_testbed,
)
from tests.support.testbed import Rank, Testbed, running_testbed
from train.host import json_files, processes, progress_records, rank_environment, rank_files

TASKS = ("worker-0", "worker-1")
OPTIONS = ("--epochs=1000000", "--evaluate-every=0", "--checkpoint-every=200")
#: Maximum seconds for a part of ``faults``.
_LIMIT = 120.0
#: Measured intervals after a rank is killed, and their limits in seconds.
PARTS = {
    "the control node detects it": "3",
    "the gang is stopped": "10",
    "the next attempt's first step": "",
    "a fresh start's first step": "",
    "difference to a fresh start": "10",
}


def _wait(check: Callable[[], float]) -> float:
    """Call ``check`` until it returns a value other than 0, and return that."""
    deadline = time.monotonic() + _LIMIT
    while not (found := check()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"nothing happened for {_LIMIT:.0f} s")
        time.sleep(0.05)
    return found


def killed_rank(task: str) -> dict[str, float]:
    """Kill one of a job's two local ranks, and return the seconds of each part."""
    with scratch() as folder:
        root, lab = folder / "hosts", local_lab(folder)
        ranks = [root / "jobs/killed" / name for name in TASKS]

        def first_step(attempt: int) -> float:
            times = []
            for rank in ranks:
                spec = json_files.read_json(str(rank / rank_files.RANK_FILE)) or {"attempt": 0}
                progress = rank / rank_files.PROGRESS_FILE
                if spec["attempt"] != attempt or not progress.exists():
                    return 0.0
                found = progress_records.parse_progress(progress.read_text())
                times.append(next((record["t"] for record in found if record.get("step")), 0.0))
            return max(times) if all(times) else 0.0

        def stopped() -> float:
            marked = processes.marked(rank_environment.ENV_RANK_DIR)
            return 0.0 if any(Path(rank_dir) in ranks for _, rank_dir in marked) else time.time()

        def failed(event: dict[str, Any]) -> bool:
            return event.get("phase") == "failed" and event.get("task") == task

        began = time.time()
        command = lab.start("--job", "killed", arguments=OPTIONS)
        try:
            fresh = _wait(lambda: first_step(1)) - began
            time.sleep(2)
            os.kill(rank_pid(root, "killed", task), signal.SIGKILL)
            killed = time.time()
            found = {"the gang is stopped": _wait(stopped) - killed}
            found["the control node detects it"] = command.wait_for(failed)["t"] - killed
            again = _wait(lambda: first_step(2)) - killed
        finally:
            stop(lab, "killed")
            command.end(_LIMIT)
        found |= {"the next attempt's first step": again, "a fresh start's first step": fresh}
        found["difference to a fresh start"] = again - fresh
        return {part: round(seconds, 2) for part, seconds in found.items()}


def faults(rounds: int) -> None:
    """Measure the seconds from killing a rank to its detection, the stop and the restart."""
    (taken,) = in_turns(rounds, TASKS[1:], killed_rank).values()
    print_header("time after a rank is killed, until", "s: median (least to most)", "limit, s")
    for name, bar in PARTS.items():
        print_row(name, spread([found[name] for found in taken]), bar)


RANKS = 8
#: Jobs to stop: the arguments of their scripts, and the limit in seconds.
JOBS = {
    "8 ranks": ("", "5"),
    "8 ranks that ignore SIGTERM": ("--deaf", "35"),
    "8 ranks that have ended": (None, ""),
}


def _start_and_abandon(lab: Lab, job: str, arguments: str) -> None:
    """Start a job, and kill its watcher once every rank has reported a step."""
    command = plain(lab, job, f"--steps 100000 {arguments}")
    waiting = {f"worker-{index}" for index in range(RANKS)}
    while waiting:
        waiting.discard(command.wait_for(training)["task"])
    command.kill()  # otherwise, it would notice the end and fetch the results


def stops(rounds: int) -> None:
    """Measure the seconds of `python -m train stop` for 8 ranks on SSH hosts in Docker."""
    taken: dict[str, list[float]] = {name: [] for name in JOBS}
    with scratch() as folder, running_testbed(RANKS, folder) as bed:
        named = {f"worker{index}": host for index, host in enumerate(bed.hosts)}
        ranks = [Rank(name, at, {"train_job_port": free_port()}) for name, at in named.items()]
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
    nothing = median(taken["8 ranks that have ended"])
    ratio = "ratio to a stop with nothing to do"
    print_header("stop of", "s: median (least to most)", ratio, "limit, s")
    for kind, (_, bar) in JOBS.items():
        values = taken[kind]
        print_row(kind, spread(values), f"{median(values) / nothing:.2f}", bar)


COUNTS = (4, 16)
#: Containers cannot reach a time server.
SETUP = {"tensorflow_wheelhouse": "/wheelhouse", "clock_sync_source": "host-0"}


def _set_up(bed: Testbed) -> str:
    done = ansible_playbook("setup.yml", bed.directory / "inventory", SETUP)
    if done.returncode:
        raise RuntimeError(done.stdout[-3000:])
    return done.stdout


def setup(rounds: int) -> None:
    """Measure the seconds of setup.yml on 4 and 16 SSH hosts in Docker that are already set up."""
    medians: dict[int, float] = {}
    print_header("ready hosts", "s: median (least to most)", "ratio to 4 hosts")
    for count in COUNTS:
        given: dict[str, Any] = {"mounts": tensorflow_mounts("3.11"), "systemd": True}
        with scratch() as folder, running_testbed(count, folder, **given) as bed:
            _set_up(bed)
            taken = []
            for _ in range(rounds):
                began = time.monotonic()
                shown = _set_up(bed)
                taken.append(time.monotonic() - began)
                if re.search(r"changed=[1-9]", shown):
                    raise RuntimeError(f"something was changed again: {shown[-3000:]}")
        medians[count] = median(taken)
        print_row(count, spread(taken), f"{medians[count] / medians[COUNTS[0]]:.2f}")


EXAMINED_HOSTS = (4, 16, 48)
#: Checks of the doctor, and their limits in seconds for 16 hosts.
EXAMINED = {("--quick",): "10", ("--only", "pairs"): "30"}


def _examine(lab: Lab, *options: str) -> Run:
    done = Command(*lab.words("doctor", *options, "--json")).end()
    if not done.events:
        raise RuntimeError(done.error)
    return done


def _cpu() -> float:
    """Return the CPU seconds of terminated children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def doctor(rounds: int) -> None:
    """Measure the seconds of the doctor for 4, 16 and 48 SSH hosts in Docker."""
    cpu_title = "CPU s on the control node, per host"
    print_header("doctor", "hosts", "s: median (least to most)", "limit, s", cpu_title)
    for count in EXAMINED_HOSTS:
        with scratch() as folder, running_testbed(count, folder) as bed:
            lab = Lab(bed.write_inventory({"worker": bed.hosts}), folder / "runs", {})
            for options, bar in EXAMINED.items():
                seconds, cpu = [], []
                for _ in range(rounds):
                    before = _cpu()
                    seconds.append(_examine(lab, *options).seconds)
                    cpu.append((_cpu() - before) / count)
                limit = bar if count == 16 else ""
                name = " ".join(options)
                print_row(name, count, spread(seconds), limit, f"{median(cpu):.2f}")


#: Networks to train, and the rates of each host's link.
TRAINED, LINKS = ("mnist-cnn", "resnet20"), ("1gbit", "100mbit")
#: The part of a core for each of four hosts, in slices of some milliseconds. A fifth of this
#: machine is left for shared work.
_PART, _SLICE_US = 0.2 * (os.cpu_count() or 1), 5_000


def prediction(rounds: int) -> None:
    """Compare predicted and measured step times on Docker hosts with slow links.

    This takes 15 minutes, needs root, and runs only on request.
    """
    limits = [f"--cpu-period={_SLICE_US}", f"--cpu-quota={int(_PART * _SLICE_US)}"]
    print_header("network", "link", "hosts", "ms per step", "predicted", "ratio")
    with scratch() as folder, tensorflow_testbed(4, folder, folder, limits) as bed:
        lab = Lab(bed.write_inventory({"worker": bed.hosts}), folder / "runs", {})
        for rate in LINKS:
            with ExitStack() as stack:
                for host in bed.hosts:
                    stack.enter_context(slow_network(host, rate))
                for model in [*TRAINED] * rounds:
                    done = _examine(lab, "--only", "collectives", "--model", model)
                    found = done.events[-1]["scaling"]
                    if not found:
                        raise RuntimeError(f"{done.error}{done.events[-1]['findings']}")
                    print(f"{rate}: {model}: {found}", file=sys.stderr)
                    for one in found["trained"][1:]:
                        step, guess = one["step_ms"], one["predicted_ms"]
                        cells = f"{step:.1f}", f"{guess:.1f}", f"{guess / step:.2f}"
                        print_row(model, rate, one["hosts"], *cells)
