"""Measures the launcher against the same two commands typed by hand, in turns.

    make bench                        all of it, about 10 minutes on 2 cores
    python -m bench start --rounds 5  one measurement

Both sides train train/worker.py on two workers of this machine, with the same interpreter, the
same options, number of TensorFlow's threads and options of the allocator.

start   seconds from the command to the first training step
rate    steady steps a second, far from the start; and how late the progress is shown
watch   steps a second of one job while it is watched and while what watches it is halted, in
        turns: finer than rate, whose rounds differ by more than the watch costs
throughput
        steps a second of worker.py against loops written by hand, see bench/loops.py
exchange
        milliseconds of a step between network namespaces with slow links; half an hour, as root,
        and only where it is asked for
pinned  examples a second of two ranks with a core each, against two independent processes
allocator
        milliseconds of a step on one CPU with a job's options of the allocator and without
memory  MiB that training takes with --accumulate, against plain batches
setup   seconds that playbooks/setup.yml takes on 4 and on 16 SSH hosts in Docker that are ready
doctor  seconds that the doctor takes for 4, 16 and 48 SSH hosts in Docker
prediction
        the doctor's prediction of a step against the step, for hosts in Docker with slow links; a
        quarter of an hour, as root, and only where it is asked for
faults  seconds from the kill of a rank until it is seen, its gang stopped, the next attempt trains
stops   seconds that `python -m train stop` takes for 8 ranks on SSH hosts in Docker
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import ranks
from bench.doctor import doctor, prediction
from bench.jobs import faults, setup, stops
from bench.worker import allocator, exchange, memory, pinned, throughput
from tests.support.lab import REPOSITORY, environment
from train.host import processes

#: The progress files of a job's ranks on the control node.
FETCHED = "runs/*/progress/worker-*.jsonl"


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
    lags: Sequence[float]

    def __str__(self) -> str:
        """Return what is shown of it meanwhile."""
        return f"{self.start:.1f} s"


def by_hand(options: Sequence[str], folder: Path) -> list[float]:
    """Start two workers as one does in two terminals."""
    ranks.run_ranks([str(ranks.WORKER), *options], folder)
    return []


def by_playbook(options: Sequence[str], folder: Path) -> list[float]:
    """Run ``ansible-playbook playbooks/train.yml``."""
    ranks.local_lab(folder).playbook("train.yml", train_job_args=list(options)).check_returncode()
    return []


def by_wrapper(options: Sequence[str], folder: Path) -> list[float]:
    """Run ``python -m train run --json``; return the lags."""
    run = ranks.local_lab(folder).start(arguments=options).process
    assert run.stdout is not None
    lags = []
    for line in run.stdout:
        event = json.loads(line)
        if event.get("progress", {}).get("phase") == "training" and event["phase"] == "running":
            lags.append(time.time() - event["progress"]["t"])
    if run.wait():
        raise RuntimeError(f"the wrapper ended with {run.returncode}")
    return lags


#: A network whose step takes about 25 ms: what two trainings of the same command differ by is then
#: a few per cent, not the 12 % of a step of 4 ms.
STEADY = ("--data=synthetic", "--model=mnist-cnn", "--epochs=15", "--evaluate-every=0")

WAYS: Mapping[str, Callable[[Sequence[str], Path], list[float]]] = {
    "by hand": by_hand,
    "ansible-playbook": by_playbook,
    "python -m train": by_wrapper,
}


def measure(options: Sequence[str], rounds: int) -> dict[str, list[Sample]]:
    """Run every way in turn, ``rounds`` times."""

    def sample(way: str) -> Sample:
        with ranks.scratch() as folder:
            began = time.time()
            lags = WAYS[way](options, folder)
            paths = sorted([*folder.glob("*/progress.jsonl"), *folder.glob(FETCHED)])
            trained = [ranks.training(path) for path in paths]
        if not all(trained):
            raise RuntimeError("a rank made no step")
        start = max(found[0]["t"] for found in trained) - began
        return Sample(start, ranks.late_rate(trained[0]), lags)

    return ranks.in_turns(rounds, list(WAYS), sample)


def start(rounds: int) -> None:
    """Print the table of the time to the first step."""
    samples = measure(["--epochs", "2"], rounds)
    starts = {way: [one.start for one in taken] for way, taken in samples.items()}
    hand = statistics.median(starts["by hand"])
    ranks.print_header("way", "first step after, s: median (least to most)", "more than by hand")
    for way, values in starts.items():
        ranks.print_row(way, ranks.spread(values), f"{statistics.median(values) - hand:+.1f} s")


def rate(rounds: int) -> None:
    """Print the table of the step rate, each round's ratio to by hand, and of the lag."""
    samples = measure(STEADY, rounds)
    ratio = "ratio to by hand: median (each round)"
    ranks.print_header("way", "steps/s: median", ratio, "shown after, s")
    for way, taken in samples.items():
        rates = [one.rate for one in taken]
        hand = [one.rate for one in samples["by hand"]]
        lags = [lag for one in taken for lag in one.lags]
        shown = f"{statistics.median(lags):.1f}, at most {max(lags):.1f}" if lags else ""
        ranks.print_row(way, f"{statistics.median(rates):.0f}", ranks.ratios(rates, hand, 3), shown)


