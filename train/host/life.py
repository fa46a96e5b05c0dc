"""Whether a script shows signs of life: CPU time, output, or data read by any of its processes."""

from __future__ import annotations

import os
import re
from typing import NamedTuple, Optional, Set

from . import processes

#: The part of the time that a process which only polls may spend on a CPU.
_POLLING = 0.01
_READ = re.compile(r"^(?:rchar|read_bytes): (\d+)$", re.MULTILINE)


class Sample(NamedTuple):
    """What a script's processes have done so far."""

    pids: Set[int]
    cpu_seconds: float
    read: int  # bytes, from disks and from the page cache
    written: int  # bytes of output


def sample(supervisor_pid: int, written: int) -> Sample:
    """Return what all that descends from a supervisor has done; ``written`` is the size of its
    output.
    """
    pids = processes.descendants([supervisor_pid], processes.snapshot())
    ticks, read = 0, 0
    for pid in pids:
        fields = processes.stat(pid)
        ticks += sum(map(int, fields[11:15]))  # with children that have ended
        read += sum(map(int, _READ.findall(processes.read_text(processes.PROC, str(pid), "io"))))
    return Sample(pids, ticks / os.sysconf("SC_CLK_TCK"), read, written)


class Life:
    """Since when a script has shown no sign of life, from samples of what it has done."""

    def __init__(self, now: float) -> None:
        self._seen_at = self._sampled_at = now
        self._last: Optional[Sample] = None

    def add(self, now: float, taken: Sample) -> None:
        """Take a sample, at the time ``now`` in seconds of a monotonic clock."""
        last, seconds = self._last, now - self._sampled_at
        self._last, self._sampled_at = taken, now
        if last is None or taken._replace(cpu_seconds=last.cpu_seconds) != last:
            self._seen_at = now
        elif taken.cpu_seconds - last.cpu_seconds > _POLLING * seconds:
            self._seen_at = now

    def idle(self, now: float) -> float:
        """Return the seconds without a sign of life."""
        return now - self._seen_at
