"""The folder for the temporary files of a rank: none of them stay in the ``/tmp`` of its host."""

from __future__ import annotations

import contextlib
import os
import shutil

#: Its name in the rank's folder.
NAME = ".tmp"
#: The longest path of a UNIX socket, and what Python's multiprocessing and its like add to TMPDIR.
_LONGEST_SOCKET, _ADDED = 107, 40


def create(rank_dir: str) -> str:
    """Create the folder and return its path; empty if it cannot be used for all that a script may
    do with ``TMPDIR``: make UNIX sockets and run files there.
    """
    path = os.path.join(rank_dir, NAME)
    remove(rank_dir)  # of an attempt that was cut off
    if len(os.fsencode(path)) + _ADDED > _LONGEST_SOCKET:
        return ""
    try:
        os.mkdir(path, 0o700)
        runs_nothing = os.statvfs(path).f_flag & os.ST_NOEXEC
    except OSError:
        return ""
    return "" if runs_nothing else path


def remove(rank_dir: str) -> None:
    """Remove the folder with all that is in it."""
    path = os.path.join(rank_dir, NAME)
    if os.path.islink(path):  # by the script
        with contextlib.suppress(OSError):
            os.unlink(path)
    else:
        shutil.rmtree(path, ignore_errors=True)
