"""Readable lines of a rank's log: without the drawing of progress bars, without control characters.

A program that draws a bar writes it again and again over itself, with backspaces (Keras 2),
carriage returns (Keras 3, tqdm) or both, and a newline only at its end. Of such a line the last
state is shown, as a terminal would; while it is being drawn, now and then the state at hand.
"""

from __future__ import annotations

import re
import time

from train.host.console import CONTROLS, ESCAPES

#: Seconds between two states of a bar that is being drawn.
BAR_INTERVAL = 10.0
#: Bytes after which a line that does not end is cut.
MAX_LINE = 65_536
_OVER = re.compile(rb"[\x08\r]+")


class LogLines:
    """Turns the bytes of one log, as they come, into lines.

    Args:
        interval: seconds between two states of a bar that is being drawn.
    """

    def __init__(self, interval: float = BAR_INTERVAL) -> None:
        self._interval = interval
        self._rest = b""  # of the line at hand
        self._shown = b""  # the state of its bar that was shown last
        self._time = time.monotonic()

    def feed(self, data: bytes) -> list[str]:
        """Take the next bytes of the log and return the lines that are complete with them."""
        found = []
        *complete, self._rest = (self._rest + data).split(b"\n")
        for line in complete:
            state = _last_state(line)
            if state and state == self._shown:
                state = None  # shown already
            self._shown = b""
            if state is not None:
                found.append(readable(state))
        found += self._at_hand()
        return found

    def finish(self) -> list[str]:
        """Return what is left at the log's end, which no newline followed."""
        state = _last_state(self._rest)
        rest, self._rest = self._rest, b""
        return [readable(state)] if rest and state and state != self._shown else []

    def _at_hand(self) -> list[str]:
        """Return the state of the bar that is being drawn, if it is time for one."""
        drawn = list(_OVER.finditer(self._rest))
        if drawn:
            # What follows the last stroke may not be whole yet.
            whole = _last_state(self._rest[: drawn[-1].start()])
            kept = self._rest[drawn[-1].start() :]
            self._rest = (whole or b"") + kept if whole else kept
            now = time.monotonic()
            if whole and whole != self._shown and now - self._time >= self._interval:
                self._time, self._shown = now, whole
                return [readable(whole)]
        if len(self._rest) > MAX_LINE and drawn:
            self._rest = self._rest[-len(kept) :]
        if len(self._rest) > MAX_LINE:
            cut, self._rest = self._rest[:MAX_LINE], self._rest[MAX_LINE:]
            return [readable(_last_state(cut) or b"")]
        return []


def _last_state(line: bytes) -> bytes | None:
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
