"""The memory that a training takes when its batches are computed in parts."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path

from bench.ranks import PYTHON, WORKER

OPTIONS = (
    *("--data=synthetic", "--model=resnet20", "--examples=2048", "--epochs=1"),
    *("--export=none", "--learning-rate=0.01"),
)
#: Batch size and parts; the first one is what the others are compared with.
CASES = ((128, 1), (1024, 8), (1024, 1))


def most_mb(batch_size: int, parts: int) -> float:
    """Return the most memory that a training held, in MiB."""
    folder = Path(tempfile.mkdtemp(prefix="train-bench-"))
    try:
        command = [str(PYTHON), str(WORKER), *OPTIONS]
        command += [f"--batch-size={batch_size}", f"--accumulate={parts}"]
        with subprocess.Popen(
            command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as run:
            _, status, usage = os.wait4(run.pid, 0)
            run.returncode = os.waitstatus_to_exitcode(status)
        if run.returncode:
            raise RuntimeError(f"worker.py ended with {run.returncode}")
    finally:
        shutil.rmtree(folder)
    return usage.ru_maxrss / 1024


def memory(rounds: int) -> None:
    """Print the table of the memory by batch size and parts."""
    found: dict[tuple[int, int], list[float]] = {case: [] for case in CASES}
    for _ in range(rounds):
        for case in CASES:
            found[case].append(most_mb(*case))
    plain = statistics.median(found[CASES[0]])
    print("| batch | parts | MiB at most | of a plain batch of the part's size |")
    print("|---|---|---|---|")
    for (batch, parts), values in found.items():
        middle = statistics.median(values)
        print(f"| {batch} | {parts} | {middle:.0f} | {middle / plain:.2f} |")