def watch(rounds: int) -> None:
    """Print the table of what the watch costs."""
    with ranks.scratch() as folder:
        pairs = watched_and_not(folder, rounds * 4)
    watched, alone = (statistics.median(rates) for rates in zip(*pairs, strict=True))
    ratio = "ratio: median of the pairs (least to most)"
    ranks.print_header("steps/s watched", "not watched", ratio, "pairs")
    shares = [one / other for one, other in pairs]
    ranks.print_row(f"{watched:.0f}", f"{alone:.0f}", ranks.spread(shares, 3), len(pairs))


def watched_and_not(folder: Path, count: int) -> list[tuple[float, float]]:
    """Return the steps a second of one job, watched and while what watches it is halted."""
    lab, name = ranks.local_lab(folder), "watched"
    words = lab.words("run", "--json", "--job", name, arguments=["--epochs", "1000000"])
    progress = folder / f"hosts/jobs/{name}/worker-0/progress.jsonl"

    def send(signum: int) -> None:
        for pid in [run.pid, *processes.descendants([run.pid], processes.snapshot())]:
            os.kill(pid, signum)

    def measured(signum: int) -> float:
        send(signum)
        time.sleep(1)
        began = time.time()
        time.sleep(5)
        new = [record for record in ranks.training(progress) if record["t"] >= began]
        return ranks.steps_per_s(new)

    command = [sys.executable, "-m", "train", *words]
    quiet = subprocess.DEVNULL  # nobody reads it
    with subprocess.Popen(command, cwd=REPOSITORY, env=environment(), stdout=quiet) as run:
        try:
            while not (progress.exists() and '"step"' in progress.read_text()):
                time.sleep(0.5)
            return [(measured(signal.SIGCONT), measured(signal.SIGSTOP)) for _ in range(count)]
        finally:
            send(signal.SIGCONT)
            ranks.stop(lab, name)


_ALL = (
    *(start, rate, watch, throughput, exchange, pinned, allocator, memory, setup, doctor),
    *(prediction, faults, stops),
)
#: What takes long, and the right to change the network.
_NOT_BY_DEFAULT = {"exchange", "prediction"}
MEASUREMENTS = {measurement.__name__: measurement for measurement in _ALL}


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("what", nargs="*", choices=[*MEASUREMENTS, []], help="(default: all)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="(default: 3)")
    args = parser.parse_args()
    if not ranks.PYTHON.exists():
        parser.error(f"there is no {ranks.PYTHON}: run `make setup` first")
    for what in args.what or [name for name in MEASUREMENTS if name not in _NOT_BY_DEFAULT]:
        MEASUREMENTS[what](args.rounds)


if __name__ == "__main__":
    main()
