"""What the exchange of gradients costs on slow links: worker.py between network namespaces.

Each rank has a network namespace of its own on a bridge, its sending limited by ``tc``. Root only.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.ranks import PYTHON, WORKER

#: The networks: 11.5 million weights in four dense layers, and ResNet-56 with 0.85 million.
DENSE = """
import tensorflow as tf

def build_model(shape, classes):
    layers = tf.keras.layers
    inner = [layers.Dense(1700, "relu") for _ in range(3)]
    return tf.keras.Sequential(
        [tf.keras.Input(shape), layers.Flatten(), *inner, layers.Dense(classes)]
    )
"""
NETWORKS = ("dense", "resnet56")
RATES = ("1gbit", "100mbit")
PRECISIONS = ("float32", "bfloat16")
BRIDGE, PREFIX = "train-bench", "10.231.7"
STEPS = {"dense": 30, "resnet56": 40}


def _run(*words: str) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


@contextmanager
def namespaces(count: int, rate: str) -> Iterator[list[str]]:
    """Make network namespaces whose links send ``rate``, and remove them."""
    names = [f"{BRIDGE}-{number}" for number in range(count)]
    # Docker has the kernel drop what a bridge forwards.
    forward = ["FORWARD", "-i", BRIDGE, "-o", BRIDGE, "-j", "ACCEPT"]
    with_docker = shutil.which("iptables") is not None
    try:
        if with_docker:
            _run("iptables", "-I", *forward)
        _run("ip", "link", "add", BRIDGE, "type", "bridge")
        _run("ip", "link", "set", BRIDGE, "up")
        for number, name in enumerate(names):
            outer, inner = f"tb{number}o", f"tb{number}i"
            _run("ip", "netns", "add", name)
            _run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner)
            _run("ip", "link", "set", outer, "master", BRIDGE, "up")
            _run("ip", "link", "set", inner, "netns", name)
            inside = ("ip", "netns", "exec", name)
            _run(*inside, "ip", "address", "add", f"{PREFIX}.{number + 1}/24", "dev", inner)
            _run(*inside, "ip", "link", "set", "lo", "up")
            _run(*inside, "ip", "link", "set", inner, "up")
            limit = ("rate", rate, "burst", "256kb", "latency", "100ms")
            _run(*inside, "tc", "qdisc", "add", "dev", inner, "root", "tbf", *limit)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)
        subprocess.run(["ip", "link", "delete", BRIDGE], check=False, stderr=subprocess.DEVNULL)
        if with_docker:
            subprocess.run(["iptables", "-D", *forward], check=False, stderr=subprocess.DEVNULL)


def step_ms(
    network: str, workers: int, rate: str, options: Sequence[str], worker: Path = WORKER
) -> float:
    """Return the milliseconds of a step of a training, over its later two thirds."""
    folder = Path(tempfile.mkdtemp(prefix="train-bench-"))
    (folder / "dense.py").write_text(DENSE, encoding="utf-8")
    steps = STEPS[network]
    model = f"{folder}/dense.py" if network == "dense" else network
    words = [str(PYTHON), str(worker), "--data=synthetic", f"--model={model}", "--epochs=1"]
    words += [f"--batch-size={8 * workers}", f"--examples={8 * workers * steps}", "--export=none"]
    words += ["--evaluate-every=0", "--learning-rate=0.001", "--steps-per-execution=1", *options]
    try:
        with namespaces(workers, rate) as names:
            addresses = [f"{PREFIX}.{number + 1}:12345" for number in range(workers)]
            ranks = []
            for index, name in enumerate(names):
                task = {
                    "cluster": {"worker": addresses},
                    "task": {"type": "worker", "index": index},
                }
                cwd = folder / str(index)
                cwd.mkdir()
                environment = {
                    **os.environ,
                    "TF_CONFIG": json.dumps(task),
                    "TRAIN_PROGRESS_FILE": str(cwd / "progress.jsonl"),
                    "TF_NUM_INTRAOP_THREADS": "1",
                    "TF_NUM_INTEROP_THREADS": "1",
                }
                ranks.append(
                    subprocess.Popen(
                        ["ip", "netns", "exec", name, *words],
                        cwd=cwd,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                    )
                )
            codes = [rank.wait() for rank in ranks]
            if any(codes):
                raise RuntimeError(f"a rank of {network} failed")
        lines = (folder / "0/progress.jsonl").read_text(encoding="utf-8").splitlines()
    finally:
        shutil.rmtree(folder)
    records = [r for r in map(json.loads, lines) if r["phase"] == "training"]
    late = [record for record in records if record["step"] >= steps / 3]
    return 1000 * float(late[-1]["t"] - late[0]["t"]) / int(late[-1]["step"] - late[0]["step"])


def exchange(rounds: int) -> None:
    """Print the table of step times by network, workers, link and precision of the exchange."""
    if os.geteuid():
        raise SystemExit("bench exchange makes network namespaces: run it as root")
    cases = [(n, w, r) for n in NETWORKS for w in (2, 4) for r in RATES]
    print("| network | workers | link | float32, ms a step | bfloat16 | times faster |")
    print("|---|---|---|---|---|---|")
    for network, workers, rate in cases:
        found: Mapping[str, list[float]] = {precision: [] for precision in PRECISIONS}
        for number in range(rounds):
            for precision in PRECISIONS:
                options = [f"--exchange-precision={precision}"]
                found[precision].append(step_ms(network, workers, rate, options))
            print(f"round {number + 1}: {network}, {workers}, {rate}", file=sys.stderr)
        whole, half = (statistics.median(found[precision]) for precision in PRECISIONS)
        print(
            f"| {network} | {workers} | {rate} | {whole:.0f} | {half:.0f} | {whole / half:.2f} |",
            flush=True,
        )
