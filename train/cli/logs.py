"""Shows the logs of all ranks of a job together, as they are or as they grow."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from rich.console import Console
from rich.text import Text

from train.cli import playbooks
from train.cli.ansible_options import Inventory
from train.cli.loglines import LogLines
from train.gang.watch.fetched import OLDER
from train.host import records

#: A task has always the same of these; neighbours have different ones.
COLOURS = (
    *("cyan", "yellow", "green", "magenta", "blue", "bright_red"),
    *("bright_cyan", "bright_yellow", "bright_green", "bright_magenta", "bright_blue", "red"),
)
#: Seconds in which a gang that fell is waited for: it may be started again.
RESTART_WAIT = 30.0
_RESTART_PAUSE = 3.0
_BLOCK = 1 << 20


def colour_of(task: str) -> str:
    """Return the colour of a task."""
    kind, index = records.task_order(task)
    return COLOURS[(3 * kind + index) % len(COLOURS)]


class LogPrinter:
    """Prints what comes into the log files of a folder, line by line.

    Args:
        folder: it holds ``<task>.log``.
        task: the only one to show, without its name before each line; None for all.
        stream: where to print.
    """

    def __init__(self, folder: Path, task: str | None, stream: TextIO) -> None:
        self._folder = folder
        self._task = task
        self._stream = stream
        self._lines: dict[str, LogLines] = {}
        self._prefixes: dict[str, str] = {}
        self._read: dict[str, tuple[int, int]] = {}  # the file's inode, and up to where

    def pump(self) -> None:
        """Print the lines that are new."""
        for path in self._paths():
            self._pump(path)
        self._stream.flush()

    def finish(self) -> None:
        """Print what is left when nothing more comes, rank by rank."""
        for path in self._paths():
            self._print(path.stem, self._pump(path).finish())
        self._stream.flush()

    def _pump(self, path: Path) -> LogLines:
        """Print what is new in a log, which gets another file where it reaches its limit."""
        lines = self._lines.setdefault(path.stem, LogLines())
        inode, offset = self._read.get(path.stem, (0, 0))
        with contextlib.ExitStack() as stack:
            streams: dict[int, BinaryIO] = {}
            for part in (path, path.with_name(path.name + OLDER)):
                with contextlib.suppress(FileNotFoundError):
                    opened = stack.enter_context(part.open("rb"))
                    streams[os.fstat(opened.fileno()).st_ino] = opened
            found = list(reversed(streams.items()))  # the older first
            if inode in streams:
                found = found[[one for one, _ in found].index(inode) :]
            for one, stream in found:
                stream.seek(offset if one == inode else 0)
                while data := stream.read(_BLOCK):
                    self._print(path.stem, lines.feed(data))
                self._read[path.stem] = (one, stream.tell())
        return lines

    def _paths(self) -> list[Path]:
        found = sorted(self._folder.glob("*.log"), key=lambda path: records.task_order(path.stem))
        if len(found) != len(self._prefixes):
            width = max(len(path.stem) for path in found)
            console = Console(file=self._stream)
            for path in found:
                with console.capture() as capture:
                    text = Text(f"{path.stem:{width}} | ", style=colour_of(path.stem))
                    console.print(text, end="", soft_wrap=True)
                self._prefixes[path.stem] = capture.get()
        return [path for path in found if self._task in (None, path.stem)]

    def _print(self, task: str, lines: Iterable[str]) -> None:
        prefix = "" if self._task else self._prefixes[task]
        # One write a line: those of other ranks come before or after it.
        for line in lines:
            self._stream.write(f"{prefix}{line}\n")


def show(
    inventory: Inventory,
    variables: Mapping[str, Any],
    *,
    task: str | None,
    follow: bool,
    lines: int | None,
    interrupted: Callable[[], bool],
    say: Callable[[str], None],
    stream: TextIO = sys.stdout,
) -> playbooks.Outcome | None:
    """Print the logs of the job's last attempt, and of those that follow it.

    Args:
        inventory: see ansible_options.Inventory.
        variables: of the role, ``train_job_id`` among them.
        task: the only one to show; None for all.
        follow: whether to go on until the job has ended.
        lines: how many lines of each log to begin with; None for all.
        interrupted: asked often whether to end now.
        say: told what is no line of a log.
        stream: where to print.

    Returns:
        How the last playbook that found ranks ended; None where it was interrupted.

    Raises:
        ValueError: there is no such task.
        FileNotFoundError: there is no such inventory.
    """
    given = {**variables, "train_job_logs_follow": follow}
    if lines is not None:
        given["train_job_logs_lines"] = lines
    shown: playbooks.Outcome | None = None
    deadline = float("-inf")
    while True:
        with tempfile.TemporaryDirectory(prefix="train-logs-") as folder:
            printer = LogPrinter(Path(folder, "logs"), task, stream)
            variables = {**given, "train_job_logs_dir": folder}
            outcome = _show_attempt(inventory, variables, printer, task, interrupted)
        if outcome is None:
            return None
        attempt, ranks = _found(outcome)
        if ranks or outcome.code:
            shown = outcome
            given.pop("train_job_logs_lines", None)
            given["train_job_logs_after"] = attempt
            if follow and _fell(outcome):
                deadline = time.monotonic() + RESTART_WAIT
                say(f"the gang fell: waiting {RESTART_WAIT:g} s for another attempt")
        if not follow or outcome.code or time.monotonic() > deadline:
            return shown or outcome
        time.sleep(_RESTART_PAUSE)


def _show_attempt(
    inventory: Inventory,
    variables: Mapping[str, Any],
    printer: LogPrinter,
    task: str | None,
    interrupted: Callable[[], bool],
) -> playbooks.Outcome | None:
    """Print the logs of one attempt; None where it was interrupted."""
    playbook = playbooks.Playbook("logs.yml", inventory, variables)
    try:
        ended = False
        while not ended:
            ended = playbook.wait(0.2)
            _, ranks = _found(playbook.outcome)
            if task is not None and ranks and task not in ranks:
                raise ValueError(
                    f"job {variables['train_job_id']} has no rank {task}: there are "
                    f"{', '.join(ranks)}"
                )
            if variables["train_job_logs_follow"]:
                printer.pump()
            if interrupted():
                return None
        printer.finish()
    finally:
        outcome = playbook.close()
    return outcome


def _found(outcome: playbooks.Outcome) -> tuple[int, list[str]]:
    """Return the attempt that was found, and its tasks."""
    told = playbooks.first_result(outcome, "job_ranks")
    return int(told.get("attempt", 0)), [rank["task"] for rank in told.get("ranks", ())]


def lost(outcome: playbooks.Outcome) -> list[str]:
    """Return the ranks that could not be heard to their end."""
    return list(_heard(outcome).get("lost", {}))


def _heard(outcome: playbooks.Outcome) -> dict[str, Any]:
    return playbooks.first_result(outcome, "fetch_logs")


def _fell(outcome: playbooks.Outcome) -> bool:
    """Tell whether the gang fell, just now or while it was followed, and may start again."""
    told = playbooks.first_result(outcome, "job_ranks")
    ranks = told.get("ranks", ())
    recent = any(
        rank["phase"] not in records.FINAL_PHASES or rank["idle"] < RESTART_WAIT for rank in ranks
    )
    fell = records.FAILED in _heard(outcome).get("phases", {}).values()
    return fell and recent and bool(told.get("restarts"))
