"""Actions of viewers: commands of ``python -m train``, with their output and exit codes.

Each command runs in a process. Commands continue when the dashboard ends, except TensorBoard.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from train.cli import inventories
from train.cli.ansible_options import AnsibleOptions, Variables, file_of
from train.cli.job import run_dir_of
from train.cli.output import Exit
from train.gang.errors import UserError
from train.gang.scratch import Scratch
from train.host import plain_text

STOP, RESTART, DOCTOR, TENSORBOARD = "stop", "restart", "doctor", "tensorboard"
#: Maximum number of lines of an action, characters of a line, and number of actions to remember.
_LINES, _WIDTH, _MOST = 2_000, 1_000, 50
#: Seconds between two checks of an action's output, and bytes to read at once.
_POLL_S, _BLOCK = 0.2, 65_536
#: An address of TensorBoard on this machine.
_ADDRESS = re.compile(r"http://127\.0\.0\.1:[0-9]{1,5}/[A-Za-z0-9_-]{1,64}/")
#: Exit codes in words, as in ``python -m train --help``.
EXITS = {
    Exit.COMPLETED: "success",
    Exit.FAILED: "failed",
    Exit.REFUSED: "refused",
    Exit.STOPPED: "the job was stopped",
    Exit.UNREACHABLE: "a host is unreachable",
    Exit.UNWATCHED: "no longer followed, the job continues",
    Exit.DOUBTFUL: "completed with doubts",
    Exit.LEFT: "left running",
}


class Action:
    """A command that was started.

    Attributes:
        number: its number, which is part of its page's address.
        kind: the name of the command.
        job: the job that it is about, or an empty string.
        command: the command as text, without its options.
        lines: the last lines of its output.
        code: its exit code; None while it runs.
    """

    def __init__(self, number: int, kind: str, job: str, words: Sequence[str]) -> None:
        self.number, self.kind, self.job = number, kind, job
        self.command = shlex.join(["train", *words])
        self.began_at = time.time()
        self.lines: deque[str] = deque(maxlen=_LINES)
        self.code: int | None = None
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def output(self) -> list[str]:
        """The last lines of the output so far, while another thread may add to them."""
        return [*self.lines]

    @property
    def outcome(self) -> str:
        """How the action ended, in words."""
        if self.code is None:
            return "running"
        if self.code < 0:
            return f"ended by {signal.Signals(-self.code).name}"
        words = EXITS.get(self.code, "failed")  # type: ignore[call-overload]
        return f"{words} (exit code {self.code})"

    @property
    def address(self) -> str:
        """The address of TensorBoard in the output; empty if there is none."""
        found = [_ADDRESS.search(line) for line in self.output]
        return next((one.group() for one in found if one), "") if self.kind == TENSORBOARD else ""


class Actions:
    """Starts actions and remembers the last ones.

    Args:
        inventory: the options of the dashboard's command line.
        variables: its variables.
        program: the words that run ``train``.
    """

    def __init__(
        self,
        inventory: AnsibleOptions,
        variables: Variables,
        program: Sequence[str] = (sys.executable, "-m", "train"),
    ) -> None:
        self._inventory, self._variables, self._program = inventory, variables, program
        self._actions: dict[int, Action] = {}
        self._lock = threading.Lock()

    def all(self) -> list[Action]:
        """Return the actions, newest first."""
        return sorted(self._actions.values(), key=lambda action: -action.number)

    def get(self, number: int) -> Action | None:
        """Return an action; None if there is none with this number."""
        return self._actions.get(number)

    def of_job(self, job: str) -> list[Action]:
        """Return the actions about a job, newest first."""
        return [action for action in self.all() if action.job == job]

    def start(self, kind: str, job: str = "", options: Sequence[str] = ()) -> Action:
        """Start a command about a job, or about all hosts.

        Raise UserError if the same one is already running.
        """
        words = [kind, *options, *([job] if job else [])]
        with self._lock:
            for action in self._actions.values():
                if (action.kind, action.job) == (kind, job) and action.code is None:
                    raise UserError(f"`{action.command}` is already running")
            action = Action(max(self._actions, default=0) + 1, kind, job, words)
            self._actions[action.number] = action
            for number in sorted(self._actions)[:-_MOST]:
                if self._actions[number].code is not None:
                    del self._actions[number]
        threading.Thread(target=self._run, args=(action, job, words), daemon=True).start()
        return action

    def end(self, action: Action) -> None:
        """Interrupt an action, as Ctrl-C does."""
        if action.process is not None and action.code is None:
            action.process.send_signal(signal.SIGINT)

    def close(self) -> None:
        """End TensorBoard, which needs the dashboard; leave all other actions running."""
        for action in self._actions.values():
            if action.kind == TENSORBOARD:
                self.end(action)

    def _run(self, action: Action, job: str, words: Sequence[str]) -> None:
        """Run a command to its end and collect its output. Runs in a thread."""
        try:
            # The output is a file without a name, which outlives the dashboard. A command whose
            # output is a closed pipe would stop following its job.
            with Scratch("dashboard") as folder, tempfile.TemporaryFile() as output:
                given = [words[0], *self._options(job, folder), *words[1:]]
                action.process = subprocess.Popen(
                    [*self._program, *given],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "NO_COLOR": "1", "COLUMNS": "160"},
                    start_new_session=True,
                )
                for line in _lines_of(action.process, output.fileno()):
                    action.lines.append(plain_text.clean(line.decode("utf-8", "replace"), _WIDTH))
                action.code = action.process.wait()
        except Exception as error:  # otherwise, the action would seem to run forever
            action.lines.append(plain_text.clean(str(error) or type(error).__name__, _WIDTH))
            action.code = int(Exit.FAILED)

    def _options(self, job: str, folder: Path) -> list[str]:
        """Return the options that reach the hosts. Variables and passwords are passed in files.

        A job that was started here is reached as at its start, unless that needs passwords.
        """
        variables = folder / "variables.yml"
        variables.touch(mode=0o600)
        variables.write_text(file_of(self._variables), encoding="utf-8")
        words = [f"--extra-vars=@{variables}"]
        connection = inventories.kept(run_dir_of(job, self._variables)) if job else None
        if connection and not connection["asked"]:
            return words
        return [*words, *self._inventory.command_line(folder)]


def _lines_of(process: subprocess.Popen[bytes], output: int) -> Iterator[bytes]:
    """Yield the lines that a process writes to a file, until it ends."""
    offset, rest, ended = 0, b"", False
    while not ended:
        ended = process.poll() is not None  # before the last block is read
        while block := os.pread(output, _BLOCK, offset):  # leaves the process's position unchanged
            offset += len(block)
            *lines, rest = (rest + block).split(b"\n")
            yield from lines
        if not ended:
            time.sleep(_POLL_S)
    if rest:
        yield rest
