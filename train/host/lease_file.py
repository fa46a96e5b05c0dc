"""The file in which the jobs of a machine note who holds what: opened, locked, read, replaced.

All users of the machine write it, so it is opened with care (no links, no devices, nothing of
theirs cut short), each change happens under a lock of the whole file, and what it says is checked
before it is believed. A copy is written first: whoever is killed half-way through a change, or
finds the disk full, leaves the state before it or the state after it. Standard library only, Python
3.8 and newer.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pwd
import stat
import time
import zlib
from typing import Any, Dict, Iterator, List, Optional, Tuple

FILE = "leases.json"
#: What is written just before FILE, with the same contents.
COPY_FILE = "leases-copy.json"
VERSION = 1
#: Seconds to wait for the lock; it is held for milliseconds.
LOCK_LIMIT = 10.0
_MOST_BYTES = 4_194_304
_DIR_MODE = 0o1777
_MODE = 0o666


class LeaseError(Exception):
    """A lease cannot be had or held; the message is for people."""


def user_name(uid: int) -> str:
    """Return the name of a user of this machine, or ``uid 1000``."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return "uid %d" % uid


def _new_state() -> Dict[str, Any]:
    # Tokens grow beyond those of a file that is lost.
    return {"version": VERSION, "last_token": int(time.time() * 1000), "leases": [], "queue": []}


def _encode(state: Dict[str, Any]) -> bytes:
    summed = dict(state, crc32=zlib.crc32(json.dumps(state, sort_keys=True).encode()))
    return (json.dumps(summed, indent=1, sort_keys=True) + "\n").encode()


def _decode(data: bytes) -> Optional[Dict[str, Any]]:
    """Return the state in ``data``; None where it is damaged."""
    try:
        state = json.loads(data)
        expected = state.pop("crc32")
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    if zlib.crc32(json.dumps(state, sort_keys=True).encode()) != expected:
        return None
    kinds = {"last_token": int, "leases": list, "queue": list}
    sound = all(isinstance(state.get(name), kind) for name, kind in kinds.items())
    return dict(state) if sound and state.get("version") == VERSION else None


