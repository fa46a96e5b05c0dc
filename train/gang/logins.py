"""SSH logins that the commands for one machine share.

sshd limits the logins in progress (``MaxStartups``) and the commands in one login
(``MaxSessions``). Several ranks on one machine would exceed both. Therefore all processes of this
user log in to a machine one at a time, and each command holds a place in a login.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

#: Maximum number of commands that share a login. sshd's default limit is 10.
SESSIONS = 8

#: Seconds between two attempts to take a lock that another process holds.
_LOCK_POLL = 0.02
#: Maximum size of a failure note for other processes, in bytes.
_NOTE_SIZE = 1 << 16
#: Seconds between two attempts to log in, from the shortest to the longest.
_PAUSES = (0.2, 2.0)

#: Logins that may begin at the same time for each core of this machine, and the longest time in
#: seconds that each of them counts.
_AT_ONCE, _TURN_S = 8, 5.0
#: Whether this thread has a turn.
_turns = threading.local()

#: Messages from ssh that the host's or a jump host's sshd closed the connection before the login.
_REFUSED = re.compile(
    r"\b(?:(?:kex|ssh)_exchange_identification: (?:(?:read|write): )?"
    r"|banner exchange: Connection (?:to|from) \S+(?: port \d+)?: )"
    r"(?:Connection closed by remote host|Connection reset by peer|Broken pipe)"
    r"|\bExceeded MaxStartups\b",
    re.IGNORECASE,
)
#: Other reasons for a closed connection, from a jump host or the program of a ProxyCommand.
_OTHER_REASON = re.compile(
    r"open failed: |Permission denied \(|Too many authentication failures"
    r"|Host key verification failed|HOST IDENTIFICATION HAS CHANGED|Could not resolve hostname"
    r"|Name or service not known|Connection refused|Connection timed out|Operation timed out"
    r"|No route to host|Network is unreachable|command not found|Bad configuration option",
    re.IGNORECASE,
)
_DEBUG = re.compile(r"^debug\d: .*$", re.MULTILINE)
#: Messages from ssh about a login that cannot be shared, before it logs in separately.
_NOTES = re.compile(
    rb"^(?:mux_client_request_session: .*|ControlSocket .* already exists, disabling multiplexing)"
    rb"\r?\n",
    re.MULTILINE,
)


def is_worth_another_try(errors: str) -> bool:
    """Return whether ssh's error output means that too many logins were in progress.

    In that case, the command has not started.
    """
    text = _DEBUG.sub("", errors)
    return bool(_REFUSED.search(text)) and not _OTHER_REASON.search(text)


def is_shared(path: Path) -> bool:
    """Return whether an ssh shares its login at a control path.

    ``ssh -O check`` also answers this, but needs several times as long as a connection.
    """
    with socket.socket(socket.AF_UNIX) as master:
        master.setblocking(False)
        try:
            master.connect(str(path))
        except BlockingIOError:  # it listens, but is too slow
            return True
        except OSError:
            return False
    return True


def without_notes(errors: bytes) -> bytes:
    """Return a successful command's error output without ssh's messages about shared logins."""
    return _NOTES.sub(b"", errors)


def pauses(
    limit: float,
    clock: Callable[[], float] = time.monotonic,
    draw: Callable[[float, float], float] = random.uniform,
) -> Iterator[float]:
    """Yield the seconds to wait before each further attempt, until ``limit`` seconds from now.

    The pauses are random, so that commands that were refused together do not retry together.
    """
    shortest, longest = _PAUSES
    end = clock() + limit
    while True:
        pause = draw(shortest / 2, shortest)
        if clock() + pause >= end:
            return
        yield pause
        shortest = min(shortest * 1.5, longest)


@contextlib.contextmanager
def turn(folder: Path, name: str, places: int = 0) -> Iterator[None]:
    """Wait until a login may begin, and run the block.

    A login needs processor time on this machine. If hundreds of them begin at once, they all take
    longer than their time limit. A login that has hung for _TURN_S seconds does not count anymore.
    A thread that already has a turn keeps it.

    Args:
        folder: for lock files. It is created.
        name: of the host. If all places are taken, it selects the one to wait for.
        places: the number of logins that may begin at once; 0 for a number that fits this machine.
    """
    if getattr(_turns, "has_one", False):
        yield
        return
    count = places or _AT_ONCE * (os.cpu_count() or 1)
    first = int.from_bytes(hashlib.sha256(name.encode()).digest(), "big") % count
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # without locks, all begin at once
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            stream = held.enter_context(_place(folder, first, count))
            timer = threading.Timer(_TURN_S, stream.close)
            timer.daemon = True
            timer.start()
            held.callback(timer.cancel)
        _turns.has_one = True
        try:
            yield
        finally:
            _turns.has_one = False


def _place(folder: Path, first: int, count: int) -> IO[str]:
    """Return the locked file of a free place, or wait for place ``first``."""
    for number in range(count):
        stream = (folder / f"turn-{(first + number) % count}").open("a")
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.close()
        else:
            return stream
    stream = (folder / f"turn-{first}").open("a")
    fcntl.flock(stream, fcntl.LOCK_EX)
    return stream


class Logins:
    """The logins of this user to one machine, numbered from 0.

    Args:
        folder: for the lock files of all machines. It is created.
        machine: identifies the machine and how it is reached. Equal values share logins.
    """

    def __init__(self, folder: Path, machine: str) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._name = hashlib.sha256(machine.encode()).hexdigest()[:16]

    @contextlib.contextmanager
    def session(self) -> Iterator[int]:
        """Hold a place in a login and yield the number of that login."""
        for place in itertools.count():
            with _locked(self._path(f"session-{place}"), 0) as lock:
                if lock is not None:
                    yield place // SESSIONS
                    return

    def log_in(self, exists: Callable[[], bool], connect: Callable[[], str], limit: float) -> str:
        """Log in unless another process has done so. Return an error message or an empty string.

        One process at a time logs in to a machine. Its failure applies to all processes that have
        waited for it, because they would only fail one after the other.

        Args:
            exists: returns whether the login already exists.
            connect: logs in and returns an error message, or an empty string if it worked.
            limit: maximum seconds to wait for other processes. After that, return an empty string
                without a login.
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
        """Return the maximum number of simultaneous logins so far."""
        places = [
            int(path.name.rpartition("-")[2])
            for path in self._folder.glob(f"{self._name}-session-*")
        ]
        return max(places, default=0) // SESSIONS + 1

    def _path(self, name: str) -> Path:
        return self._folder / f"{self._name}-{name}"


@contextlib.contextmanager
def _locked(path: Path, limit: float) -> Iterator[int | None]:
    """Lock a file and yield its descriptor; None if it is still locked after ``limit`` seconds."""
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
    """Return the failure noted in a lock file, or an empty string if it is older than ``begin``."""
    with contextlib.suppress(ValueError):
        time_text, _, error = os.pread(lock, _NOTE_SIZE, 0).decode(errors="replace").partition(" ")
        if begin <= float(time_text) <= time.monotonic():  # it may be from before a reboot
            return error
    return ""


def _note_failure(lock: int, error: str) -> None:
    """Note the result of a login in a lock file: an error message, or an empty string."""
    note = f"{time.monotonic()} {error}" if error else ""
    os.ftruncate(lock, 0)
    os.pwrite(lock, note.encode(errors="replace")[:_NOTE_SIZE], 0)
