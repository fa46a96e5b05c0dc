"""Compare the launcher with two commands typed by hand, in turns.

    make bench                        all measurements, about 10 minutes on 2 cores
    python -m bench start --rounds 5  one measurement

Both run train/worker.py with two workers on this machine, with the same interpreter, options,
number of TensorFlow threads and allocator settings.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench import ranks
from bench.commands import commands
from bench.jobs import doctor, faults, prediction, setup, stops
from bench.remote import remote
from bench.scale import scale
from bench.worker import allocator, exchange, memory, pinned, throughput
from tests.support.lab import REPOSITORY, environment
from train.gang import suggestions
from train.host import processes

#: The progress files of a job's ranks on the control node.
FETCHED = "runs/*/progress/worker-*.jsonl"


@dataclass
class Sample:
    """One training."""

    start: float  # seconds from the command to the first step of the slower rank
    rate: float  # steps per second of the chief over the last two thirds
    lags: Sequence[float] = field(repr=False)  # seconds from each record until it was shown


def by_hand(options: Sequence[str], folder: Path) -> list[float]:
    ranks.run_ranks([str(ranks.WORKER), *options], folder)
    return []


def by_playbook(options: Sequence[str], folder: Path) -> list[float]:
    ranks.local_lab(folder).playbook("train.yml", train_job_args=list(options)).check_returncode()
    return []


def by_wrapper(options: Sequence[str], folder: Path) -> list[float]:
    """Run ``python -m train run --json``; return the seconds from each record to its output."""
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


#: A network with steps of about 25 ms. Two trainings with the same command differ by only a few per
#: cent, not by 12 % as with steps of 4 ms.
STEADY = ("--data=synthetic", "--model=mnist-cnn", "--epochs=15", "--evaluate-every=0")

WAYS: Mapping[str, Callable[[Sequence[str], Path], list[float]]] = {
    "by hand": by_hand,
    "ansible-playbook": by_playbook,
    "python -m train": by_wrapper,
}


def measure(options: Sequence[str], rounds: int) -> dict[str, list[Sample]]:
    def sample(way: str) -> Sample:
        with ranks.scratch() as folder:
            began = time.time()
            lags = WAYS[way](options, folder)
            paths = sorted([*folder.glob("*/progress.jsonl"), *folder.glob(FETCHED)])
            trained = [ranks.training(path) for path in paths]
        if not all(trained):
            raise RuntimeError("a rank completed no steps")
        start = max(found[0]["t"] for found in trained) - began
        return Sample(round(start, 2), round(ranks.late_rate(trained[0]), 2), lags)

    return ranks.in_turns(rounds, list(WAYS), sample)


def start(rounds: int) -> None:
    """Measure the seconds from the command to the first training step."""
    samples = measure(["--epochs", "2"], rounds)
    starts = {way: [one.start for one in taken] for way, taken in samples.items()}
    hand = median(starts["by hand"])
    ranks.print_header("way", "first step after, s: median (least to most)", "more than by hand")
    for way, values in starts.items():
        ranks.print_row(way, ranks.spread(values), f"{median(values) - hand:+.1f} s")


def rate(rounds: int) -> None:
    """Measure the steps per second after startup, and the delay of the progress display."""
    samples = measure(STEADY, rounds)
    hand = [one.rate for one in samples["by hand"]]
    ratio = "ratio to by hand: median (each round)"
    ranks.print_header("way", "steps/s: median", ratio, "shown after, s")
    for way, taken in samples.items():
        rates = [one.rate for one in taken]
        lags = [lag for one in taken for lag in one.lags]
        shown = f"{median(lags):.1f}, at most {max(lags):.1f}" if lags else ""
        ranks.print_row(way, f"{median(rates):.0f}", ranks.ratios(rates, hand, 3), shown)


def watch(rounds: int) -> None:
    """Measure the steps per second of a job, alternately with and without its watch.

    This is more precise than ``rate``, whose rounds differ by more than the watch costs.
    """
    with ranks.scratch() as folder:
        pairs = watched_and_not(folder, rounds * 4)
    watched, alone = (median(rates) for rates in zip(*pairs, strict=True))
    ratio = "ratio: median of the pairs (least to most)"
    ranks.print_header("steps/s watched", "not watched", ratio, "pairs")
    shares = [one / other for one, other in pairs]
    ranks.print_row(f"{watched:.0f}", f"{alone:.0f}", ranks.spread(shares, 3), len(pairs))


def watched_and_not(folder: Path, count: int) -> list[tuple[float, float]]:
    """Return pairs of a job's steps per second: with its watch, and with the watch suspended."""
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
        return ranks.steps_per_s([one for one in ranks.training(progress) if one["t"] >= began])

    command = [sys.executable, "-m", "train", *words]
    quiet = subprocess.DEVNULL  # the output is not needed
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
    *(prediction, faults, stops, commands, scale, remote),
)
#: Measurements that take long, need the right to change the network, or overload a small machine.
_NOT_BY_DEFAULT = {"commands", "exchange", "prediction", "remote", "scale"}
MEASUREMENTS = {measurement.__name__: measurement for measurement in _ALL}


def main() -> None:
    about = [f"{name}: {' '.join(str(one.__doc__).split())}" for name, one in MEASUREMENTS.items()]
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="\n".join([str(__doc__), *about]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "what", nargs="*", choices=[*MEASUREMENTS, []], help="measurements (default: all)"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="rounds per measurement (default: 3)"
    )
    args = parser.parse_args()
    if not ranks.PYTHON.exists():
        setup = suggestions.command("setup", tags="tensorflow")
        parser.error(f"{ranks.PYTHON} does not exist: run `{setup}` first")
    for what in args.what or [name for name in MEASUREMENTS if name not in _NOT_BY_DEFAULT]:
        MEASUREMENTS[what](args.rounds)


if __name__ == "__main__":
    main()
