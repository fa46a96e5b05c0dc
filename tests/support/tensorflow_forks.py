"""Programs with TensorFlow that start at once: forks of a process that has imported it."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import REPOSITORY, clean_environment
from train.host.rank_environment import ENV_MALLOC, MALLOC_OPTIONS

_PROGRAM = REPOSITORY / "tests/data/forks.py"


class Fork:
    """A running program."""

    def __init__(self, forks: Forks, pid: int) -> None:
        self._forks = forks
        self.pid = pid
        self.returncode: int | None = None

    def poll(self, seconds: float = 0) -> int | None:
        """Return the exit code, or None if it is still running after ``seconds``."""
        if self.returncode is None:
            self.returncode = self._forks.ask(wait=self.pid, seconds=seconds)
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        self.send_signal(signal.SIGKILL)


class Forks:
    """A process that forks programs; it ends with its parent process."""

    def __init__(self, python: str, keras: int) -> None:
        self._process = subprocess.Popen(
            [python, str(_PROGRAM), str(keras), str(Path(pytest.__file__).parents[1])],
            env=clean_environment(TF_CPP_MIN_LOG_LEVEL="2", **{ENV_MALLOC: MALLOC_OPTIONS}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == "ready"

    def ask(self, **order: Any) -> Any:
        """Send a request and return the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        output: Path,
        *,
        script: str = "",
    ) -> Fork:
        """Start a program.

        Args:
            arguments: its file and its arguments; with ``script``, only the arguments.
            folder: its working directory.
            output: the file to which its output and errors are appended.
        """
        order = {"arguments": list(arguments), "script": script, "environment": dict(environment)}
        return Fork(self, self.ask(**order, folder=str(folder), output=str(output)))


@functools.cache
def forks(python: str, keras: int = 2) -> Forks:
    """Return an interpreter's process that has imported TensorFlow with Keras 2.

    With ``keras`` 0, nothing is imported until the program does it.
    """
    return Forks(python, keras)
