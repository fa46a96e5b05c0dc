"""Ranks under their supervisors, without Ansible or a control node."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.lab import REPOSITORY
from train.host import json_files, rank_files, records


def stage(folder: Path, task: str, script: Path, *arguments: str, **fields: Any) -> Path:
    """Create the folder of a rank that runs ``script``, and return it.

    Args:
        fields: of ``rank.json``, overriding the defaults.
    """
    rank_dir = folder / "jobs/bare" / task
    rank_dir.mkdir(parents=True)
    (rank_dir / rank_files.CODE_DIR).symlink_to(script.parent)
    spec = {
        "job": "bare",
        "task": task,
        "host": task,
        "attempt": 1,
        "results_dir": str(rank_dir),
        "checkpoint_dir": "",
        "checkpoint_copy": False,
        "port": None,
        "non_training": False,
        "ranks_on_machine": 1,
        "gpus": None,
        "visible_gpus": None,
        "framework": "tensorflow",
        "rank_environment": {"TRAIN_RANK": "0", "TRAIN_WORLD_SIZE": "1", "TRAIN_HOSTS": "a:1"},
        "python": sys.executable,
        "argv": [script.name, *arguments],
        "environment": {},
        "keras": 2,
        "seed": 0,
        "start_timeout": 60,
        "start_idle_timeout": 60,
        "start_wait_timeout": 60,
        "max_runtime": 0,
        "hang_factor": 0.0,
        "hang_min_seconds": 0.0,
        "exit_timeout": 0.0,
        "collect": [],
        "grace": 1.0,
        "preemption": "off",
        "log_limit": 0,
        "leases": {"created_at": 1.0, "folder": str(folder), "resources": {}, "tokens": {}},
    }
    (rank_dir / rank_files.RANK_FILE).write_text(json.dumps({**spec, **fields}))
    (rank_dir / rank_files.TF_CONFIG_FILE).write_text("{}")
    return rank_dir


def start(rank_dir: Path, mark: int | None = None) -> None:
    """Start the supervisor of a rank.

    Args:
        mark: the number by which ``marked`` finds all its processes.
    """

    def prepare() -> None:
        if mark is not None:
            resource.setrlimit(resource.RLIMIT_MSGQUEUE, (mark, mark))

    subprocess.run(
        [sys.executable, "-S", "-E", "-m", "train.host.supervisor", str(rank_dir)],
        cwd=REPOSITORY,
        check=True,
        timeout=60,
        preexec_fn=prepare,
    )


def marked() -> dict[int, list[str]]:
    """Return the processes that were started with a mark, by mark: a limit that all inherit.

    It is independent of sessions, names, environments and open files.
    """
    found = defaultdict(list)
    usual = resource.getrlimit(resource.RLIMIT_MSGQUEUE)[0]
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            size = (entry / "limits").read_text().partition("Max msgqueue size")[2].split()[0]
            if size == str(usual):
                continue
            status = (entry / "status").read_text()
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
        except (OSError, IndexError):
            continue
        if not ("State:\tZ" in status and "Threads:\t1\n" in status):  # not a zombie
            found[int(size)].append(f"{entry.name} {words.decode(errors='replace')}")
    return found


def state(rank_dir: Path) -> dict[str, Any]:
    """Return the contents of ``state.json``."""
    return json_files.read_json(str(rank_dir / rank_files.STATE_FILE)) or {}


def wait_until(condition: Callable[[], Any], what: object, timeout: float = 60) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def end(rank_dir: Path) -> dict[str, Any]:
    """Wait for the end of a rank and its supervisor; return its state."""
    wait_until(lambda: state(rank_dir).get("phase") in records.FINAL_PHASES, rank_dir)
    found = state(rank_dir)
    wait_until(lambda: not os.path.exists(f"/proc/{found['supervisor_pid']}"), "the supervisor")
    return found
