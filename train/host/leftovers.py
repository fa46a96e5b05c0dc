"""Finds processes that are still active when a script has ended, before they are killed."""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import Callable, Dict, List, Sequence, Set

from . import processes

#: Seconds for which processes that outlive a script are observed.
WINDOW = 2.0
#: CPU seconds in that time from which a process counts as active.
_CPU_S = 0.1
#: Helper processes that end after the script, or may be ended with it.
_HELPERS = re.compile(
    r"multiprocessing\.(?:resource_tracker|semaphore_tracker|forkserver)|tensorboard|wandb|mlflow"
)
#: Maximum number of processes to name, and characters of each.
_NAMED, _LENGTH = 3, 120


def _used(pid: int) -> float:
    """Return the CPU seconds that a process has used; 0 if it has ended."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return sum(map(int, processes.stat(pid)[11:13])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _present() -> Set[int]:
    """Return the live descendants of this process, except helper processes of libraries.

    The process must have called ``processes.adopt``.
    """
    return {pid for pid in processes.adopted() if not _HELPERS.search(processes.command(pid))}


def at_work(script: Sequence[str], session: int, grown: Callable[[], bool]) -> List[str]:
    """Return the command lines of active processes that outlive a script.

    A process is active if it uses the CPU, if the rank's progress continues (``grown``), or if it
    is a copy of the script in another session, which means that the script became a daemon.

    Args:
        script: the script's command.
        session: the session that the script has led.
        grown: returns whether there are new progress records.
    """
    before: Dict[int, float] = {pid: _used(pid) for pid in _present()}
    deadline = time.monotonic() + WINDOW
    left, progress = set(before), False
    while left and time.monotonic() < deadline:
        time.sleep(0.1)
        left &= _present()
        progress = progress or grown()
    found = []
    for pid in sorted(left):
        command = processes.command(pid)
        is_daemon = command == " ".join(script) and processes.session(pid) not in (0, session)
        if progress or is_daemon or _used(pid) - before[pid] > _CPU_S:
            found.append(command[:_LENGTH])
    return found[:_NAMED]
