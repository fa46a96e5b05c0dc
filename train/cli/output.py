"""Code that the commands share: exit codes, messages, tables and interrupts."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from train.cli.playbooks import PlaybookOutcome
from train.gang import IS_PACKAGED
from train.gang.errors import UserError

#: The name of this program in messages. Suggested commands are made elsewhere, with all options.
PROGRAM = "train" if IS_PACKAGED and Path(sys.argv[0]).name == "train" else "python -m train"


class Exit(IntEnum):
    """Exit codes, named after the final states of jobs; see ``python -m train --help``."""

    COMPLETED = 0
    DETACHED = 0
    FAILED = 1
    REFUSED = 2
    STOPPED = 3
    UNREACHABLE = 4
    UNWATCHED = 5
    DOUBTFUL = 6
    LEFT = 130


def complain(command: str, text: str) -> None:
    """Print an error or a notice to standard error."""
    print(f"{PROGRAM} {command}: {text}", file=sys.stderr)


def announce(command: str, text: str) -> None:
    """Print to standard error that a command begins something that takes seconds."""
    print(f"{PROGRAM} {command}: {text} ...", file=sys.stderr, flush=True)


def guarded(command: str, run: Callable[[], int]) -> int:
    """Run a command and return its exit code; print errors that the user can remedy."""
    try:
        return int(run())
    except (UserError, ValueError) as error:
        complain(command, str(error))
        return Exit.REFUSED
    except KeyboardInterrupt:
        return Exit.LEFT
    except BrokenPipeError:
        # The reader closed the pipe. Without this, Python would report the error again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.COMPLETED
    except OSError as error:
        text = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        complain(command, text)
        return Exit.REFUSED


@contextmanager
def noted_interrupts(*more: int) -> Iterator[list[int]]:
    """Yield a list that collects SIGINT, SIGTERM, SIGHUP and ``more`` signals.

    They have no other effect then.
    """
    seen: list[int] = []
    signums = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *more)
    before = {signum: signal.signal(signum, lambda s, _: seen.append(s)) for signum in signums}
    try:
        yield seen
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def exit_code(outcome: PlaybookOutcome, command: str) -> int:
    """Report the failures of a playbook and return the exit code."""
    for line in outcome.messages:
        complain(command, line)
    if outcome.unreachable:
        return Exit.UNREACHABLE
    return Exit.FAILED if outcome.code else Exit.COMPLETED


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[str | Text]], width: int | None
) -> None:
    """Print rows under a header; on a terminal, cells keep their colors.

    ``width`` is the number of columns of text; None means that of the terminal.
    """
    table = Table(*header, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    Console(width=width).print(table)
