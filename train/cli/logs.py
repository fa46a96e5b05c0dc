"""Shows the logs of all ranks of a job together, once or as they grow.

A progress bar is shown in its last state only (train/host/terminal.py). While it is still being
drawn, its current state is shown at intervals.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO, TextIO

from rich.console import Console
from rich.text import Text

from train.cli import playbooks
from train.cli.ansible_options import Inventory, Variables
from train.cli.job import with_kept
from train.cli.output import Exit, complain, exit_code, noted_interrupts
from train.gang.scratch import Scratch
from train.gang.watch.fetched import OLDER
from train.host import records
from train.host.terminal import LogLines

#: Colors of tasks. A task always has the same color, and adjacent tasks have different ones.
COLORS = (
    *("cyan", "yellow", "green", "magenta", "blue", "bright_red"),
    *("bright_cyan", "bright_yellow", "bright_green", "bright_magenta", "bright_blue", "red"),
)
#: Seconds to wait for a restart of a gang that has failed.
RESTART_WAIT = 30.0
_RESTART_PAUSE = 3.0
_BLOCK = 1 << 20
#: Printed instead of lines that may have been overwritten before they could be printed.
LEFT_OUT = "... lines may be missing here: output arrived faster than it could be printed ..."


def color_of(task: str) -> str:
    """Return the color in which a task's lines are printed."""
    kind, index = records.task_order(task)
    return COLORS[(3 * kind + index) % len(COLORS)]


def _same_file(one: BinaryIO, other: BinaryIO) -> bool:
    return os.path.samestat(os.fstat(one.fileno()), os.fstat(other.fileno()))


class LogPrinter:
    """Prints new lines of the files ``<task>.log`` in a folder.

    A line begins with the name of its task. If ``task`` is given, only the lines of this task are
    printed, without its name.
    """

    def __init__(self, folder: Path, task: str | None, stream: TextIO) -> None:
        self._folder, self.task, self._stream = folder, task, stream
        self._lines: dict[str, LogLines] = {}
        self._prefixes: dict[str, str] = {}
        # By task, the file that was read last. It stays open so that no other file gets its inode
        # number.
        self._streams: dict[str, BinaryIO] = {}

    def pump(self, last: bool = False) -> None:
        """Print the new lines; in the ``last`` call, also text without a final newline."""
        for path in self._paths():
            self._pump(path)
            if last:
                self._print(path.stem, self._lines[path.stem].finish())
                if path.stem in self._streams:
                    self._streams.pop(path.stem).close()
        self._stream.flush()

    def _pump(self, path: Path) -> None:
        """Print the new lines of a log, which continues in another file at its size limit."""
        lines, before = self._lines.setdefault(path.stem, LogLines()), self._streams.get(path.stem)
        files: list[BinaryIO] = []  # the oldest first
        for name in (path, path.with_name(path.name + OLDER)):
            with contextlib.suppress(FileNotFoundError):
                files.insert(0, name.open("rb"))
        if before is not None:
            self._print_rest(path.stem, before)
            same = [place for place, file in enumerate(files) if _same_file(before, file)]
            if files and not same:
                self._print(path.stem, [*lines.finish(), LEFT_OUT])
            for _ in range(same[-1] + 1 if same else 0):
                files.pop(0).close()
        if len(files) == 2 and _same_file(*files):
            files.pop().close()  # it was just renamed
        for file in files:
            self._print_rest(path.stem, file)
            if path.stem in self._streams:
                self._streams[path.stem].close()
            self._streams[path.stem] = file

    def _print_rest(self, task: str, stream: BinaryIO) -> None:
        while data := stream.read(_BLOCK):
            self._print(task, self._lines[task].feed(data))

    def _paths(self) -> list[Path]:
        found = sorted(self._folder.glob("*.log"), key=lambda path: records.task_order(path.stem))
        if len(found) != len(self._prefixes):
            width = max(len(path.stem) for path in found)
            console = Console(file=self._stream)
            for path in found:
                with console.capture() as capture:
                    text = Text(f"{path.stem:{width}} | ", style=color_of(path.stem))
                    console.print(text, end="", soft_wrap=True)
                self._prefixes[path.stem] = capture.get()
        return [path for path in found if self.task in (None, path.stem)]

    def _print(self, task: str, lines: Iterable[str]) -> None:
        prefix = "" if self.task else self._prefixes[task]
        # One write per line, so that lines of ranks are not mixed.
        for line in lines:
            self._stream.write(f"{prefix}{line}\n")


