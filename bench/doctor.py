"""Measures the doctor: what it takes on ever more hosts, and how well it predicts a training."""

from __future__ import annotations

import os
import resource
import statistics
import sys
from contextlib import ExitStack

from bench.ranks import print_header, print_row, scratch, spread
from tests.support.faults import slow_network
from tests.support.lab import Command, Lab, Run, tensorflow_testbed
from tests.support.testbed import running_testbed

COUNTS = (4, 16, 48)
#: What is examined, and the bar in seconds for 16 hosts.
EXAMINED = {("--quick",): "10", ("--only", "pairs"): "30"}


def _examine(lab: Lab, *options: str) -> Run:
    done = Command(*lab.words("doctor", *options, "--json")).end()
    if not done.events:
        raise RuntimeError(done.error)
    return done


def _cpu() -> float:
    """Return the CPU seconds of this process's children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def doctor(rounds: int) -> None:
    """Print the table of the doctor's time on hosts in Docker, which share this machine."""
    print_header("doctor", "hosts", "s: median (least to most)", "bar", "CPU s here, a host")
    for count in COUNTS:
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
                print_row(name, count, spread(seconds), limit, f"{statistics.median(cpu):.2f}")


#: What is trained, and the rate of each host's link.
TRAINED, LINKS = ("mnist-cnn", "resnet20"), ("1gbit", "100mbit")
#: The part of a core that each of four hosts has, in slices of some milliseconds: a fifth of this
#: machine is left for what they share.
_PART, _SLICE_US = 0.2 * (os.cpu_count() or 1), 5_000


def prediction(rounds: int) -> None:
    """Print the table of the predicted time of a step against the time that it took."""
    limits = [f"--cpu-period={_SLICE_US}", f"--cpu-quota={int(_PART * _SLICE_US)}"]
    print_header("network", "link", "hosts", "ms a step", "predicted", "ratio")
    with scratch() as folder, tensorflow_testbed(4, folder, options=limits) as bed:
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
