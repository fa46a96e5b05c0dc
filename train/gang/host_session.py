"""Asks a program that stays on a host. Each request and each answer is a line of JSON.

The host then needs no new interpreter for each request, and this machine no new ssh.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO, Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError

from train.gang import host_programs

#: Maximum size in bytes of an answer, and of everything that the login prints before the program.
_LONGEST, _NOISE = 128 << 20, 1 << 20
#: Seconds for the connection to end.
_END_S = 2.0


class SessionError(Exception):
    """A session cannot be started, or the program no longer answers."""


class HostSession:
    """A program that runs on a host until the session, the connection or this process ends.

    Only connections with a method ``process`` can have sessions, and not with ``become``, which may
    ask for a password.

    Args:
        action: an action with the connection.
        words: the command of the program.
        folder: the program's working directory on the host, as a word for its shell.

    Raises:
        SessionError: the program cannot be started.
        UnreachableError: the login failed.
    """

    def __init__(self, action: Any, words: Sequence[str], folder: str) -> None:
        connection, shell = action._connection, action._play_context.executable
        if connection.become is not None or not hasattr(connection, "process"):
            raise SessionError("this connection cannot have sessions")
        self._mark = f"begin-{secrets.token_hex(8)}"
        self._has_answered = False
        command = f"cd {folder} && echo {self._mark} && exec {shlex.join(words)} 2>/dev/null"
        self._held = contextlib.ExitStack()
        try:
            started = connection.process(f"{shell} -c {shlex.quote(command)}" if shell else command)
            process: subprocess.Popen[bytes] = self._held.enter_context(started)
        except AnsibleConnectionFailure as error:
            raise host_programs.unreachable(error) from error
        except (AnsibleError, OSError) as error:
            raise SessionError(str(error)) from error
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._stdin, self._stdout = process, process.stdin, process.stdout
        self._held.callback(_end, process)

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the program's answer to a request. Raise SessionError if there is none."""
        try:
            self._stdin.write(json.dumps(request).encode() + b"\n")
            self._stdin.flush()
            if not self._has_answered:
                _skip_until(self._stdout, f"{self._mark}\n".encode())
            line = self._stdout.readline(_LONGEST)
            answer = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError, RecursionError) as error:
            raise SessionError(str(error)) from error
        if not isinstance(answer, dict):
            raise SessionError("the program did not answer")
        self._has_answered = True
        return answer

    def close(self) -> None:
        """End the program."""
        self._held.close()

    def kill(self) -> None:
        """End the connection at once. ``ask`` in another thread then raises SessionError."""
        self._process.kill()


def _skip_until(stream: IO[bytes], end: bytes) -> None:
    """Skip the lines of a login up to the one that ends with ``end``."""
    left = _NOISE
    while left > 0:
        line = stream.readline(left)
        if line.endswith(end):
            return
        if line.endswith(end.replace(b"\n", b"\r\n")):
            raise ValueError("the host has opened a terminal, which mixes requests and answers")
        left -= len(line) or left
    raise ValueError("the program did not start")


def _end(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        with contextlib.suppress(OSError):  # the rest of a request
            stream.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
