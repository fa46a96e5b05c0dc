"""Processes that represent those of a rank."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

Starter = Callable[..., "subprocess.Popen[bytes]"]
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
