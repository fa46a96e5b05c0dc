"""Detects whether a non-training task is at work, from its CPU time and its output."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: Minimum CPU cores that a process uses while it works rather than waits.
_CORES = 0.2
_DIGITS = re.compile(r"\d+")


class Activity:
    """Tracks when a task was last seen at work: ``at``, by the monotonic clock, or 0 for never.

    A task that only repeats a line of output with other numbers counts as waiting.
    """

    def __init__(self) -> None:
        self.at = 0.0
        self._line = ""
        self._reading: tuple[float, float] | None = None

    def add(self, text: str, load: object, now: float) -> None:
        """Add new output of the task, and its unchecked ``load`` (see host.load.facts)."""
        for line in text.splitlines():
            shape = _DIGITS.sub("0", line).strip()
            if shape and shape != self._line:
                self.at, self._line = now, shape
        if not isinstance(load, Mapping):
            return
        at, used = load.get("t"), load.get("cpu_s")
        if not isinstance(at, (int, float)) or not isinstance(used, (int, float)):
            return
        before, self._reading = self._reading, (at, used)
        if before and at > before[0] and (used - before[1]) / (at - before[0]) > _CORES:
            self.at = now
