"""Measures train/worker.py alone: its step rate, exchange and memory."""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median

from bench import ranks
from train.host.rank_environment import ENV_MALLOC, MALLOC_OPTIONS

LOOPS = Path(__file__).with_name("loops.py")
#: Examples per step of each of two pinned processes.
PINNED_BATCH = 64
MODEL, BATCH, EXAMPLES, EPOCHS = "mnist-cnn", 120, 12_000, 20
STEPS = EPOCHS * EXAMPLES // BATCH
#: Checkpoints every few seconds.
OPTIONS = (
    f"--data mnist --model {MODEL} --batch-size {BATCH} --epochs {EPOCHS} --evaluate-every 0 "
    "--checkpoint-every 250 --steps-per-execution 50"
).split()
WAYS = ("bare", "data", "fit", "worker.py")


def make_data(folder: Path) -> None:
    """Write synthetic images and labels in MNIST's format: IDX, 28 x 28 bytes per image."""
    folder.mkdir()
    draw = random.Random(0)
    for part, count in (("train", EXAMPLES), ("t10k", 1000)):
        images = struct.pack(">4i", 0x803, count, 28, 28) + draw.randbytes(count * 28 * 28)
        labels = struct.pack(">2i", 0x801, count) + bytes(draw.choices(range(10), k=count))
        (folder / f"{part}-images-idx3-ubyte").write_bytes(images)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(labels)


def steps_a_second(way: str) -> float:
    """Return the steps per second over the last two thirds of a training."""
    with ranks.scratch() as folder:
        data = folder / "data"
        make_data(data)
        if way == "worker.py":
            ranks.run_ranks([str(ranks.WORKER), *OPTIONS, "--data-dir", str(data)], folder)
            return late_rate(folder)
        options = [way, "mnist", str(data), MODEL, str(BATCH), str(STEPS)]
        ranks.run_ranks([str(LOOPS), *options], folder)
        return float((folder / "0/stdout").read_text().splitlines()[-1])


def late_rate(folder: Path, index: int = 0) -> float:
    """Return the steps per second of a rank over its last two thirds."""
    return ranks.late_rate(ranks.training(folder / f"{index}/progress.jsonl"))


def synthetic(model: str, batch: int, steps: int, *more: str) -> list[str]:
    """Return the command for a training on synthetic examples without evaluation or checkpoints."""
    words = [str(ranks.WORKER), "--data=synthetic", f"--model={model}", "--epochs=1"]
    words += [f"--batch-size={batch}", f"--examples={steps * batch}", "--learning-rate=0.001"]
    return [*words, "--export=none", "--evaluate-every=0", *more]


def throughput(rounds: int) -> None:
    """Compare the steps per second of worker.py with hand-written loops, see bench/loops.py."""
    rates = ranks.in_turns(rounds, WAYS, steps_a_second)
    ranks.print_header("way", "steps/s: median", "ratio to bare: median (each round)")
    for way, found in rates.items():
        ratio = ranks.ratios(found, rates["bare"], 2)
        ranks.print_row(way, f"{median(found):.1f}", ratio)


#: The networks of ``exchange``: four dense layers with 11.5 million weights, and ResNet-56 with
#: 0.85 million.
DENSE = """
import tensorflow as tf

def build_model(shape, classes):
    layers = tf.keras.layers
    inner = [layers.Dense(1700, "relu") for _ in range(3)]
    return tf.keras.Sequential(
        [tf.keras.Input(shape), layers.Flatten(), *inner, layers.Dense(classes)]
    )
"""
#: The number of steps for each of these networks.
NETWORKS = {"dense": 30, "resnet56": 40}
RATES = ("1gbit", "100mbit")
PRECISIONS = ("float32", "bfloat16")
BRIDGE, PREFIX = "train-bench", "10.231.7"


def _run(*words: str) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


@contextmanager
def namespaces(count: int, rate: str) -> Iterator[list[str]]:
    """Create network namespaces on a bridge with links of ``rate``; remove them at the end."""
    names = [f"{BRIDGE}-{number}" for number in range(count)]
    # Docker makes the kernel drop packets that a bridge forwards.
    forward = ["FORWARD", "-i", BRIDGE, "-o", BRIDGE, "-j", "ACCEPT"]
    # A namespace removes its end of a link some time later.
    undo = [["ip", "link", "delete", f"tb{number}o"] for number in range(count)]
    undo += [["ip", "netns", "delete", name] for name in names]
    undo.append(["ip", "link", "delete", BRIDGE])
    try:
        if shutil.which("iptables"):
            undo.append(["iptables", "-D", *forward])
            _run("iptables", "-I", *forward)
        _run("ip", "link", "add", BRIDGE, "type", "bridge")
        _run("ip", "link", "set", BRIDGE, "up")
        for number, name in enumerate(names):
            outer, inner = f"tb{number}o", f"tb{number}i"
            _run("ip", "netns", "add", name)
            _run("ip", "link", "add", outer, "type", "veth", "peer", inner, "netns", name)
            _run("ip", "link", "set", outer, "master", BRIDGE, "up")
            _run("ip", "-n", name, "address", "add", f"{PREFIX}.{number + 1}/24", "dev", inner)
            for link in ("lo", inner):
                _run("ip", "-n", name, "link", "set", link, "up")
            limit = ("rate", rate, "burst", "256kb", "latency", "100ms")
            _run("tc", "-n", name, "qdisc", "add", "dev", inner, "root", "tbf", *limit)
        yield names
    finally:
        for words in undo:
            with suppress(subprocess.CalledProcessError):
                _run(*words)


