"""Logins over SSH that the commands for one machine share.

sshd limits how many logins are in progress at once (``MaxStartups``) and how many commands run over
one login (``MaxSessions``). Several ranks of one machine would exceed both. Here the commands of
all processes of this user take turns to log in, and each command holds a place in a login.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

#: Commands that share a login. sshd's default limit is 10.
SESSIONS = 8

#: Seconds between two looks at a lock that another process holds.
_LOCK_POLL = 0.02
#: Bytes of a failure that other processes read.
_NOTE_SIZE = 1 << 16
#: Seconds between two tries of a login, from the shortest to the longest.
_PAUSES = (0.2, 2.0)

#: How ssh reports that sshd, or the sshd of a jump host, closed the connection before the login.
_REFUSED = re.compile(
    r"\b(?:(?:kex|ssh)_exchange_identification: (?:(?:read|write): )?"
    r"|banner exchange: Connection (?:to|from) \S+(?: port \d+)?: )"
    r"(?:Connection closed by remote host|Connection reset by peer|Broken pipe)"
    r"|\bExceeded MaxStartups\b",
    re.IGNORECASE,
)
#: Another reason for it, which lies with a jump host or with the program of a ProxyCommand.
_OTHER_REASON = re.compile(
    r"open failed: |Permission denied \(|Too many authentication failures"
    r"|Host key verification failed|HOST IDENTIFICATION HAS CHANGED|Could not resolve hostname"
    r"|Name or service not known|Connection refused|Connection timed out|Operation timed out"
    r"|No route to host|Network is unreachable|command not found|Bad configuration option",
    re.IGNORECASE,
)
_DEBUG = re.compile(r"^debug\d: .*$", re.MULTILINE)
#: What ssh prints of a login that cannot be shared, before it logs in once more.
_NOTES = re.compile(
    rb"^(?:mux_client_request_session: .*|ControlSocket .* already exists, disabling multiplexing)"
    rb"\r?\n",
    re.MULTILINE,
)


def is_worth_another_try(errors: str) -> bool:
    """Return whether ssh, which printed these errors, was refused because of too many logins at
    once. In that case its command has not begun.
    """
    text = _DEBUG.sub("", errors)
    return bool(_REFUSED.search(text)) and not _OTHER_REASON.search(text)


def without_notes(errors: bytes) -> bytes:
    """Return the errors of a command that succeeded without what ssh prints of shared logins."""
    return _NOTES.sub(b"", errors)


def pauses(
    limit: float,
    clock: Callable[[], float] = time.monotonic,
    draw: Callable[[float, float], float] = random.uniform,
) -> Iterator[float]:
    """Return how many seconds to wait before each further try, until ``limit`` seconds from now.
    They are random, so that those who were refused together do not come back together.
    """
    shortest, longest = _PAUSES
    end = clock() + limit
    while True:
        pause = draw(shortest / 2, shortest)
        if clock() + pause >= end:
            return
        yield pause
        shortest = min(shortest * 1.5, longest)


class Logins:
    """The logins of this user to one machine, numbered from 0.

    Args:
        folder: for the lock files of all machines; it is made.
        machine: names the machine and the way to it. Equal names share logins.
    """

    def __init__(self, folder: Path, machine: str) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._name = hashlib.sha256(machine.encode()).hexdigest()[:16]

    @contextlib.contextmanager
    def session(self) -> Iterator[int]:
        """Hold a place in a login, and return the number of that login."""
        for place in itertools.count():
            with _locked(self._path(f"session-{place}"), 0) as lock:
                if lock is not None:
                    yield place // SESSIONS
                    return

    def log_in(self, exists: Callable[[], bool], connect: Callable[[], str], limit: float) -> str:
        """Log in unless the login exists by then; return why that failed, empty if it did not.

        One process at a time logs in to a machine. A failure is also that of all processes that
        have waited for it: the others would only fail one after the other.

        Args:
            connect: returns why it failed.
            limit: the longest time to wait for other processes, in seconds. After it, this
                returns without a login.
        """
        waiting_since = time.monotonic()
        with _locked(self._path("login"), limit) as lock:
            if lock is None:
                return ""
            failure = _failure_since(lock, waiting_since)
            if failure or exists():
                return failure
            error = connect()
            _note_failure(lock, error)
            return error

    def count(self) -> int:
        """Return how many logins there have been at once, at most."""
        places = [
            int(path.name.rpartition("-")[2])
            for path in self._folder.glob(f"{self._name}-session-*")
        ]
        return max(places, default=0) // SESSIONS + 1

    def _path(self, name: str) -> Path:
        return self._folder / f"{self._name}-{name}"


@contextlib.contextmanager
def _locked(path: Path, limit: float) -> Iterator[int | None]:
    """Hold a lock and return its file, None if another process still holds it after ``limit``
    seconds.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield lock if _take(lock, time.monotonic() + limit) else None
    finally:
        os.close(lock)


def _take(lock: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOCK_POLL)
        else:
            return True


def _failure_since(lock: int, begin: float) -> str:
    """Return the failure that is noted in a lock file, empty if it is older than ``begin``."""
    with contextlib.suppress(ValueError):
        time_text, _, error = os.pread(lock, _NOTE_SIZE, 0).decode(errors="replace").partition(" ")
        if begin <= float(time_text) <= time.monotonic():  # it may be from before a reboot
            return error
    return ""


def _note_failure(lock: int, error: str) -> None:
    """Note in a lock file that a login failed just now, or with an empty text that it did not."""
    note = f"{time.monotonic()} {error}" if error else ""
    os.ftruncate(lock, 0)
    os.pwrite(lock, note.encode(errors="replace")[:_NOTE_SIZE], 0)
