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

#: What each kind of folder is for: a playbook's files, fetched logs, a check of arguments, and
#: TensorBoard's files.
_PURPOSES = ("runner", "logs", "check", "board")
_NAME = re.compile(rf"train-(?:{'|'.join(_PURPOSES)})-[a-z0-9_]{{8}}", re.ASCII)


class Scratch:
    """A new folder with mode 0700; OSError if it cannot be created."""

    def __init__(self, purpose: str) -> None:
        assert purpose in _PURPOSES
        remove_abandoned()
        self._lock = -1
        while self._lock < 0:
            self.path = Path(tempfile.mkdtemp(prefix=f"train-{purpose}-"))
            # Another command may have found it before it was locked, and removed it.
            with contextlib.suppress(FileNotFoundError):
                self._lock = _open(self.path)
                fcntl.flock(self._lock, fcntl.LOCK_EX)
                if not self.path.is_dir():
                    os.close(self._lock)
                    self._lock = -1

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
    folder = _open(path)
    try:
        if os.fstat(folder).st_uid == os.geteuid():
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(folder)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
