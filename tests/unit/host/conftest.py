"""Folders of ranks, and processes that represent those of a rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.job_folders import lay_out
from tests.support.lab import REPOSITORY
from train.host import (
    processes,
    rank_files,
    records,
)

Starter = Callable[..., "subprocess.Popen[bytes]"]
#: This machine, as staged ranks record it, and another one.
HERE, ELSEWHERE = processes.machine(), "boot/other-machine/net:[1]"
#: A program that runs until a signal ends it.
SLEEP = [sys.executable, "-S", "-c", "print(1, flush=True); import time; time.sleep(600)"]


@pytest.fixture
def start() -> Iterator[Starter]:
    """Yield a function that starts a process with an environment; end all processes afterwards."""
    made = []

    def make(**environment: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(SLEEP, stdout=subprocess.PIPE, env=environment)
        made.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield make
    for process in made:
        process.kill()
        process.communicate()


#: A supervisor that is killed once it has started a script in another session; prints its pid.
KILLED = """
import json, os, signal, subprocess, sys
from types import SimpleNamespace
from train.host import processes, supervisor

processes.adopt()
pid = os.fork()
if pid == 0:
    script = subprocess.Popen(["sleep", "600"], env={}, start_new_session=True)
    print(script.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
rank = SimpleNamespace(rank_dir=sys.argv[1], state=json.loads(sys.argv[2]))
supervisor._watch_over(rank, pid)
"""


def run(code: str, *arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a program that imports ``host`` as the supervisor does."""
    command = [sys.executable, "-S", "-c", code, *map(str, arguments)]
    return subprocess.run(command, cwd=REPOSITORY, check=False, timeout=60, **options)


@pytest.fixture
def chief(start: Starter) -> subprocess.Popen[bytes]:
    """Return a process that represents a supervisor."""
    return start()


@pytest.fixture
def rank_dir(tmp_path: Path, chief: subprocess.Popen[bytes]) -> Path:
    started = processes.start_time(chief.pid)
    about: dict[str, Any] = {"supervisor_pid": chief.pid, "supervisor_start": started}
    return lay_out(tmp_path, "night", "worker-0", host="a", phase=records.RUNNING, **about)


def made_ready(root: Path, ago: float, attempt: int = 1) -> Path:
    """Create the folder of a rank that was staged some seconds ago and has not started."""
    rank_dir = lay_out(root, "night", "worker-0", host="a", phase=records.ABSENT)
    path = rank_dir / rank_files.RANK_FILE
    spec = json.loads(path.read_text())
    spec.update(attempt=attempt, start_timeout=200, port=None)
    path.write_text(json.dumps(spec))
    os.utime(path, (time.time() - ago, time.time() - ago))
    return rank_dir


def lay_out_on(root: Path, task: str, host: str, machine: str = HERE, **about: Any) -> None:
    """Create the folder of a rank that was staged on a machine."""
    path = lay_out(root, "night", task, host=host, **about) / rank_files.RANK_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "machine": machine}))
