"""Measures the launcher against the same two commands typed by hand, in turns.

    make bench                        all of it, about 10 minutes on 2 cores
    python -m bench start --rounds 5  one measurement

Both sides train train/worker.py on two workers of this machine, with the same interpreter, the
same options and the same number of TensorFlow's threads.

start   seconds from the command to the first training step
rate    steady steps a second, far from the start; and how late the progress is shown
watch   steps a second of one job while it is watched and while what watches it is halted, in
        turns: finer than rate, whose rounds differ by more than the watch costs
throughput
        steps a second of worker.py against loops written by hand, see bench/loops.py
exchange
        milliseconds of a step between network namespaces with slow links; half an hour, as root,
        and only where it is asked for
memory  MiB that training takes with --accumulate, against plain batches
setup   seconds that playbooks/setup.yml takes on 4 and on 16 SSH hosts in Docker that are ready
faults  seconds from the kill of a rank until it is seen, its gang stopped, the next attempt at work
stops   seconds that `python -m train stop` takes for 8 ranks on SSH hosts in Docker
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.exchange import exchange
from bench.faults import faults
from bench.hosts import setup
from bench.memory import memory
from bench.ranks import PYTHON, REPOSITORY, WORKER, run_ranks
from bench.stops import stops
from bench.throughput import throughput

BIN = Path(sys.executable).parent


@dataclass
class Sample:
    """One training.

    Attributes:
        start: seconds from the command to the first step of the slower rank.
        rate: steps a second of the chief between a third of the steps and the last.
        lags: seconds from each progress record to its being shown.
    """

    start: float
    rate: float
    lags: list[float] = field(default_factory=list)


def sample(began: float, progress: Sequence[Path], lags: Sequence[float] = ()) -> Sample:
    """Read a sample from the progress files of the ranks.

    Raises:
        RuntimeError: a rank made no step.
    """
    ranks = [
        [r for r in map(json.loads, path.read_text().splitlines()) if r["phase"] == "training"]
        for path in progress
    ]
    if not all(ranks):
        raise RuntimeError("a rank made no step")
    chief = ranks[0]
    late = [record for record in chief if record["step"] > chief[-1]["step"] / 3]
    seconds, steps = late[-1]["t"] - late[0]["t"], late[-1]["step"] - late[0]["step"]
    return Sample(
        start=max(records[0]["t"] for records in ranks) - began,
        rate=steps / seconds if seconds else float("nan"),
        lags=list(lags),
    )


def by_hand(options: Sequence[str], folder: Path) -> Sample:
    """Start two workers as one does in two terminals."""
    began = time.time()
    run_ranks([str(WORKER), *options], folder)
    return sample(began, [folder / str(index) / "progress.jsonl" for index in range(2)])


def variables(folder: Path) -> dict[str, Any]:
    """Return the variables that keep a job in ``folder``."""
    return {"train_job_root": str(folder / "hosts"), "train_job_runs_dir": str(folder / "runs")}


def environment() -> dict[str, str]:
    """Return the environment of the project's commands."""
    return {
        **os.environ,
        "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"),
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    }


def collected(folder: Path) -> list[Path]:
    """Return the progress files that came home, chief first."""
    return sorted(folder.glob("runs/*/progress/worker-*.jsonl"))