def small_steps(network: str, batch: int, folder: Path, *more: str) -> list[str]:
    """Return the command for a training in single steps with few examples."""
    (folder / "dense.py").write_text(DENSE, encoding="utf-8")
    model = f"{folder}/dense.py" if network == "dense" else network
    return synthetic(model, batch, NETWORKS[network], "--steps-per-execution=1", *more)


def step_ms(network: str, workers: int, rate: str, precision: str) -> float:
    """Return the milliseconds per step of a number of workers, whose links have ``rate``."""
    with ranks.scratch() as folder, namespaces(workers, rate) as names:
        words = small_steps(network, 8 * workers, folder, f"--exchange-precision={precision}")
        addresses = [f"{PREFIX}.{number + 1}:12345" for number in range(workers)]
        inside = [["ip", "netns", "exec", name] for name in names]
        ranks.run_ranks(words, folder, addresses, inside, threads=1)
        return 1000 / late_rate(folder)


def memory_kept_ms(network: str, kept: bool) -> float:
    """Return the milliseconds per step of one process.

    If ``kept``, it has a job's allocator options, and otherwise glibc's defaults.
    """
    with ranks.scratch() as folder:
        own = {} if kept else {ENV_MALLOC: ""}
        words = small_steps(network, 8, folder)
        ranks.run_ranks(words, folder, ranks.ADDRESSES[:1], threads=1, variables=own)
        return 1000 / late_rate(folder)


def allocator(rounds: int) -> None:
    """Measure the milliseconds per step on one CPU with and without a job's allocator options."""
    ranks.print_header("network", "ms per step", "with glibc's defaults", "times faster")
    for network in NETWORKS:
        found = ranks.in_turns(rounds, (True, False), partial(memory_kept_ms, network))
        kept, returned = (median(found[case]) for case in (True, False))
        ranks.print_row(network, f"{kept:.0f}", f"{returned:.0f}", f"{returned / kept:.2f}")


def exchange(rounds: int) -> None:
    """Measure the milliseconds per step between network namespaces with slow links.

    This takes 30 minutes, needs root, and runs only on request.
    """
    if os.geteuid():
        raise SystemExit("bench exchange creates network namespaces: run it as root")
    cases = [(n, w, r) for n in NETWORKS for w in (2, 4) for r in RATES]
    times = ("float32, ms per step", "bfloat16", "times faster")
    ranks.print_header("network", "workers", "link", *times)
    for case in cases:
        found = ranks.in_turns(rounds, PRECISIONS, partial(step_ms, *case))
        whole, half = (median(found[precision]) for precision in PRECISIONS)
        ranks.print_row(*case, f"{whole:.0f}", f"{half:.0f}", f"{whole / half:.2f}")


def examples_a_second(together: bool) -> float:
    """Return the examples per second of two processes that train ResNet-20 on one core each.

    They are a gang if ``together`` is set, and otherwise independent.
    """
    with ranks.scratch() as folder:
        batch = PINNED_BATCH * (2 if together else 1)
        words = synthetic("resnet20", batch, 30)
        pins = [["taskset", "-c", str(core)] for core in sorted(os.sched_getaffinity(0))[:2]]
        ranks.run_ranks(words, folder, prefixes=pins, threads=1, together=together)
        return PINNED_BATCH * sum(late_rate(folder, index) for index in range(2))


def pinned(rounds: int) -> None:
    """Compare the examples per second of two ranks and of two independent processes.

    Each of them has its own core.
    """
    found = ranks.in_turns(rounds, (True, False), examples_a_second)
    ranks.print_header("two processes", "examples/s: median", "ratio: median (each round)")
    for together, rates in found.items():
        ratio = ranks.ratios(rates, found[False], 2)
        name = "a gang" if together else "independent"
        ranks.print_row(name, f"{median(rates):.0f}", ratio)


#: Batch size and parts; the others are compared with the first.
CASES = ((128, 1), (1024, 8), (1024, 1))


def most_mb(case: tuple[int, int]) -> float:
    batch, parts = case
    others = (f"--accumulate={parts}", "--evaluate-every=1", "--learning-rate=0.01")
    words = synthetic("resnet20", batch, 2048 // batch, *others)
    given = {**os.environ, ENV_MALLOC: MALLOC_OPTIONS}
    quiet = subprocess.DEVNULL
    command = [str(ranks.PYTHON), *words]
    with (
        ranks.scratch() as folder,
        subprocess.Popen(command, cwd=folder, env=given, stdout=quiet, stderr=quiet) as run,
    ):
        _, status, usage = os.wait4(run.pid, 0)
        run.returncode = os.waitstatus_to_exitcode(status)
    if run.returncode:
        raise RuntimeError(f"worker.py ended with {run.returncode}")
    return usage.ru_maxrss / 1024


def memory(rounds: int) -> None:
    """Compare the memory (MiB) of training with --accumulate and with plain batches."""
    found = ranks.in_turns(rounds, CASES, most_mb)
    plain = median(found[CASES[0]])
    ranks.print_header("batch", "parts", "peak MiB", "ratio to a plain batch of the part's size")
    for case, values in found.items():
        middle = median(values)
        ranks.print_row(*case, f"{middle:.0f}", f"{middle / plain:.2f}")
