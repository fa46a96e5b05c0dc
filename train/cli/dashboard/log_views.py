"""Shows the log of a rank from its copy on this machine: its end, as it grows, and a search."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from train.gang.watch.fetched import OLDER
from train.host import plain_text, terminal

#: Bytes of a log to show at first, and to read at most for a search.
SHOWN_BYTES, SEARCHED_BYTES = 256 * 1024, 64 << 20
#: Maximum number of lines to show or to find, and characters of a line.
LINES, WIDTH = 2_000, 2_000


def open_log(path: Path) -> int:
    """Open a log and return its descriptor. Raise OSError if it is missing or a link."""
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


@dataclass
class Found:
    """The lines of a log that contain a text.

    Attributes:
        lines: their numbers and texts.
        more: whether there are more of them.
    """

    lines: list[tuple[int, str]]
    more: bool = False


def search(path: Path, wanted: str) -> Found:
    """Return the lines of a log that contain a text, in upper or lower case."""
    data = b""
    for one in (path.with_name(path.name + OLDER), path):
        try:
            with os.fdopen(open_log(one), "rb") as stream:
                data += stream.read(SEARCHED_BYTES)
        except FileNotFoundError:
            continue
    found = Found([])
    for number, line in enumerate(data.split(b"\n"), 1):
        if wanted.lower() not in line.decode("utf-8", "replace").lower():
            continue
        for shown in terminal.lines_of(line):
            if len(found.lines) == LINES:
                found.more = True
                return found
            if wanted.lower() in shown.lower():
                found.lines.append((number, plain_text.clean(shown, WIDTH)))
    return found


class LogFollower:
    """Returns the lines of a log as it grows, beginning near its end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = terminal.LogLines()
        self._offset: int | None = None
        self._inode = 0

    def read(self) -> list[str]:
        """Return the lines that were added since the last call."""
        try:
            with os.fdopen(open_log(self._path), "rb") as stream:
                status = os.fstat(stream.fileno())
                if self._offset is None:
                    self._offset = max(0, status.st_size - SHOWN_BYTES)
                    self._inode = status.st_ino
                    if self._offset:
                        stream.seek(self._offset)
                        self._offset += len(stream.readline())
                if status.st_ino != self._inode or status.st_size < self._offset:
                    self._offset, self._inode = 0, status.st_ino  # a full file is replaced
                stream.seek(self._offset)
                data = stream.read(SHOWN_BYTES)
        except OSError:
            return []
        self._offset += len(data)
        lines = [plain_text.clean(line, WIDTH) for line in self._lines.feed(data)]
        return lines[-LINES:]

    def last(self) -> str:
        """Return the last line, which has no newline yet."""
        return plain_text.clean(self._lines.current, WIDTH)
