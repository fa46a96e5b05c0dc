"""Measures ``playbooks/setup.yml`` on SSH hosts in Docker on which nothing is to be changed."""

from __future__ import annotations

import re
import statistics
import tempfile
import time
from pathlib import Path

from tests.support.lab import ansible_playbook, tensorflow_mounts
from tests.support.testbed import running_testbed

COUNTS = (4, 16)
#: Containers reach no time server.
GIVEN = {"tensorflow_wheelhouse": "/wheelhouse", "clock_sync_source": "host-0"}


def play(inventory: Path) -> str:
    """Run the playbook and return its output.

    Raises:
        RuntimeError: it failed; with the end of its output.
    """
    done = ansible_playbook("setup.yml", inventory, GIVEN, timeout=900)
    if done.returncode:
        raise RuntimeError(done.stdout[-3000:])
    return done.stdout


def setup(rounds: int) -> None:
    """Print the table of the time that set-up takes on hosts that are ready.

    Raises:
        RuntimeError: the playbook failed, or changed something.
    """
    medians = {}
    print("| ready hosts | s: median (least to most) | of 4 hosts |")
    print("|---|---|---|")
    for count in COUNTS:
        with (
            tempfile.TemporaryDirectory(prefix="train-bench-") as folder,
            running_testbed(count, Path(folder), mounts=tensorflow_mounts(), systemd=True) as bed,
        ):
            play(bed.directory / "inventory")
            taken = []
            for _ in range(rounds):
                began = time.monotonic()
                shown = play(bed.directory / "inventory")
                taken.append(time.monotonic() - began)
                if re.search(r"changed=[1-9]", shown):
                    raise RuntimeError(f"something was changed again: {shown[-3000:]}")
        taken.sort()
        medians[count] = statistics.median(taken)
        ratio = medians[count] / medians[COUNTS[0]]
        spread = f"{medians[count]:.1f} ({taken[0]:.1f} to {taken[-1]:.1f})"
        print(f"| {count} | {spread} | {ratio:.2f} |", flush=True)
