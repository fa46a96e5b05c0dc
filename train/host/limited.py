"""Limits the size of a rank's file on the disk while the script continues to write to it.

The script keeps the file open and appends to it, so the file can be neither renamed nor replaced.
Instead, the space in its middle is freed ("punching a hole", fallocate(2)). The file keeps its
beginning, its newest part and all offsets, and needs no more space than these parts. On a
filesystem that does not support this, the file is emptied and restarted with its last lines.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from typing import Optional, Tuple

#: The offset of the first freed byte, and the offset after the last one.
Hole = Tuple[int, int]

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
#: The errors of a filesystem that cannot free a part of a file.
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV)
#: Space is freed in whole blocks.
_BLOCK = 4096
#: The shares of the limit for a file's beginning and (at least) for its end.
_HEAD, _NEWEST = 8, 2
#: Bytes of a file's end to keep if the rest cannot be freed.
_LAST = 65_536


def punch(descriptor: int, begin: int, end: int) -> None:
    """Free a file's space between two offsets in bytes. Raise OSError if that is impossible."""
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    if fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, begin, end - begin):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


class LimitedFile:
    """A file that takes at most about ``limit`` bytes on the disk; 0 means no limit.

    It may exceed the limit between two calls. ``hole`` is the freed range in its middle.
    """

    def __init__(self, path: str, limit: int) -> None:
        self.path, self._limit = path, limit
        self._begin = limit // _HEAD // _BLOCK * _BLOCK
        self._inode: Optional[int] = None
        self.hole: Optional[Hole] = None

    def wanted(self) -> Optional[Hole]:
        """Return the hole that the file needs now; None if it needs none or is not a regular file.

        If the current hole is sufficient, return that.
        """
        try:
            status = os.lstat(self.path)
        except OSError:
            return None
        if not self._limit or not stat.S_ISREG(status.st_mode):
            return None
        if self.hole and (status.st_ino != self._inode or status.st_size < self.hole[1]):
            self.hole = None  # the script has replaced or emptied the file
        self._inode = status.st_ino
        freed = self.hole[1] - self.hole[0] if self.hole else 0
        if status.st_size - freed <= self._limit:
            return self.hole
        end = (status.st_size - self._limit // _NEWEST) // _BLOCK * _BLOCK
        return self._begin, max(self._begin, end)

    def free(self, hole: Hole) -> None:
        """Free the range returned by ``wanted``. Raise OSError if the file cannot be changed."""
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
    """Empty a file except for its last lines."""
    size = os.fstat(descriptor).st_size
    last = os.pread(descriptor, _LAST, max(0, size - _LAST))
    os.ftruncate(descriptor, 0)
    os.write(descriptor, last.partition(b"\n")[2] or last)
