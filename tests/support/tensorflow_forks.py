"""Programs under TensorFlow that start at once: forks of a process that has imported it."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import REPOSITORY, clean_environment
from train.host.records import ENV_MALLOC, MALLOC_OPTIONS

_PROGRAM = REPOSITORY / "tests/data/forks.py"


class Fork:
    """A program at work, with what tests use of `subprocess.Popen`."""

    def __init__(self, forks: Forks, pid: int) -> None:
        self._forks = forks
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None if it still runs."""
        if self.returncode is None:
            self.returncode = self._forks.ask(wait=self.pid, seconds=0)
        return self.returncode

    def wait(self, timeout: float = 600) -> int:
        """Return the exit code, once there is one."""
        if self.returncode is None:
            self.returncode = self._forks.ask(wait=self.pid, seconds=timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        self.send_signal(signal.SIGKILL)


class Forks:
    """The process of which programs are forks; it ends with the one that made it."""

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
        """Give an order, and return what is answered."""
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
        errors: Path | None = None,
    ) -> Fork:
        """Start a program.

        Args:
            arguments: its file and its words; with ``script`` the words alone.
            folder: its working folder.
            output: the file that its output is appended to.
            errors: the same for what it writes to stderr; ``output`` by default.
        """
        files = [os.devnull, str(output), str(errors or output)]
        order = {"arguments": list(arguments), "script": script, "folder": str(folder)}
        return Fork(self, self.ask(**order, environment=dict(environment), files=files))

    def run(
        self,
        script: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        timeout: float,
    ) -> subprocess.CompletedProcess[str]:
        """Run a script to its end."""
        with tempfile.TemporaryDirectory() as place:
            output, errors = Path(place, "output"), Path(place, "errors")
            fork = self.start(
                arguments, environment, Path("/"), output, script=script, errors=errors
            )
            try:
                fork.wait(timeout)
            finally:
                fork.kill()
            out, err = output.read_text(), errors.read_text()
        return subprocess.CompletedProcess(arguments, fork.wait(), out, err)


@functools.cache
def forks(python: str, keras: int = 2) -> Forks:
    """Return the process of an interpreter and a generation of ``tf.keras``: 2, 3; 0 for neither.

    Without either, TensorFlow is not imported before the program does it.
    """
    return Forks(python, keras)
