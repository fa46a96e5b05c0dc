"""The lines of a log as a terminal shows them.

A program that draws a progress bar writes it over itself, with backspaces (Keras 2), carriage
returns (Keras 3, tqdm) or both, and a newline only at its end. Of such a line the last state
counts.
"""

from __future__ import annotations

import re
import time
from typing import List, Optional

from .log_shapes import CONTROLS, ESCAPES

#: Seconds between two states of a bar that is being drawn.
BAR_INTERVAL = 10.0
#: Bytes after which a line that does not end is cut.
MAX_LINE = 65_536
_OVER = re.compile(rb"[\x08\r]+")


class LogLines:
    """Turns the bytes of one log, as they come, into lines; of a bar that is being drawn, the
    current state every ``interval`` seconds.
    """

    def __init__(self, interval: float = BAR_INTERVAL) -> None:
        self._interval = interval
        self._rest = b""  # of the current line
        self._shown = b""  # the state of its bar that was shown last
        self._time = time.monotonic()

    @property
    def current(self) -> str:
        """The state of the last line, which no newline has ended yet."""
        return readable(_last_state(self._rest) or b"")

    def feed(self, data: bytes) -> List[str]:
        """Take the next bytes of the log and return the lines that are complete with them."""
        found = []
        *complete, self._rest = (self._rest + data).split(b"\n")
        for line in complete:
            state = _last_state(line)
            if state is not None and not (state and state == self._shown):
                found.append(readable(state))
            self._shown = b""
        return found + self._drawn_now()

    def finish(self) -> List[str]:
        """Return what is left at the log's end, which no newline followed."""
        state, self._rest = _last_state(self._rest), b""
        return [readable(state)] if state and state != self._shown else []

    def _drawn_now(self) -> List[str]:
        """Return the state of the bar that is being drawn, if it is time for one."""
        drawn = [stroke.start() for stroke in _OVER.finditer(self._rest)]
        if drawn:
            # What follows the last stroke may not be whole yet.
            whole, kept = _last_state(self._rest[: drawn[-1]]) or b"", self._rest[drawn[-1] :]
            self._rest = whole + kept
            now = time.monotonic()
            if whole and whole != self._shown and now - self._time >= self._interval:
                self._time, self._shown = now, whole
                return [readable(whole)]
            if len(self._rest) > MAX_LINE:
                self._rest = kept
        if len(self._rest) > MAX_LINE:
            cut, self._rest = self._rest[:MAX_LINE], self._rest[MAX_LINE:]
            return [readable(_last_state(cut) or b"")]
        return []


def lines_of(log: bytes) -> List[str]:
    """Return the lines of a whole log, or of its end."""
    lines = LogLines(interval=float("inf"))
    return lines.feed(log) + lines.finish()


def _last_state(line: bytes) -> Optional[bytes]:
    """Return what a terminal shows of a line that was drawn over; None where that is nothing."""
    states = [state for state in _OVER.split(line) if state.strip()]
    if states:
        return states[-1]
    # An empty line is one; what only moves the cursor is none.
    return None if _OVER.search(line) else b""


def readable(line: bytes) -> str:
    """Return a line as text, without what would move the cursor, ring or colour."""
    text = ESCAPES.sub(b"", line).decode("utf-8", "replace")
    return CONTROLS.sub("", text).rstrip()
