"""Keeps what a rank writes to a file within a limit, while the script continues to write.

The script appends to a file that it holds open, which can therefore be neither renamed nor
replaced. The space in its middle can be freed, though ("punching a hole", fallocate(2)): the file
keeps its beginning, its newest part and all offsets, and takes no more room on the disk than that.
On a filesystem that cannot do so, the file is emptied and begins again with its last lines.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from typing import Optional, Tuple

#: The first byte that was freed, and the one after the last.
Hole = Tuple[int, int]

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
#: How a filesystem reports that it cannot free a part of a file.
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV)
#: Space is freed in whole blocks.
_BLOCK = 4096
#: The parts of the limit that are kept of a file's beginning and, at least, of its end.
_HEAD, _NEWEST = 8, 2
#: Bytes of a file's end that are kept where the rest cannot be freed.
_LAST = 65_536


def punch(descriptor: int, begin: int, end: int) -> None:
    """Free the space of a file from ``begin`` to ``end``; OSError if that is not possible."""
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    if fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, begin, end - begin):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


class LimitedFile:
    """A file that takes at most about ``limit`` bytes on the disk, apart from what is written
    between two calls; with a limit of 0, any number. ``hole`` is what was freed in its middle.
    """

    def __init__(self, path: str, limit: int) -> None:
        self.path, self._limit = path, limit
        self._begin = limit // _HEAD // _BLOCK * _BLOCK
        self._inode: Optional[int] = None
        self.hole: Optional[Hole] = None

    def wanted(self) -> Optional[Hole]:
        """Return the hole that the file needs now; None if it fits, or is not a plain file."""
        try:
            status = os.lstat(self.path)
        except OSError:
            return None
        if not self._limit or not stat.S_ISREG(status.st_mode):
            return None
        if self.hole and (status.st_ino != self._inode or status.st_size < self.hole[1]):
            self.hole = None  # the script has replaced or emptied it
        self._inode = status.st_ino
        freed = self.hole[1] - self.hole[0] if self.hole else 0
        if status.st_size - freed <= self._limit:
            return self.hole
        end = (status.st_size - self._limit // _NEWEST) // _BLOCK * _BLOCK
        return self._begin, max(self._begin, end)

    def free(self, hole: Hole) -> None:
        """Make the hole that is ``wanted``; OSError if the file cannot be changed."""
        begin = self.hole[1] if self.hole else hole[0]
        flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(self.path, flags)
        try:
            punch(descriptor, begin, hole[1])
            self.hole = hole
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            _begin_again(descriptor)
            self.hole = None
        finally:
            os.close(descriptor)


def _begin_again(descriptor: int) -> None:
    """Empty a file but for its last lines."""
    size = os.fstat(descriptor).st_size
    last = os.pread(descriptor, _LAST, max(0, size - _LAST))
    os.ftruncate(descriptor, 0)
    os.write(descriptor, last.partition(b"\n")[2] or last)
