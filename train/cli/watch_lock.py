"""The lock of a job's folder that the command which watches the job holds until it ends.

The lock file also records which process that is. It is emptied at a regular end, so that an
unlocked record means that the process was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from train.gang import job_records, suggestions
from train.gang.errors import UserError
from train.host import plain_text

FILE = ".watched"
#: Maximum bytes of a record to read, and maximum characters of a name in it.
_RECORD, _NAME = 4096, 200
#: How often, and after how many seconds, to try again to take a lock.
_TRIES, _PAUSE_S = 4, 0.05
#: Seconds for Ansible's processes to end after the command that started them was killed.
_ORPHANS_S = 15.0


class WatchedError(UserError):
    """Another command of this control node watches the job. ``watcher`` is its record."""

    def __init__(self, job: str, watcher: dict[str, Any]) -> None:
        attach, stop = (suggestions.command(name, job=job) for name in ("attach", "stop"))
        super().__init__(
            f"{described(watcher)} already watches job {job}: follow it with `{attach}`, or stop "
            f"the job with `{stop}`"
        )
        self.watcher = watcher


def described(watcher: dict[str, Any]) -> str:
    """Return a text about the process that watches a job, such as ``pid 12 on node-1``."""
    where = f"pid {watcher.get('pid', '?')} on {watcher.get('host', '?')}"
    return f"{where} (in the background)" if watcher.get("background") else where


class WatchLock:
    """A lock that is held until ``close`` or the end of the process.

    Creating it raises WatchedError if another process holds it, and OSError if the file cannot be
    written. The folder must exist.
    """

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / FILE
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        tries = _TRIES
        while True:
            self._stream = os.fdopen(os.open(self._path, flags, 0o600), "r+b", buffering=0)
            try:
                fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_current():
                    break
            except BlockingIOError:
                tries -= 1  # `watcher_of` holds it for a moment
                if not tries:
                    watcher = _read(self._stream.fileno())
                    self._stream.close()
                    raise WatchedError(run_dir.name, watcher) from None
                time.sleep(_PAUSE_S)
            self._stream.close()
        self.was_killed = bool(_read(self._stream.fileno()))
        self.note(background=False)

    def _is_current(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self._stream.fileno()), self._path.lstat())
        return False

    def note(self, background: bool) -> None:
        """Record that this process watches the job."""
        record = {"pid": os.getpid(), "host": socket.gethostname(), "background": background}
        self._write(json.dumps({**record, "since": round(time.time(), 3)}).encode())

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # a full disk
            os.ftruncate(self._stream.fileno(), 0)
            os.pwrite(self._stream.fileno(), data, 0)

    def forget(self) -> None:
        """Remove the file, before the job's folder is removed."""
        if not self._stream.closed and self._is_current():
            self._path.unlink()

    def close(self) -> None:
        """Unlock the folder. Further calls have no effect."""
        if not self._stream.closed:
            self._write(b"")
            self._stream.close()


def watcher_of(run_dir: Path) -> dict[str, Any] | None:
    """Return the record of the command that watches a job, or None without such a command."""
    try:
        stream = (run_dir / FILE).open("rb", buffering=0)
    except FileNotFoundError:
        return None
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _read(stream.fileno())
    return None


def _read(descriptor: int) -> dict[str, Any]:
    """Return the record in a lock file; empty if it has none."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(os.pread(descriptor, _RECORD, 0))
        if isinstance(found, dict):
            return {
                name: plain_text.clean(value, _NAME) if isinstance(value, str) else value
                for name, value in found.items()
            }
    return {}


def await_orphans(run_dir: Path) -> None:
    """Wait for the end of the Ansible process that still writes a killed watch's files."""
    until = time.monotonic() + _ORPHANS_S
    while time.monotonic() < until:
        try:
            with (run_dir / job_records.LOCK_FILE).open("rb") as stream:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.2)
        except OSError:
            return
        else:
            return
