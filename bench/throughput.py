"""Steps a second of worker.py, with progress and checkpoints, against loops written by hand."""

from __future__ import annotations

import json
import random
import shutil
import statistics
import struct
import sys
import tempfile
from pathlib import Path

from bench.ranks import REPOSITORY, WORKER, run_ranks

LOOPS = REPOSITORY / "bench/loops.py"
MODEL, BATCH, EXAMPLES, EPOCHS = "mnist-cnn", 120, 12_000, 20
STEPS = EPOCHS * EXAMPLES // BATCH
#: Checkpoints every few seconds.
OPTIONS = (
    f"--data mnist --model {MODEL} --batch-size {BATCH} --epochs {EPOCHS} --evaluate-every 0 "
    "--checkpoint-every 250 --steps-per-execution 50"
).split()
WAYS = ("bare", "data", "fit", "worker.py")


def make_data(folder: Path) -> None:
    """Write made-up images and labels as MNIST's files are: IDX, 28 x 28 bytes an image."""
    folder.mkdir()
    draw = random.Random(0)
    for part, count in (("train", EXAMPLES), ("t10k", 1000)):
        images = struct.pack(">4i", 0x803, count, 28, 28) + draw.randbytes(count * 28 * 28)
        labels = struct.pack(">2i", 0x801, count) + bytes(draw.choices(range(10), k=count))
        (folder / f"{part}-images-idx3-ubyte").write_bytes(images)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(labels)


def one(way: str) -> float:
    """Return the steps a second over the last two thirds of a training."""
    folder = Path(tempfile.mkdtemp(prefix="train-bench-"))
    data = folder / "data"
    try:
        make_data(data)
        if way != "worker.py":
            said = run_ranks(
                [str(LOOPS), way, "mnist", str(data), MODEL, str(BATCH), str(STEPS)], folder
            )
            return float(json.loads(said[0].splitlines()[-1])["steps_per_s"])
        run_ranks([str(WORKER), *OPTIONS, "--data-dir", str(data)], folder)
        lines = (folder / "0/progress.jsonl").read_text().splitlines()
    finally:
        shutil.rmtree(folder)
    records = [r for r in map(json.loads, lines) if r["phase"] == "training"]
    late = [record for record in records if record["step"] > STEPS / 3]
    steps: int = late[-1]["step"] - late[0]["step"]
    return steps / float(late[-1]["t"] - late[0]["t"])


def throughput(rounds: int) -> None:
    """Print the table of the step rates, and each round's ratio to the bare loop."""
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for way in WAYS:
            rates[way].append(one(way))
            print(f"round {number + 1}: {way}: {rates[way][-1]:.1f} steps/s", file=sys.stderr)
    print("| way | steps/s: median | ratio to bare: median (each round) |")
    print("|---|---|---|")
    for way, found in rates.items():
        ratios = [rate / bare for rate, bare in zip(found, rates["bare"], strict=True)]
        each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        median = statistics.median(ratios)
        print(f"| {way} | {statistics.median(found):.1f} | {median:.2f} ({each}) |")
