"""Temporary folders on the control node, which may hold passwords and variables of a job.

Only their user can read them. A process holds a lock on each of its folders; one that is killed
cannot remove them, so every command first removes the user's folders that no process holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from pathlib import Path

#: What each kind of folder is for: a playbook's files, fetched logs, a check of arguments,
#: TensorBoard's files, and a lock of packages.
_PURPOSES = ("runner", "logs", "check", "board", "lock")
#: The file in the folder that its process has locked.
_LOCK = "lock"
_NAME = re.compile(rf"train-(?:{'|'.join(_PURPOSES)})-[a-z0-9_]{{8}}", re.ASCII)


class Scratch:
    """A new folder with mode 0700; OSError if it cannot be created."""

    def __init__(self, purpose: str) -> None:
        assert purpose in _PURPOSES
        remove_abandoned()
        self.path = Path(tempfile.mkdtemp(prefix=f"train-{purpose}-"))
        new = self.path / f"{_LOCK}.new"
        self._lock = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        new.rename(self.path / _LOCK)  # it is held from the moment in which others can find it

    def __enter__(self) -> Path:
        """Return the folder, which is removed at the end of the block."""
        return self.path

    def __exit__(self, *error: object) -> None:
        """Remove the folder."""
        self.close()

    def close(self) -> None:
        """Remove the folder, as far as that is possible."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def remove_abandoned() -> None:
    """Remove this user's folders whose processes have ended without doing so."""
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