class LeaseFile:
    """The file of one folder.

    Args:
        folder: its folder, the same for all users; made where it is missing.
    """

    def __init__(self, folder: str) -> None:
        self.folder = os.path.abspath(os.path.expanduser(folder))

    @property
    def path(self) -> str:
        """The file."""
        return os.path.join(self.folder, FILE)

    @contextlib.contextmanager
    def locked(self, limit: float = LOCK_LIMIT) -> Iterator[Dict[str, Any]]:
        """Yield the state; what the caller has changed in it is written when the block ends.

        The state has ``last_token`` (int) and the lists ``leases`` and ``queue`` of what should be
        objects. An exception in the block leaves the file as it was.

        Args:
            limit: seconds to wait for the lock.

        Raises:
            LeaseError: the file cannot be opened, locked or written.
        """
        try:
            folder = self._open_folder()
        except OSError as error:
            raise self._unusable(self.folder, error) from None
        try:
            with contextlib.ExitStack() as stack:
                try:
                    descriptor = self._lock(folder, limit)
                    stack.callback(os.close, descriptor)
                    copy = _open(folder, COPY_FILE)
                    stack.callback(os.close, copy)
                    state, text = _read(descriptor, copy)
                except OSError as error:
                    raise self._unusable(self.path, error) from None
                yield state
                changed = _encode(state)
                if changed != text:
                    try:
                        _write(copy, changed)
                        _write(descriptor, changed)
                    except OSError as error:
                        raise self._unusable(self.path, error) from None
        finally:
            os.close(folder)

    def read(self) -> Dict[str, Any]:
        """Return the state as it is; nothing is made or changed where there is none.

        Raises:
            LeaseError: see ``locked``.
        """
        if not os.path.lexists(self.path):
            return _new_state()
        with self.locked() as state:
            return state

    def _open_folder(self) -> int:
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.folder, 0o777)
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        found = os.fstat(folder)
        if stat.S_IMODE(found.st_mode) != _DIR_MODE and found.st_uid == os.geteuid():
            os.chmod(folder, _DIR_MODE)
        return folder

    def _lock(self, folder: int, limit: float) -> int:
        """Return a descriptor of the file, locked."""
        deadline = time.monotonic() + limit
        while True:
            descriptor = _open(folder, FILE)
            try:
                while not _try_lock(descriptor):
                    if time.monotonic() > deadline:
                        raise LeaseError(
                            "%s has been locked for %g s by %s: end that process"
                            % (self.path, limit, _locker(os.fstat(descriptor).st_ino))
                        )
                    time.sleep(0.01)
                # Someone may have removed it and made another one in the meantime.
                found = os.stat(FILE, dir_fd=folder, follow_symlinks=False)
                if found.st_ino == os.fstat(descriptor).st_ino:
                    kept, descriptor = descriptor, -1
                    return kept
            except FileNotFoundError:
                pass
            finally:
                if descriptor >= 0:
                    os.close(descriptor)

    def _unusable(self, path: str, error: OSError) -> LeaseError:
        hint = "choose another train_job_lease_dir"
        if error.errno == errno.ELOOP or isinstance(error, NotADirectoryError):
            return LeaseError("%s is a link, or no folder: remove it or %s" % (path, hint))
        if isinstance(error, PermissionError):
            try:
                found = os.stat(path, follow_symlinks=False)
            except OSError:
                found = os.stat(os.path.dirname(path))
            return LeaseError(
                "%s of user %s is not open to all users (mode %o): have it removed, or %s"
                % (path, user_name(found.st_uid), stat.S_IMODE(found.st_mode), hint)
            )
        return LeaseError("%s cannot be used: %s: %s" % (path, error.strerror or error, hint))


def _open(folder: int, name: str) -> int:
    """Return a descriptor of a plain file that all users may write; it is made if need be.

    Raises:
        OSError: it cannot be opened, or is something else: a link, a device, a second name.
    """
    # Without O_CREAT where it is there: the kernel refuses that in such a folder for a file of
    # another user (fs.protected_regular).
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    deadline = time.monotonic() + 1.0
    while True:
        try:
            descriptor = os.open(name, flags, dir_fd=folder)
        except FileNotFoundError:
            try:
                descriptor = os.open(name, flags | os.O_CREAT | os.O_EXCL, _MODE, dir_fd=folder)
            except FileExistsError:
                continue
        except PermissionError:
            # Its maker is about to open it to all.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
            continue
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or found.st_size > _MOST_BYTES:
            os.close(descriptor)
            raise OSError(errno.EINVAL, "it is no file of leases")
        if stat.S_IMODE(found.st_mode) != _MODE and found.st_uid == os.geteuid():
            os.fchmod(descriptor, _MODE)
        return descriptor


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _locker(inode: int) -> str:
    """Return who holds the lock of a file, as far as the kernel tells."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/locks", encoding="ascii") as stream:
            for words in (line.split() for line in stream):
                if "->" not in words and int(words[5].rpartition(":")[2]) == inode:
                    return "pid %s" % words[4]
    return "another process"


def _read(descriptor: int, copy: int) -> Tuple[Dict[str, Any], bytes]:
    """Return the state and the bytes of the file, which may be damaged; then the copy counts."""
    texts: List[bytes] = []
    for source in (descriptor, copy):
        texts.append(os.pread(source, _MOST_BYTES, 0))
        state = _decode(texts[-1])
        if state is not None:
            return state, texts[0]
    return _new_state(), texts[0]


def _write(descriptor: int, data: bytes) -> None:
    offset = 0
    while offset < len(data):
        offset += os.pwrite(descriptor, data[offset:], offset)
    os.ftruncate(descriptor, len(data))