def by_playbook(options: Sequence[str], folder: Path) -> Sample:
    """Run ``ansible-playbook playbooks/train.yml``."""
    given = {**variables(folder), "train_job_args": list(options)}
    began = time.time()
    subprocess.run(
        [str(BIN / "ansible-playbook"), "playbooks/train.yml", "-e", json.dumps(given)],
        cwd=REPOSITORY,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return sample(began, collected(folder))


def by_wrapper(options: Sequence[str], folder: Path) -> Sample:
    """Run ``python -m train run --json`` and note when each record is shown."""
    command = [sys.executable, "-m", "train", "run", "--json"]
    command += ["-e", json.dumps(variables(folder)), "--", *options]
    began = time.time()
    with subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        lags = []
        for line in run.stdout:
            event = json.loads(line)
            if event.get("progress", {}).get("phase") == "training" and event["phase"] == "running":
                lags.append(time.time() - event["progress"]["t"])
    if run.returncode:
        raise RuntimeError(f"the wrapper ended with {run.returncode}")
    return sample(began, collected(folder), lags)


#: A network whose step takes about 25 ms: what two trainings of the same command differ by is then
#: a few per cent, not the 12 % of a step of 4 ms.
STEADY = ("--data=synthetic", "--model=mnist-cnn", "--epochs=15", "--evaluate-every=0")

WAYS: Mapping[str, Callable[[Sequence[str], Path], Sample]] = {
    "by hand": by_hand,
    "ansible-playbook": by_playbook,
    "python -m train": by_wrapper,
}


def measure(options: Sequence[str], rounds: int) -> dict[str, list[Sample]]:
    """Run every way in turn, ``rounds`` times."""
    samples: dict[str, list[Sample]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for way, run in WAYS.items():
            folder = Path(tempfile.mkdtemp(prefix="train-bench-"))
            try:
                samples[way].append(run(options, folder))
            finally:
                shutil.rmtree(folder)
            print(f"round {number + 1}: {way}: {samples[way][-1].start:.1f} s", file=sys.stderr)
    return samples


def start(rounds: int) -> None:
    """Print the table of the time to the first step."""
    samples = measure(["--epochs", "2"], rounds)
    hand = statistics.median(taken.start for taken in samples["by hand"])
    print("| way | first step after, s: median (least to most) | more than by hand |")
    print("|---|---|---|")
    for way, taken in samples.items():
        values = sorted(one.start for one in taken)
        middle = statistics.median(values)
        spread = f"{middle:.1f} ({values[0]:.1f} to {values[-1]:.1f})"
        print(f"| {way} | {spread} | {middle - hand:+.1f} s |")


def rate(rounds: int) -> None:
    """Print the table of the step rate, each round's ratio to by hand, and of the lag."""
    samples = measure(STEADY, rounds)
    print("| way | steps/s: median | ratio to by hand: median (each round) | shown after, s |")
    print("|---|---|---|---|")
    for way, taken in samples.items():
        ratios = [one.rate / hand.rate for one, hand in zip(taken, samples["by hand"], strict=True)]
        each = ", ".join(f"{value:.3f}" for value in ratios)
        lags = [lag for one in taken for lag in one.lags]
        told = f"{statistics.median(lags):.1f}, at most {max(lags):.1f}" if lags else ""
        print(
            f"| {way} | {statistics.median(one.rate for one in taken):.0f} "
            f"| {statistics.median(ratios):.3f} ({each}) | {told} |"
        )


def descendants(pid: int) -> list[int]:
    """Return ``pid`` and the processes below it; a supervisor has left for the background."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [pid]
    for known in found:
        found += [child for child, parent in parents.items() if parent == known]
    return found


def steps_a_second(path: Path, began: float, ended: float) -> float:
    """Return the step rate between the progress records nearest to two moments (Unix time)."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    inside = [r for r in records if r["phase"] == "training" and began <= r["t"] <= ended]
    return float(inside[-1]["step"] - inside[0]["step"]) / float(inside[-1]["t"] - inside[0]["t"])


def watch(rounds: int) -> None:
    """Print the table of what the watch costs."""
    folder = Path(tempfile.mkdtemp(prefix="train-bench-"))
    given = ["-e", json.dumps(variables(folder))]
    command = [sys.executable, "-m", "train", "run", "--json", "--job", "watched", *given]
    quiet: dict[str, Any] = {"cwd": REPOSITORY, "env": environment(), "stdout": subprocess.DEVNULL}
    progress = folder / "hosts/jobs/watched/worker-0/progress.jsonl"
    pairs = []
    with subprocess.Popen([*command, "--", "--epochs", "1000000"], **quiet) as run:
        try:
            while not (progress.exists() and '"step"' in progress.read_text()):
                time.sleep(0.5)
            for _ in range(rounds * 4):
                rates = {}
                for name in (signal.SIGCONT, signal.SIGSTOP):
                    for pid in descendants(run.pid):
                        os.kill(pid, name)
                    time.sleep(1)
                    began = time.time()
                    time.sleep(5)
                    rates[name] = steps_a_second(progress, began, time.time())
                pairs.append((rates[signal.SIGCONT], rates[signal.SIGSTOP]))
        finally:
            for pid in descendants(run.pid):
                os.kill(pid, signal.SIGCONT)
            stop = [sys.executable, "-m", "train", "stop", "watched", *given]
            subprocess.run(stop, **quiet, check=True)
    shutil.rmtree(folder)
    watched, alone = (statistics.median(rates) for rates in zip(*pairs, strict=True))
    ratios = sorted(one / other for one, other in pairs)
    print("| steps/s watched | not watched | ratio: median of the pairs (least to most) | pairs |")
    print("|---|---|---|---|")
    spread = f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
    print(f"| {watched:.0f} | {alone:.0f} | {spread} | {len(pairs)} |")


MEASUREMENTS: Mapping[str, Callable[[int], None]] = {
    "start": start,
    "rate": rate,
    "watch": watch,
    "throughput": throughput,
    "exchange": exchange,
    "memory": memory,
    "setup": setup,
    "faults": faults,
    "stops": stops,
}


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("what", nargs="*", choices=[*MEASUREMENTS, []], help="(default: all)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="(default: 3)")
    args = parser.parse_args()
    if not PYTHON.exists():
        parser.error(f"there is no {PYTHON}: run `make setup` first")
    for what in args.what or [what for what in MEASUREMENTS if what != "exchange"]:
        MEASUREMENTS[what](args.rounds)


if __name__ == "__main__":
    main()
