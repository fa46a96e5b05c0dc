"""Two ranks on this machine, started without the launcher."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
WORKER = REPOSITORY / "train/worker.py"
PYTHON = Path("~/train/venv/bin/python").expanduser()
PORTS = (12345, 23456)
#: What the supervisor gives each of two ranks on one machine.
_EACH = str(max(1, (os.cpu_count() or 1) // 2))
THREADS = {"TF_NUM_INTRAOP_THREADS": _EACH, "TF_NUM_INTEROP_THREADS": _EACH}


def run_ranks(command: Sequence[str], folder: Path) -> list[str]:
    """Run a Python program as two workers to their end, each in a folder of its own.

    Args:
        command: the program and its arguments.
        folder: gets the folders ``0`` and ``1``, with ``progress.jsonl`` of each.

    Returns:
        What each wrote to standard output.

    Raises:
        RuntimeError: a rank failed.
    """
    addresses = [f"localhost:{port}" for port in PORTS]
    ranks = []
    for index in range(2):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        cwd = folder / str(index)
        cwd.mkdir()
        environment = {
            **os.environ,
            "TF_CONFIG": json.dumps(task),
            "TRAIN_PROGRESS_FILE": str(cwd / "progress.jsonl"),
            **THREADS,
        }
        with (cwd / "stdout").open("wb") as output:
            ranks.append(
                subprocess.Popen(
                    [str(PYTHON), *command],
                    cwd=cwd,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # as a terminal; Linux shares out time by sessions
                )
            )
    for rank in ranks:
        if rank.wait():
            raise RuntimeError(f"a rank of {command[0]} ended with {rank.returncode}")
    return [(folder / str(index) / "stdout").read_text() for index in range(2)]
