"""Detects whether a script is active: its processes use the CPU, read, write, start or end."""

from __future__ import annotations

import os
import re
from typing import NamedTuple, Optional, Set

from . import processes

#: The share of the time that a process may use the CPU and still count as only polling.
_POLLING = 0.01
_READ = re.compile(r"^(?:rchar|read_bytes): (\d+)$", re.MULTILINE)


class Sample(NamedTuple):
    """Counters of the activity of a script's processes."""

    pids: Set[int]
    cpu_seconds: float
    read: int  # bytes, from disks and from the page cache
    written: int  # bytes of output


def sample(supervisor_pid: int, written: int) -> Sample:
    """Return the activity counters of all descendants of a supervisor.

    ``written`` is the size of the script's output in bytes.
    """
    pids = processes.descendants([supervisor_pid], processes.snapshot())
    ticks, read = 0, 0
    for pid in pids:
        fields = processes.stat(pid)
        ticks += sum(map(int, fields[11:15]))  # including ended children
        read += sum(map(int, _READ.findall(processes.read_text(processes.PROC, str(pid), "io"))))
    return Sample(pids, ticks / os.sysconf("SC_CLK_TCK"), read, written)


class Life:
    """Computes from samples for how long a script has been inactive."""

    def __init__(self, now: float) -> None:
        self._seen_at = self._sampled_at = now
        self._last: Optional[Sample] = None

    def add(self, now: float, taken: Sample) -> None:
        """Add a sample that was taken at ``now``, in seconds of a monotonic clock."""
        last, seconds = self._last, now - self._sampled_at
        self._last, self._sampled_at = taken, now
        if last is None or taken._replace(cpu_seconds=last.cpu_seconds) != last:
            self._seen_at = now
        elif taken.cpu_seconds - last.cpu_seconds > _POLLING * seconds:
            self._seen_at = now

    def postpone(self, seconds: float) -> None:
        """Leave out some seconds in which this host was suspended."""
        self._seen_at += seconds

    def idle(self, now: float) -> float:
        """Return the seconds from the last activity to ``now``."""
        return now - self._seen_at
