"""Watches a job in the background (``--detach``).

The command in the terminal starts another process, which does what the command would do without
``--detach``, and writes its output to a file in the job's folder. It sends the job's events back
over a pipe. Once all ranks have started, the command in the terminal ends.

Passwords and variables are passed over a pipe: they are in no argument, environment or file.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pickle
import select
import shutil
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from train.cli import commands
from train.cli.ansible_options import Variables
from train.cli.display import JsonDisplay, PlainDisplay
from train.cli.job import WATCH_LOG, Event, Job, Result
from train.cli.output import Exit, complain, guarded
from train.gang import PACKAGE, run_folders, suggestions
from train.gang.job_records import MANIFEST_FILE, RankEvent, read_manifest
from train.gang.suggestions import Call
from train.host import records

#: Runs ``main``. Another package ``train`` in the current folder is not imported (-P).
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); sys.argv[0] = sys.argv.pop(1); "
    "from train.cli import background; sys.exit(background.main())"
)
#: Seconds for a background process that has closed its pipe to end, and for a program of systemd
#: to answer.
_END_S, _SYSTEMD_S = 5.0, 10.0
#: Seconds to wait for the verdict about an attempt in which a rank has failed.
_VERDICT_S = 30.0
#: Bytes of events that the command in the terminal may be behind.
_PIPE = 1 << 20
_BLOCK = 1 << 16


@dataclass(frozen=True)
class _Request:
    """The parsed command line, and how it was called."""

    args: Namespace
    variables: Variables
    call: Call


def start(args: Namespace, variables: Variables) -> int:
    """Run a command in the background until all ranks have started, and return the exit code."""
    scope = scope_words()
    words = [sys.executable, "-P", "-c", _PROGRAM, str(PACKAGE.parent), sys.argv[0], args.command]
    child = subprocess.Popen(
        [*scope, *words, *([args.job] if args.job else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # the terminal's signals do not reach it
    )
    assert child.stdin is not None
    assert child.stdout is not None
    pipe = child.stdout.fileno()
    os.set_blocking(pipe, False)
    try:
        with contextlib.suppress(BrokenPipeError), child.stdin as stream:
            stream.write(pickle.dumps(_Request(args, variables, suggestions.current())))
        select.select([pipe], [], [])  # until it has begun, or has ended with an error message
    except KeyboardInterrupt:
        child.send_signal(signal.SIGINT)
        child.wait()
        return Exit.LEFT
    job = BackgroundJob.of(child)
    if job is None:
        code = child.wait()
        return code if code >= 0 else Exit.UNWATCHED
    if not scope and _ends_at_logout():
        complain(
            args.command,
            "this machine ends your processes when you log out (KillUserProcesses): enable "
            "lingering with loginctl, or attach again after the next login",
        )
    args.mlflow = ""  # the background process logs the job
    return commands.watch(job, args)


def scope_words() -> list[str]:
    """Return the words that run a command outside of the login session, if lingering is enabled."""
    words = ["systemd-run", "--user", "--scope", "--quiet", "--collect"]
    try:
        if _loginctl("show-user", str(os.getuid()), "--property=Linger") != "yes":
            return []
        done = subprocess.run(
            [*words, "true"], capture_output=True, stdin=subprocess.DEVNULL, timeout=_SYSTEMD_S
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return words if done.returncode == 0 else []


def _ends_at_logout() -> bool:
    """Return whether systemd ends the processes of this login session with the session."""
    if "XDG_SESSION_ID" not in os.environ:
        return False
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return _loginctl("show-session", "--property=KillUserProcesses") == "yes"
    return False


def _loginctl(*words: str) -> str:
    """Return the value of a property; empty if systemd does not run."""
    done = subprocess.run(
        ["loginctl", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_SYSTEMD_S,
    )
    return done.stdout.strip().partition("=")[2]


class BackgroundJob:
    """A job that a child process watches, followed until all of its ranks have started."""

    def __init__(self, child: subprocess.Popen[bytes], name: str, run_dir: Path) -> None:
        self.name, self.run_dir = name, run_dir
        self.result: Result | None = None
        self._child = child
        self._pipe = child.stdout.fileno() if child.stdout else -1
        self._rest = b""  # an incomplete line
        self._is_closed = False
        self._ended: Result | None = None
        self._phases: dict[str, str] = {}  # of the attempt's ranks; a running rank has started
        self._failed_at = 0.0  # when the first rank failed

    @classmethod
    def of(cls, child: subprocess.Popen[bytes]) -> BackgroundJob | None:
        """Return the job that a child process has begun to watch; None if it has ended instead."""
        new = cls(child, "", Path())
        while not new._is_closed:
            for about in new._lines(1.0):
                new.name, new.run_dir = about["job"], Path(about["run_dir"])
                return new
        return None

    def _lines(self, timeout: float) -> Iterator[dict[str, Any]]:
        """Yield what the process has reported, after waiting for up to ``timeout`` seconds."""
        if b"\n" not in self._rest and not self._is_closed:
            select.select([self._pipe], [], [], timeout)
            with contextlib.suppress(BlockingIOError):
                data = os.read(self._pipe, _BLOCK)
                self._rest += data
                self._is_closed = not data
        while b"\n" in self._rest:
            line, _, self._rest = self._rest.partition(b"\n")
            yield json.loads(line)

    def events(self, timeout: float = 0.25) -> Iterator[Event]:
        """Yield the new events, after waiting for up to ``timeout`` seconds."""
        if self.result is not None:
            return
        for about in self._lines(timeout):
            if "result" in about:
                self._ended = Result(**{**about["result"], "run_dir": self.run_dir})
                continue
            event = Event(**about)
            self._note(event)
            yield event
        if self._is_closed:
            self._end()
        elif self._ended is None and self._have_started():
            attach, logs, stop = (self._command(name) for name in ("attach", "logs", "stop"))
            lines = (
                f"all ranks have started, and {self._who()} watches them",
                f"  follow the job with `{attach}`",
                f"  print its logs with `{logs}`",
                f"  stop it with `{stop}`",
            )
            self.result = self._result("detached", "\n".join(lines))

    def _note(self, event: Event) -> None:
        if event.kind == "restart":
            self._phases.clear()
        if event.kind != "rank":
            return
        phase = event.data["phase"]
        if phase in (records.FAILED, records.STOPPED) and self._phases.get(event.task) != phase:
            self._failed_at = time.monotonic()
        self._phases[event.task] = phase

    def _have_started(self) -> bool:
        """Return whether all ranks of the current attempt have started.

        After a failure at the start, another attempt or the end of the job soon follows, unless the
        job can do without the rank.
        """
        if not self._phases or {records.ABSENT, records.STARTING} & {*self._phases.values()}:
            return False
        manifest = read_manifest(self.run_dir)
        if manifest is None or {rank["task"] for rank in manifest["ranks"]} - {*self._phases}:
            return False
        unsuccessful = {records.FAILED, records.STOPPED} & {*self._phases.values()}
        has_begun = {*self._phases.values()} <= {records.RUNNING, *records.FINAL_PHASES}
        return has_begun and not (unsuccessful and time.monotonic() - self._failed_at < _VERDICT_S)

    def _end(self) -> None:
        """Set the result after the process has closed its pipe."""
        try:
            code = self._child.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.leave()  # this command was stopped, and missed events
            return
        text = f"the background process ended with {code}: see {self.run_dir / WATCH_LOG}"
        again = f"if ranks have started, attach to the job with `{self._command('attach')}`"
        self.result = self._ended or self._result("unwatched", f"{text}; {again}")

    def leave(self) -> Result:
        """Stop following; the job and its watch in the background continue."""
        attach, stop = (self._command(name) for name in ("attach", "stop"))
        self.result = self._result(
            "left",
            f"{self._who()} continues to start and watch the job: attach to it with `{attach}`, "
            f"or stop it with `{stop}`",
        )
        return self.result

    def request_stop(self) -> None:
        """Let the background process stop the job; ``events`` continue until it has a result."""
        self._child.send_signal(commands.STOP)

    def close(self) -> None:
        """Do nothing: the background process continues to watch the job."""

    def _who(self) -> str:
        return f"pid {self._child.pid} in the background"

    def _command(self, name: str) -> str:
        return suggestions.command(name, job=self.name)

    def _result(self, state: str, message: str) -> Result:
        return Result(self.name, state, message, {}, [], self.run_dir)


def main() -> int:
    """Run the command whose parsed command line is on standard input."""
    request: _Request = pickle.load(sys.stdin.buffer)  # written by `start`
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    args = request.args
    args.channel = Channel()
    suggestions.note(request.call)
    return guarded(args.command, lambda: args.handler(args, request.variables))


class Channel:
    """The way of the background process to the command in the terminal, which may have ended."""

    def __init__(self) -> None:
        self._pipe = os.dup(1)
        os.set_blocking(self._pipe, False)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, _PIPE)
        os.dup2(2, 1)  # errors before the job has begun are shown in the terminal

    def open(self, job: Job) -> JsonDisplay:
        """Write all further output to the job's folder; return the display for its events."""
        is_new = not job.run_dir.exists()
        run_folders.create(job.run_dir, exist_ok=True)
        job.note_background()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        log = os.open(job.run_dir / WATCH_LOG, flags, 0o600)
        sys.stdout.flush()
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        os.close(log)
        self.send({"job": job.name, "run_dir": str(job.run_dir)})
        return _LogDisplay(self, is_new)

    def send(self, about: dict[str, Any]) -> None:
        """Send a line. Close the pipe if nobody reads it, because the watch must not wait."""
        data = json.dumps(about).encode() + b"\n"
        try:
            is_sent = self._pipe >= 0 and os.write(self._pipe, data) == len(data)
        except OSError:
            is_sent = False
        if not is_sent:
            self.close()

    def close(self) -> None:
        """Close the pipe."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1


class _LogDisplay(PlainDisplay):
    """Writes changes, but not the progress, with their times. Sends all events over a channel."""

    def __init__(self, channel: Channel, is_new: bool) -> None:
        super().__init__()
        self._channel, self._is_new = channel, is_new
        self._of_ranks: dict[str, str] = {}

    def event(self, event: Event) -> None:
        self._channel.send({**asdict(event), "data": {**event.data}})
        super().event(event)

    def _rank(self, task: str, seen: RankEvent) -> None:
        if self._of_ranks.get(task) != seen["phase"]:
            self._of_ranks[task] = seen["phase"]
            super()._rank(task, seen)

    def result(self, result: Result) -> None:
        super().result(result)
        if self._is_new and not (result.run_dir / MANIFEST_FILE).exists():  # the job is unknown
            shutil.rmtree(result.run_dir, ignore_errors=True)
        self._channel.send({"result": {**asdict(result), "run_dir": ""}})

    def _say(self, text: str, style: str) -> None:
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        with contextlib.suppress(OSError):  # a full disk must not end the watch
            os.write(1, "".join(f"{now} {line}\n" for line in text.splitlines()).encode())
