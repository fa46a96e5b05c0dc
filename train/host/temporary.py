"""Manages the folder for temporary files of a rank, so that none stay in ``/tmp`` of its host."""

from __future__ import annotations

import contextlib
import os

#: Its name in the rank's folder.
NAME = ".tmp"
#: Maximum length of a UNIX socket's path, and what multiprocessing and others append to TMPDIR.
_LONGEST_SOCKET, _ADDED = 107, 40


def create(rank_dir: str) -> str:
    """Create the folder and return its path.

    Return an empty string if the folder is not suitable as ``TMPDIR``. A script may create UNIX
    sockets there and run files.
    """
    path = os.path.join(rank_dir, NAME)
    remove(rank_dir)  # left by an interrupted attempt
    if len(os.fsencode(path)) + _ADDED > _LONGEST_SOCKET:
        return ""
    try:
        os.mkdir(path, 0o700)
        runs_nothing = os.statvfs(path).f_flag & os.ST_NOEXEC
    except OSError:
        return ""
    return "" if runs_nothing else path


def remove(rank_dir: str) -> None:
    """Remove the folder with its contents."""
    path = os.path.join(rank_dir, NAME)
    if os.path.islink(path):  # created by the script
        with contextlib.suppress(OSError):
            os.unlink(path)
    elif os.path.exists(path):
        import shutil  # slow to import

        shutil.rmtree(path, ignore_errors=True)
