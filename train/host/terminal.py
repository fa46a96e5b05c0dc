"""Converts a log to the lines that a terminal would show.

A program overwrites its progress bar with backspaces (Keras 2), carriage returns (Keras 3, tqdm) or
both, and writes a newline only at the end. Of such a line, only the last state is kept.
"""

from __future__ import annotations

import re
import time
from typing import List, Optional

from .log_shapes import CONTROLS, ESCAPES

#: Seconds between two shown states of an unfinished bar.
BAR_INTERVAL = 10.0
#: Bytes after which an unfinished line is split.
MAX_LINE = 65_536
_OVER = re.compile(rb"[\x08\r]+")


class LogLines:
    """Converts the bytes of a log to lines as they arrive.

    While a progress bar is unfinished, its current state is returned every ``interval`` seconds.
    """

    def __init__(self, interval: float = BAR_INTERVAL) -> None:
        self._interval = interval
        self._rest = b""  # bytes of the current line
        self._shown = b""  # the last shown state of its bar
        self._time = time.monotonic()

    @property
    def current(self) -> str:
        """The visible text of the last line, which has no newline yet."""
        return readable(_last_state(self._rest) or b"")

    def feed(self, data: bytes) -> List[str]:
        """Add the next bytes of the log; return completed lines, and the state of a bar if due."""
        found = []
        *complete, self._rest = (self._rest + data).split(b"\n")
        for line in complete:
            state = _last_state(line)
            if state is not None and not (state and state == self._shown):
                found.append(readable(state))
            self._shown = b""
        return found + self._drawn_now()

    def finish(self) -> List[str]:
        """Return the last line of the log if it has no newline and was not returned before."""
        state, self._rest = _last_state(self._rest), b""
        return [readable(state)] if state and state != self._shown else []

    def _drawn_now(self) -> List[str]:
        """Return the state of an unfinished bar if the interval is over, or part of a long line."""
        drawn = [stroke.start() for stroke in _OVER.finditer(self._rest)]
        if drawn:
            # The text after the last control character may be incomplete.
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
    """Return the visible part of an overwritten line; None if it only moves the cursor."""
    states = [state for state in _OVER.split(line) if state.strip()]
    if states:
        return states[-1]
    # An empty line counts, but not one that only moves the cursor.
    return None if _OVER.search(line) else b""


def readable(line: bytes) -> str:
    """Return a line as text, without control characters or colors."""
    text = ESCAPES.sub(b"", line).decode("utf-8", "replace")
    return CONTROLS.sub("", text).rstrip()
