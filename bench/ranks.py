"""Code that the measurements share: ranks without the launcher, their progress, tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from tests.support.lab import REPOSITORY, Command, Lab
from train.host.progress_records import Progress
from train.host.rank_environment import ENV_MALLOC, MALLOC_OPTIONS

Case = TypeVar("Case")
Found = TypeVar("Found")

WORKER = REPOSITORY / "train/worker.py"
PYTHON = Path("~/train/venv/bin/python").expanduser()
ADDRESSES = ("localhost:12345", "localhost:23456")
#: Number of threads that the supervisor assigns to each of two ranks on a machine.
THREADS = max(1, (os.cpu_count() or 1) // 2)


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="train-bench-") as name:
        yield Path(name)


def local_lab(folder: Path) -> Lab:
    """Return a lab with the two workers of inventory/local, whose jobs are stored in ``folder``."""
    given = {"train_job_root": str(folder / "hosts")}
    return Lab(REPOSITORY / "inventory/local", folder / "runs", given)


def stop(lab: Lab, job: str) -> float:
    """Stop a job and return the seconds until it ended."""
    done = Command(*lab.words("stop", job)).end()
    if done.code:
        raise RuntimeError(f"stop ended with {done.code}: {done.error}")
    return done.seconds


def run_ranks(
    command: Sequence[str],
    folder: Path,
    addresses: Sequence[str] = ADDRESSES,
    prefixes: Sequence[Sequence[str]] = (),
    threads: int = THREADS,
    together: bool = True,
    variables: Mapping[str, str] = {},
) -> None:
    """Run a Python program as several workers and wait until they end.

    They are a gang if ``together`` is set, and otherwise independent. In ``folder``, each worker
    writes ``progress.jsonl`` and ``stdout`` into a folder ``0``, ``1`` and so on. TensorFlow gets
    ``threads`` threads, and a job's allocator options unless ``variables`` overrides them. If there
    are ``prefixes``, each worker's command begins with its prefix. Raise RuntimeError if a worker
    fails.
    """
    ranks = []
    for index in range(len(addresses)):
        members = addresses if together else [addresses[index]]
        number = index if together else 0
        task = {"cluster": {"worker": members}, "task": {"type": "worker", "index": number}}
        cwd = folder / str(index)
        cwd.mkdir()
        prefix = prefixes[index] if prefixes else ()
        environment = {
            **os.environ,
            "TF_CONFIG": json.dumps(task),
            "TRAIN_PROGRESS_FILE": str(cwd / "progress.jsonl"),
            "TF_NUM_INTRAOP_THREADS": str(threads),
            "TF_NUM_INTEROP_THREADS": str(threads),
            **{ENV_MALLOC: MALLOC_OPTIONS, **variables},
        }
        words = [*prefix, str(PYTHON), *command]
        # A separate session, as in a terminal, because Linux shares CPU time between sessions.
        given: dict[str, Any] = {"cwd": cwd, "env": environment, "start_new_session": True}
        quiet = subprocess.DEVNULL
        with (cwd / "stdout").open("wb") as output:
            run = subprocess.Popen(words, stdin=quiet, stdout=output, stderr=quiet, **given)
        ranks.append(run)
    codes = [rank.wait() for rank in ranks]
    if any(codes):
        raise RuntimeError(f"the ranks of {command[0]} ended with {codes}")


def in_turns(
    rounds: int, cases: Sequence[Case], measure: Callable[[Case], Found]
) -> dict[Case, list[Found]]:
    """Return the results of ``measure`` for each case; the cases alternate."""
    found: dict[Case, list[Found]] = {case: [] for case in cases}
    for number in range(rounds):
        for case in cases:
            found[case].append(measure(case))
            print(f"round {number + 1}: {case}: {found[case][-1]}", file=sys.stderr)
    return found


def training(progress: Path) -> list[Progress]:
    """Return the records in a progress file that were written during training."""
    found = map(json.loads, progress.read_text(encoding="utf-8").splitlines())
    return [record for record in found if record["phase"] == "training"]


def steps_per_s(records: Sequence[Progress]) -> float:
    seconds = records[-1]["t"] - records[0]["t"]
    steps = records[-1]["step"] - records[0]["step"]
    return steps / seconds if seconds else float("nan")


def late_rate(records: Sequence[Progress]) -> float:
    """Return the steps per second over the last two thirds."""
    return steps_per_s([record for record in records if record["step"] > records[-1]["step"] / 3])


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Return ``median (minimum to maximum)``."""
    middle, least, most = (f"{f(values):.{digits}f}" for f in (median, min, max))
    return f"{middle} ({least} to {most})"


def ratios(values: Sequence[float], base: Sequence[float], digits: int) -> str:
    """Return the ratio of a value to its base in each round: ``median (first, second, ...)``."""
    found = [value / of for value, of in zip(values, base, strict=True)]
    each = ", ".join(f"{ratio:.{digits}f}" for ratio in found)
    return f"{median(found):.{digits}f} ({each})"


def print_row(*cells: object) -> None:
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def print_header(*cells: str) -> None:
    print_row(*cells)
    print("|---" * len(cells) + "|", flush=True)