def show(args: Namespace, variables: Variables) -> int:
    """Print the logs of a job's last attempt and, when following, of later ones."""
    given = with_kept(args.job, variables) | {"train_job_logs_follow": args.follow}
    if args.tail is not None:
        given["train_job_logs_lines"] = args.tail
    shown: playbooks.PlaybookOutcome | None = None  # of the last playbook that found ranks
    deadline = float("-inf")
    with noted_interrupts() as interrupts:
        while True:
            with Scratch("logs") as folder:
                printer = LogPrinter(folder / "logs", args.task, sys.stdout)
                attempt = {**given, "train_job_logs_dir": str(folder)}
                outcome = _show_attempt(args.inventory, attempt, printer, interrupts)
            if outcome is None:
                return Exit.LEFT
            job = outcome.result("job_ranks")
            if job.get("ranks") or outcome.code:
                shown = outcome
                given.pop("train_job_logs_lines", None)
                given["train_job_logs_after"] = int(job.get("attempt", 0))
                deadline = float("-inf")
                if args.follow and _may_restart(outcome):
                    deadline = time.monotonic() + RESTART_WAIT
                    wait = f"waiting {RESTART_WAIT:g} s for the next attempt"
                    complain("logs", f"all ranks ended: {wait}")
            if not args.follow or outcome.code or time.monotonic() > deadline:
                break
            time.sleep(_RESTART_PAUSE)
    shown = shown or outcome
    code = exit_code(shown, "logs")
    if code == Exit.FAILED and not shown.result("job_ranks").get("ranks"):
        return Exit.REFUSED  # the job does not exist
    return Exit.UNREACHABLE if shown.result("gang_logs").get("lost") else code


def _show_attempt(
    inventory: Inventory, variables: Variables, printer: LogPrinter, interrupts: Sequence[int]
) -> playbooks.PlaybookOutcome | None:
    """Print the logs of one attempt; return the playbook's outcome, or None if interrupted.

    Raise ValueError if the job does not have the rank whose log is to be printed.
    """
    ended = False
    with contextlib.closing(playbooks.Playbook("logs.yml", inventory, variables)) as playbook:
        while not ended:
            ended = playbook.wait(0.2)
            for line in playbook.outcome.take_waiting():
                print(line, file=sys.stderr, flush=True)
            tasks = [rank["task"] for rank in playbook.outcome.result("job_ranks").get("ranks", ())]
            if printer.task is not None and tasks and printer.task not in tasks:
                name, there = variables["train_job_id"], ", ".join(tasks)
                raise ValueError(f"job {name} has no rank {printer.task}; its ranks are {there}")
            if variables["train_job_logs_follow"]:
                printer.pump()
            if interrupts:
                return None
        printer.pump(last=True)
    return playbook.outcome


def _may_restart(outcome: playbooks.PlaybookOutcome) -> bool:
    """Return whether the gang failed recently or while it was followed, and may restart."""
    job = outcome.result("job_ranks")
    recent = any(
        rank["phase"] not in records.FINAL_PHASES or rank["idle"] < RESTART_WAIT
        for rank in job.get("ranks", ())
    )
    failed = records.FAILED in outcome.result("gang_logs").get("phases", {}).values()
    return failed and recent and bool(job.get("restarts"))
