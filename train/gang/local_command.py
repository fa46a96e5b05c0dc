"""Runs a command on the control node, and ends all of its processes at a limit or when asked to.

    python -m train.gang.local_command < REQUEST

is a process that runs one command. It reads a JSON object with the fields of ``Request``, writes
the command's output to a file, and prints how the command ended. It ends the command on SIGTERM,
which it also gets when the process that started it has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from train.gang import REPOSITORY
from train.host import processes

#: Seconds that a command has to end after SIGTERM.
GRACE_S = 10.0
#: Seconds between two checks whether the command has ended.
_POLL_S = 0.1
#: The environment variable in which ``python -m train`` passes the variables of its environment
#: that it changes for Ansible, as a JSON object.
CALLER = "TRAIN_CALLER_ENVIRONMENT"
#: Variables that ``python -m train`` and ansible-runner change.
_CHANGED = re.compile(
    r"(?:ANSIBLE|AWX|RUNNER)_\w+|ORIGINAL_STDOUT_CALLBACK|PYTHONUNBUFFERED|LC_ALL|PATH"
)
#: A command that begins with the name of a program, and not with syntax of the shell.
_SIMPLE = re.compile(r"\s*([\w./+-]+)(?=[\s;&|<>]|$)")


# Removed from the environment, which ranks on this machine inherit.
_caller = os.environ.pop(CALLER, "")


class Request(TypedDict):
    """A command to run.

    Attributes:
        environment: its environment variables.
        log: the file to which its output is appended, after the line ``heading``.
        timeout: seconds after which it is ended.
    """

    command: str
    environment: Mapping[str, str]
    log: str
    heading: str
    timeout: float


def caller_environment(environment: Mapping[str, str]) -> str:
    """Return the value of CALLER for an environment."""
    return json.dumps({n: value for n, value in environment.items() if _CHANGED.fullmatch(n)})


def environment() -> dict[str, str]:
    """Return the environment of commands: that of the user who started the job.

    Otherwise, a playbook that the command runs would report to the job's display. Programs next to
    this interpreter, such as ansible-playbook, come first in PATH.
    """
    found = dict(os.environ)
    if _caller:
        found = {name: value for name, value in found.items() if not _CHANGED.fullmatch(name)}
        found |= json.loads(_caller)
    folder = str(Path(sys.executable).parent)
    found["PATH"] = os.pathsep.join([folder, found.get("PATH") or os.defpath])
    return found


def missing_program(command: str) -> str:
    """Return the program with which a command begins if it cannot be run, or an empty string.

    Only the shell can find out what other commands begin with.
    """
    simple = _SIMPLE.match(command)
    if simple is None:
        return ""
    if "/" in simple[1]:
        path = REPOSITORY / simple[1]
        return "" if path.is_file() and os.access(path, os.X_OK) else simple[1]
    words = ["/bin/sh", "-c", 'command -v -- "$1"', "sh", simple[1]]
    found = subprocess.run(words, env=environment(), cwd=REPOSITORY, capture_output=True)
    return simple[1] if found.returncode else ""


class LocalCommand:
    """A command that runs in the project's folder, with ``/bin/sh``.

    The constructor starts it. Raise OSError if that is not possible.
    """

    def __init__(self, request: Request) -> None:
        with tempfile.TemporaryFile() as stdin:  # arguments would be visible to other users
            stdin.write(json.dumps({**request, "parent": os.getpid()}).encode())
            stdin.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "train.gang.local_command"],
                cwd=REPOSITORY,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,  # ignore Ctrl-C
            )

    @property
    def is_over(self) -> bool:
        """Whether the command has ended."""
        return self._process.poll() is not None

    def end(self) -> None:
        """End the command and all of its processes."""
        self._process.terminate()
        try:
            self._process.wait(GRACE_S + processes.KILL_S + 5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def problem(self) -> str:
        """Return how a command that is over has failed, or an empty string."""
        said, _ = self._process.communicate()
        return said.strip() if self._process.returncode == 0 else "was killed"


class _Stop:
    """Records that this process got SIGTERM."""

    requested = False

    def __call__(self, *_: object) -> None:
        self.requested = True


def run(request: Request, stop: _Stop) -> str:
    """Run a command; return how it failed, or an empty string.

    When it is ended, so are all processes that it has started, in any session. If it ends by
    itself, processes that it has left in the background continue.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        log = os.open(request["log"], flags, 0o600)
    except OSError as error:
        return f"was not started: {error.strerror}: {request['log']}"
    _note(log, request["heading"])
    process = subprocess.Popen(
        ["/bin/sh", "-c", request["command"]],
        cwd=REPOSITORY,
        env=request["environment"],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=processes.ending_with_parent(signal.SIGKILL),
    )
    deadline = time.monotonic() + request["timeout"]
    code = _wait(process.pid, deadline, stop)
    if code is None:
        processes.send(process.pid, signal.SIGTERM, group=True)
        _wait(process.pid, time.monotonic() + GRACE_S, _Stop())
        processes.end_descendants()
        limit = f"did not end within {request['timeout']:g} s (train_job_replace_timeout)"
        problem = "was stopped" if stop.requested else limit
    elif code < 0:
        problem = f"was killed by signal {-code}"
    else:
        problem = f"exited with code {code}" if code else ""
    process.returncode = 0 if code is None else code  # it was reaped above
    _note(log, f"the command {problem or 'has ended'}")
    os.close(log)
    return problem


def _wait(pid: int, deadline: float, stop: _Stop) -> int | None:
    """Return the exit code of a child, or None if it is still running at the deadline."""
    while not stop.requested and time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            ended = processes.reap()
            if pid in ended:
                return os.waitstatus_to_exitcode(ended[pid])
        time.sleep(_POLL_S)
    return None


def _note(log: int, text: str) -> None:
    with contextlib.suppress(OSError):  # the disk may be full
        os.write(log, f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n".encode())


def main() -> None:
    """Run the command of the request on standard input."""
    stop, request = _Stop(), json.load(sys.stdin)
    signal.signal(signal.SIGTERM, stop)
    processes.request_signal_at_parent_end(signal.SIGTERM)
    if os.getppid() == request.pop("parent"):
        processes.adopt()
        print(run(request, stop))


if __name__ == "__main__":
    main()
