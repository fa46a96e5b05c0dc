"""Measures ``playbooks/setup.yml`` on SSH hosts in Docker on which nothing is to be changed."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.testbed import Mount, running_testbed
from tests.testbed.wheelhouse import fill_wheelhouse

REPOSITORY = Path(__file__).resolve().parents[1]
CACHE = REPOSITORY / ".cache"
COUNTS = (4, 16)


def play(inventory: Path) -> str:
    """Run the playbook and return its output.

    Raises:
        RuntimeError: it failed; with the end of its output.
    """
    bin_dir = Path(sys.executable).parent
    # Containers reach no time server.
    given = {"tensorflow_wheelhouse": "/wheelhouse", "clock_sync_source": "host-0"}
    command = [str(bin_dir / "ansible-playbook"), "playbooks/setup.yml", "-i", str(inventory)]
    done = subprocess.run(
        [*command, "-e", json.dumps(given)],
        cwd=REPOSITORY,
        env={**os.environ, "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stdout[-3000:])
    return done.stdout


def setup(rounds: int) -> None:
    """Print the table of the time that set-up takes on hosts that are ready.

    Raises:
        RuntimeError: the playbook failed, or changed something.
    """
    fill_wheelhouse(CACHE / "wheelhouse-3.11")
    (CACHE / "testbed-venvs").mkdir(exist_ok=True)
    mounts = [
        Mount.parse(f"{CACHE / 'testbed-venvs'}:/home/train/train/venvs"),
        Mount.parse(f"{CACHE / 'wheelhouse-3.11'}:/wheelhouse:ro"),
    ]
    medians = {}
    print("| ready hosts | s: median (least to most) | of 4 hosts |")
    print("|---|---|---|")
    for count in COUNTS:
        with (
            tempfile.TemporaryDirectory(prefix="train-bench-") as folder,
            running_testbed(count, Path(folder), mounts=mounts, systemd=True) as bed,
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
