"""Temporary folders on the control node, which may contain passwords and variables of a job.

Only the user who created them can read them. A process holds a lock on each of its folders. A
killed process cannot remove its folders, so every command first removes those without a lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from pathlib import Path

#: Kinds of folders: a playbook's files, fetched logs, a check of arguments, TensorBoard's files,
#: a lock of packages, and the dashboard's overview or variables.
_PURPOSES = ("runner", "logs", "check", "board", "lock", "dashboard")
#: The file in the folder that its process locks.
_LOCK = "lock"
_NAME = re.compile(rf"train-(?:{'|'.join(_PURPOSES)})-[a-z0-9_]{{8}}", re.ASCII)


class Scratch:
    """A new folder with mode 0700. Creating it can raise OSError."""

    def __init__(self, purpose: str) -> None:
        assert purpose in _PURPOSES
        remove_abandoned()
        self.path = Path(tempfile.mkdtemp(prefix=f"train-{purpose}-"))
        new = self.path / f"{_LOCK}.new"
        self._lock = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        new.rename(self.path / _LOCK)  # locked before other processes can see it

    def __enter__(self) -> Path:
        """Return the folder, which is removed at the end of the block."""
        return self.path

    def __exit__(self, *error: object) -> None:
        """Remove the folder."""
        self.close()

    def close(self) -> None:
        """Remove the folder and ignore errors."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def remove_abandoned() -> None:
    """Remove this user's folders whose processes ended without removing them."""
    parent = Path(tempfile.gettempdir())
    with contextlib.suppress(OSError):
        for path in filter(lambda path: _NAME.fullmatch(path.name), parent.iterdir()):
            with contextlib.suppress(OSError):
                _remove_unless_held(path)


def _remove_unless_held(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            return
        lock = os.open(_LOCK, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)
    finally:
        os.close(folder)
