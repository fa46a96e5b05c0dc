"""Reads files that a script writes and may rename, truncate, remove or replace.

A file that cannot be read counts as empty. Special files (a FIFO, a device) are not opened.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Optional

#: Bytes to read at once, also the maximum length of a line; maximum number of chunks per call.
CHUNK = 1_048_576
_CHUNKS = 2


def size(path: str) -> Optional[int]:
    """Return the size of a file: 0 if it is missing, None if it is not a regular file."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return 0
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def open_file(path: str) -> int:
    """Open a regular file and return its descriptor. Raise OSError if that is impossible."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("%s is not a file" % path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_last(path: str, count: int) -> bytes:
    """Return at most the last ``count`` bytes of a file."""
    with contextlib.closing(Tail(path)) as file:
        return file.read_last(count)


class Tail:
    """Reads data that is appended to the file ``path``, which may be missing.

    A file that was renamed or removed is read until a new file with its name has content. If a file
    grows faster than it is read, the newest lines are returned and earlier ones are skipped.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: Optional[int] = None
        self._inode: Optional[int] = None
        self._offset = 0
        self._rest = b""
        self._skips = False  # the current line is too long

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None

    def size(self) -> int:
        """Return the size of the file in bytes; 0 if it cannot be read."""
        status = self._status()
        return status.st_size if status else 0

    def read(self) -> bytes:
        """Return data that was appended since the last call."""
        new = self._read()
        if not new and self._is_replaced():
            self.close()
            new = self._read()
        return new

    def read_lines(self) -> bytes:
        """Return complete lines that were not returned before, except those longer than CHUNK."""
        new = self.read()
        complete, newline, rest = (self._rest + new).rpartition(b"\n")
        if self._skips and newline:
            complete = complete.partition(b"\n")[2]
            self._skips = False
        if len(rest) > CHUNK:
            self._skips = True
        self._rest = b"" if self._skips else rest
        return b"\n".join(line for line in complete.split(b"\n") if len(line) <= CHUNK)

    def skip_to(self, offset: int) -> None:
        """Continue at ``offset`` unless the file was already read up to there."""
        self._offset = max(self._offset, offset)

    def read_last(self, count: int, start: int = 0) -> bytes:
        """Return at most the last ``count`` bytes, and nothing before the offset ``start``.

        ``start`` is ignored if the file is shorter than that.
        """
        size = self.size()
        begin = max(start if start <= size else 0, size - count)
        with contextlib.suppress(OSError):
            if self._descriptor is not None:
                return os.pread(self._descriptor, count, begin)
        return b""

    def _status(self) -> Optional[os.stat_result]:
        """Open the file if it is not open, and return its status; None if it cannot be opened."""
        try:
            if self._descriptor is None:
                self._descriptor = open_file(self._path)
            status = os.fstat(self._descriptor)
        except OSError:
            self.close()
            return None
        if status.st_ino != self._inode or status.st_size < self._offset:
            self._inode, self._offset, self._rest, self._skips = status.st_ino, 0, b"", False
        return status

    def _is_replaced(self) -> bool:
        with contextlib.suppress(OSError):
            status = os.stat(self._path)
            is_file = stat.S_ISREG(status.st_mode) and status.st_size > 0
            return is_file and status.st_ino != self._inode
        return False

    def _read(self) -> bytes:
        parts = []
        status = self._status()
        if status is not None and self._descriptor is not None:
            skips = status.st_size - self._offset > _CHUNKS * CHUNK
            if skips:
                self._offset = status.st_size - _CHUNKS * CHUNK
            try:
                for _ in range(_CHUNKS):
                    parts.append(os.pread(self._descriptor, CHUNK, self._offset))
                    self._offset += len(parts[-1])
                    if len(parts[-1]) < CHUNK:
                        break
            except OSError:
                self.close()  # a handle may be stale while the file is not
            if skips and parts:
                # The previous line is truncated, and the first one begins in its middle.
                parts.insert(0, b"\n")
        return b"".join(parts)
