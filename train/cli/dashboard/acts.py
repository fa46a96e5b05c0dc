"""Acts of viewers: commands of ``python -m train``, each in a process, with output and exit code.

They continue when the dashboard ends, except TensorBoard.
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
#: Maximum number of lines of an act, characters of a line, and number of acts to remember.
_LINES, _WIDTH, _MOST = 2_000, 1_000, 50
#: Seconds between two looks at an act's output, and bytes to read at once.
_LOOK_S, _BLOCK = 0.2, 65_536
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


class Act:
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
        """How the act ended, in words."""
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


class Acts:
    """Starts acts and remembers the last ones.

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
        self._acts: dict[int, Act] = {}
        self._lock = threading.Lock()

    def all(self) -> list[Act]:
        """Return the acts, newest first."""
        return sorted(self._acts.values(), key=lambda act: -act.number)

    def get(self, number: int) -> Act | None:
        """Return an act; None if there is none with this number."""
        return self._acts.get(number)

    def of_job(self, job: str) -> list[Act]:
        """Return the acts about a job, newest first."""
        return [act for act in self.all() if act.job == job]

    def start(self, kind: str, job: str = "", options: Sequence[str] = ()) -> Act:
        """Start a command about a job, or about all hosts.

        Raise UserError if the same one is already running.
        """
        words = [kind, *options, *([job] if job else [])]
        with self._lock:
            for act in self._acts.values():
                if (act.kind, act.job) == (kind, job) and act.code is None:
                    raise UserError(f"`{act.command}` is already running")
            act = Act(max(self._acts, default=0) + 1, kind, job, words)
            self._acts[act.number] = act
            for number in sorted(self._acts)[:-_MOST]:
                if self._acts[number].code is not None:
                    del self._acts[number]
        threading.Thread(target=self._run, args=(act, job, words), daemon=True).start()
        return act

    def end(self, act: Act) -> None:
        """Interrupt an act, as Ctrl-C does."""
        if act.process is not None and act.code is None:
            act.process.send_signal(signal.SIGINT)

    def close(self) -> None:
        """End TensorBoard, which needs the dashboard; leave all other acts running."""
        for act in self._acts.values():
            if act.kind == TENSORBOARD:
                self.end(act)

    def _run(self, act: Act, job: str, words: Sequence[str]) -> None:
        """Run a command to its end and collect its output. Runs in a thread."""
        try:
            # The output is a file without a name, which outlives the dashboard. A command whose
            # output is a closed pipe would stop following its job.
            with Scratch("dashboard") as folder, tempfile.TemporaryFile() as output:
                given = [words[0], *self._options(job, folder), *words[1:]]
                act.process = subprocess.Popen(
                    [*self._program, *given],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "NO_COLOR": "1", "COLUMNS": "160"},
                    start_new_session=True,
                )
                for line in _lines_of(act.process, output.fileno()):
                    act.lines.append(plain_text.clean(line.decode("utf-8", "replace"), _WIDTH))
                act.code = act.process.wait()
        except Exception as error:  # otherwise, the act would seem to run forever
            act.lines.append(plain_text.clean(str(error) or type(error).__name__, _WIDTH))
            act.code = int(Exit.FAILED)

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
        ended = process.poll() is not None  # before the last look
        while block := os.pread(output, _BLOCK, offset):  # leaves the process's position unchanged
            offset += len(block)
            *lines, rest = (rest + block).split(b"\n")
            yield from lines
        if not ended:
            time.sleep(_LOOK_S)
    if rest:
        yield rest
