"""What a script that has ended leaves at work: processes that are about to be ended with it."""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import Callable, Dict, List, Sequence, Set

from . import processes

#: Seconds for which processes are looked at that outlive a script.
WINDOW = 2.0
#: Processor seconds of that from which on a process is at work.
_CPU_S = 0.1
#: Helpers that end after the script, or are to be ended with it.
_HELPERS = re.compile(
    r"multiprocessing\.(?:resource_tracker|semaphore_tracker|forkserver)|tensorboard|wandb|mlflow"
)
#: The most processes that are named, and characters of each.
_NAMED, _LENGTH = 3, 120


def _used(pid: int) -> float:
    """Return the processor seconds that a process has used; 0 where it has ended."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return sum(map(int, processes.stat(pid)[11:13])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _present() -> Set[int]:
    """Return what the caller, after ``processes.adopt``, has started and is still there."""
    with contextlib.suppress(ChildProcessError):
        processes.reap()
    found = processes.descendants([os.getpid()], processes.snapshot())
    return {pid for pid in found if not _HELPERS.search(processes.command(pid))}


def at_work(script: Sequence[str], session: int, grown: Callable[[], bool]) -> List[str]:
    """Return the command lines of processes that outlive a script and are at work. They use the
    processors, go on with the rank's progress (``grown``), or are copies of the script itself in
    their own sessions: it has become a daemon.

    Args:
        script: its command.
        session: its own, which it has led.
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
        is_daemon = command == " ".join(script) and _session(pid) not in (0, session)
        if progress or is_daemon or _used(pid) - before[pid] > _CPU_S:
            found.append(command[:_LENGTH])
    return found[:_NAMED]


def _session(pid: int) -> int:
    """Return the session of a process; 0 where it has ended."""
    with contextlib.suppress(OSError):
        return os.getsid(pid)
    return 0
