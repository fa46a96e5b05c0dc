"""Manages leases of a machine's ports and GPUs, so that two jobs never share one by accident.

A rank takes its port and GPUs, all or none, before it starts. Its supervisor then holds them for as
long as it lives. A lease is a small file (docs/formats.md) in a folder that all users share. The
supervisor holds a lock on it (``flock``). For a rank that waits or is about to start, a separate
process holds the lock and ends after a time limit. Files without a lock are ignored. A lease
belongs to the user who owns the file. Another user can therefore delay a job only with a process
that really holds a lock, and cannot affect a running rank. If the folder cannot be used, jobs run
without leases.

Jobs are queued in the order of their creation, which is the same on all machines. A waiting job
holds no leases. A later attempt of a job takes over the leases of an earlier one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
import pwd
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Dict, List, NamedTuple, NoReturn, Optional, Set, Tuple, TypedDict, cast

from . import plain_text, records

#: Lifetime in seconds of a lease of a rank that has not started.
TAKEN_S = 120.0
#: Lifetime in seconds of a place in the queue, which the control node renews continuously.
QUEUED_S = 60.0
#: Seconds that a job waits for a later job that was first here but will not start.
PATIENCE_S = 15.0
#: Seconds between two checks of a supervisor that its file still exists.
RENEW_S = 10.0
#: Seconds to wait for others that change the folder, which takes milliseconds. After that, it is
#: changed in any case.
LOCK_LIMIT_S = 2.0

#: Maximum number of files to read of each other user; a rank has at most three.
MOST_OF_A_USER = 1000
#: Maximum number of resources of a rank: its port and its GPUs.
MOST_RESOURCES = 128

_POLL_S = 0.25
#: Seconds between two checks of a process that holds a lock that its file still exists.
_HOLD_S = 0.2
#: Seconds before each attempt to use the folder, which may be about to be created.
_PAUSES = (0.0, 0.1, 0.3, 0.6)
_DIR_MODE = 0o1777
_MOST_BYTES = 16_384

QUEUED, TAKEN, STARTED = "queued", "taken", "started"
#: The state of the note that replaces the place in the queue of a job that was stopped.
STOPPED = "stopped"
#: Maximum length of the reason in such a note.
_LONGEST_REASON = 300
_NAME = re.compile(r"lease-[0-9a-f]{32}\.json")
_TASK = re.compile(r"[a-z]{1,16}-[0-9]{1,6}")
_RESOURCE = re.compile(r"port/[0-9]{1,5}|gpu(/[A-Za-z0-9-]{1,64}){1,5}")
_NET = re.compile(r"net:\[[0-9]{1,20}\]")

_TYPES: Dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("state", "job", "task", "net"), str),
    **dict.fromkeys(("created_at", "since"), float),
    "attempt": int,
    "resources": lambda names: [str(name) for name in names],
}
#: The name of a file, and the descriptor that holds its lock.
_Published = Tuple[str, int]


class LeaseError(Exception):
    """A lease cannot be taken, held or changed; the message can be shown to users."""


class HeldError(Exception):
    """Other jobs have the requested resources, or precede this one in the queue."""

    def __init__(self, blockers: List[Entry]) -> None:
        super().__init__("; ".join(describe(blocker) for blocker in blockers))
        self.blockers = blockers


class StoppedError(Exception):
    """The job was stopped while it waited.

    The message is a phrase that follows the job's name, such as ``was stopped``.
    """


class Entry(TypedDict, total=False):
    """A lease or a place in the queue: the fields of its file, and properties of the file."""

    state: str
    job: str
    task: str
    attempt: int
    created_at: float
    since: float
    net: str
    resources: List[str]
    reason: str  # if the job was stopped
    name: str
    user: str
    own: bool  # whether the file belongs to this user
    resource: str  # set by ``holders``
    label: str  # description of the resource


class Holder(NamedTuple):
    """A rank that requests or has a lease; the queue is ordered by ``created_at`` and ``job``."""

    created_at: float
    job: str
    task: str
    attempt: int


def wanted(
    port: Optional[int], gpus: Optional[List[str]], machine_gpus: List[Any]
) -> Dict[str, str]:
    """Return the resources that a rank needs, each with a readable name.

    Resources are strings such as ``port/1``, ``gpu/GPU-a``, or ``gpu/GPU-a/MIG-b`` for a MIG
    instance.

    Args:
        port: the rank's port, if it has one.
        gpus: the indices or UUIDs of the rank's GPUs, if any.
        machine_gpus: all GPUs of the machine (host_facts.Gpu).
    """
    found = {} if port is None else {"port/%d" % port: "port %d" % port}
    for gpu in machine_gpus:
        parent = "gpu/" + gpu["uuid"]
        names = {str(gpu["index"]): (parent, "GPU %d" % gpu["index"])}
        names[gpu["uuid"]] = names[str(gpu["index"])]
        for uuid in gpu["instances"]:
            names[uuid] = (parent + "/" + uuid, "%s of GPU %d" % (uuid, gpu["index"]))
        found.update(names[name] for name in gpus or [] if name in names)
    return found


def user_name(uid: int) -> str:
    """Return the name of a user of this machine, or a text such as ``uid 1000`` if unknown."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return "uid %d" % uid


def entries(folder: str) -> List[Entry]:
    """Return the valid leases, places in the queue and notes in a folder, in the queue's order."""
    with contextlib.suppress(OSError), _opened(folder) as descriptor:
        return _entries(descriptor)
    return []


def holders(folder: str) -> List[Entry]:
    """Return the leases of this machine's GPUs and ports, with one entry for each ``resource``."""
    return [
        {**entry, "resource": resource}
        for entry in entries(folder)
        if entry["state"] != QUEUED
        for resource in entry["resources"]
        if _concerns(entry, resource)
    ]


@contextlib.contextmanager
def _opened(folder: str, create: bool = False) -> Iterator[int]:
    if create:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, _DIR_MODE)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if create and status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != _DIR_MODE:
            os.fchmod(descriptor, _DIR_MODE)
        _check_owner(status)
        yield descriptor
    finally:
        os.close(descriptor)


def _check_owner(status: os.stat_result) -> None:
    """Check that other users cannot remove leases from a folder. Raise OSError if they can.

    The owner of a folder with the sticky bit can still do so. That is accepted, because the first
    user of a machine creates the folder that all others use.
    """
    if status.st_uid == os.geteuid() or status.st_mode & stat.S_ISVTX:
        return  # if it is this user's own folder, its mode is corrected later
    if status.st_uid != 0 or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(
            errno.EPERM, "it lacks the sticky bit, so other users can remove leases from it"
        )


def _change(folder: str, change: Callable[[int], _Published]) -> _Published:
    """Lock a folder, call ``change`` with its descriptor, and return the result.

    If the lock is not available within LOCK_LIMIT_S seconds, ``change`` is called without it. Raise
    LeaseError if the folder cannot be used.
    """
    problem = OSError()
    for pause in _PAUSES:
        time.sleep(pause)
        try:
            with _opened(folder, create=True) as descriptor:
                deadline = time.monotonic() + LOCK_LIMIT_S
                while not _try_lock(descriptor, fcntl.LOCK_EX) and time.monotonic() < deadline:
                    time.sleep(0.01)
                return change(descriptor)
        except OSError as error:
            problem = error
    raise LeaseError(_unusable(folder, problem))


def _unusable(path: str, error: OSError) -> str:
    text = "%s cannot be used: %s" % (path, error.strerror or error)
    with contextlib.suppress(OSError):
        found = os.stat(path, follow_symlinks=False)
        text += " (owned by %s, mode %o)" % (user_name(found.st_uid), stat.S_IMODE(found.st_mode))
    return text + ": remove that path, or choose another train_job_lease_dir"


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _entries(folder: int, prune: bool = False) -> List[Entry]:
    """Return the entries in a folder; with ``prune``, also remove unlocked files of this user."""
    found = [_entry(folder, name, prune) for name in _names(folder)]
    return sorted((entry for entry in found if entry is not None), key=_order_of)


def _names(folder: int) -> List[str]:
    """Return the names of files that may be leases: this user's, and some of each other user's.

    With this limit, a user who fills the folder hardly delays others and hides only their own
    leases. If the folder has many files, those that ``/proc/locks`` lists as locked come first.
    """
    with os.scandir(folder) as found:
        files = [(file.name, file.inode()) for file in found]
    if len(files) <= MOST_OF_A_USER:
        return [name for name, _ in files if _NAME.fullmatch(name)]
    locked = _locked_inodes()
    first = [name for name, inode in files if inode in locked]
    rest = (name for name, inode in files if inode not in locked)
    return _limited(folder, [*first, *itertools.islice(rest, MOST_OF_A_USER * 10)])


def _limited(folder: int, names: List[str]) -> List[str]:
    """Return the names of this user's files, and the first MOST_OF_A_USER of each other user's."""
    kept: List[str] = []
    counts: Dict[int, int] = {}
    for name in filter(_NAME.fullmatch, names):
        try:
            owner = os.stat(name, dir_fd=folder, follow_symlinks=False).st_uid
        except OSError:
            continue  # it has been removed
        counts[owner] = counts.get(owner, 0) + 1
        if owner == os.geteuid() or counts[owner] <= MOST_OF_A_USER:
            kept.append(name)
    return kept


def _locked_inodes() -> Set[int]:
    """Return the inodes of locked files on any disk; locks held in other containers are missing."""
    with contextlib.suppress(OSError), open("/proc/locks", encoding="ascii") as stream:
        return {int(inode) for inode in re.findall(r":([0-9]+) [0-9]+ \S+$", stream.read(), re.M)}
    return set()


def _entry(folder: int, name: str, prune: bool) -> Optional[Entry]:
    """Return the entry in a file that a process has locked; None if unlocked or invalid.

    With ``prune``, an unlocked file of this user is removed.
    """

    def opener(path: str, _: int) -> int:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)

    with contextlib.suppress(OSError), open(name, "rb", opener=opener) as stream:
        status = os.fstat(stream.fileno())
        own = status.st_uid == os.geteuid()
        if not stat.S_ISREG(status.st_mode):
            return None
        if not _try_lock(stream.fileno(), fcntl.LOCK_SH):
            fields = _fields(stream.read(_MOST_BYTES))
            user = user_name(status.st_uid)
            return fields and {**fields, "name": name, "own": own, "user": user}
        if prune and own:
            os.unlink(name, dir_fd=folder)
    return None


def _fields(text: bytes) -> Optional[Entry]:
    """Return the fields in ``text``; None if any of them is missing or invalid."""
    try:
        value = json.loads(text)
        fields = cast(Entry, {name: kind(value[name]) for name, kind in _TYPES.items()})
        fields["reason"] = str(value.get("reason", ""))[:_LONGEST_REASON]
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
        return None
    sound = (
        fields["state"] in (QUEUED, TAKEN, STARTED, STOPPED)
        and all(0 <= fields[name] < 1e11 for name in ("created_at", "since", "attempt"))
        and records.JOB_PATTERN.fullmatch(fields["job"])
        and _TASK.fullmatch(fields["task"])
        and _NET.fullmatch(fields["net"])
        and all(_RESOURCE.fullmatch(name) for name in fields["resources"])
        and len(fields["resources"]) <= (0 if fields["state"] == STOPPED else MOST_RESOURCES)
    )
    return fields if sound else None


def _publish(
    folder: int,
    holder: Holder,
    state: str,
    resources: Iterable[str],
    since: float,
    reason: str = "",
) -> _Published:
    fields = dict(holder._asdict(), state=state, since=since, net=_network())
    if reason:
        fields["reason"] = reason
    text = json.dumps(dict(fields, resources=sorted(resources)), indent=1, sort_keys=True)
    name = "lease-%s.json" % os.urandom(16).hex()
    # Other users can open the file only when it is locked and complete.
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with open(descriptor, "wb", closefd=False) as stream:
            stream.write(text.encode() + b"\n")
        os.fchmod(descriptor, 0o644)
    except BaseException:
        os.close(descriptor)
        os.unlink(name, dir_fd=folder)
        raise
    return name, descriptor


def _keep(folder: str, name: str, descriptor: int, seconds: float) -> None:
    """Pass a lease's lock to a process that holds it until its file is gone.

    The process ends after ``seconds`` at the latest.
    """
    try:
        pid = os.fork()
        if pid == 0:
            _hold(descriptor, seconds)
        if os.waitpid(pid, 0)[1]:
            raise OSError("no further process can be started")
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(folder, name))
        raise LeaseError("cannot start the process that is to hold the lease: %s" % error) from None
    finally:
        os.close(descriptor)


def _hold(descriptor: int, seconds: float) -> NoReturn:
    """Hold a lock in a new process in the background, and end this one.

    The exit code is 1 if that is not possible. A fork takes a tenth of the time of a new
    interpreter, which counts with many ranks.
    """
    try:
        os.setsid()
        os.chdir("/")
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):  # the caller's caller waits until they are closed
            os.dup2(null, number)
        for number in map(int, os.listdir("/proc/self/fd")):
            if number > 2 and number != descriptor:
                with contextlib.suppress(OSError):  # the listed folder itself
                    os.close(number)
        if os.fork():
            os._exit(0)
        end = time.monotonic() + seconds
        while os.fstat(descriptor).st_nlink and time.monotonic() < end:
            time.sleep(_HOLD_S)
    finally:
        os._exit(1)


def _remove(folder: int, entry: Entry) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(entry["name"], dir_fd=folder)


def _network() -> str:
    return os.readlink("/proc/self/ns/net")


def _concerns(entry: Entry, resource: str) -> bool:
    """Return whether an entry's resource exists for this process.

    Each network namespace has its own ports, so leases of ports in other namespaces do not count.
    """
    return entry["net"] == _network() or not resource.startswith("port/")


def _overlap(one: str, other: str) -> bool:
    """Return whether two resources are the same, or one is a part of the other."""
    return one == other or one.startswith(other + "/") or other.startswith(one + "/")


def _order_of(entry: Entry) -> Tuple[float, str]:
    return entry["created_at"], entry["job"]


def _is_of(entry: Entry, holder: Holder) -> bool:
    """Return whether an entry belongs to the holder's job and to this user."""
    return bool(entry["own"]) and _order_of(entry) == holder[:2]


def _yields(entry: Entry, holder: Holder) -> bool:
    """Return whether ``holder`` may take over a lease of the same job.

    This is the case if the lease is from an earlier attempt, or if it is from the same attempt and
    its rank has not started.
    """
    started = entry["state"] == STARTED
    return _is_of(entry, holder) and (entry["attempt"], started) < (holder.attempt, True)


def _blockers(here: List[Entry], resources: Dict[str, str], holder: Holder) -> List[Entry]:
    """Return the entries that block ``holder`` or precede it in the queue, for each resource.

    ``label`` is the readable name of the resource. If a job has a resource, its place in the queue
    for that resource is left out.
    """
    leases = [e for e in here if e["state"] != QUEUED and not _yields(e, holder)]
    queue = [e for e in here if e["state"] == QUEUED and _order_of(e) < holder[:2]]
    found: List[Entry] = []
    for resource, label in resources.items():
        jobs = set()  # that have it; some also still have their place in the queue
        for entry in [*leases, *queue]:
            if entry["state"] == QUEUED and _order_of(entry) in jobs:
                continue
            wants = any(_overlap(resource, name) for name in entry["resources"])
            if wants and _concerns(entry, resource):
                found.append({**entry, "label": label})
                jobs.add(_order_of(entry))
    return found


def _refuse(here: List[Entry], resources: Dict[str, str], holder: Holder) -> None:
    blockers = _blockers(here, resources, holder)
    if blockers:
        raise HeldError(blockers)


def _note_of_stop(here: List[Entry], holder: Holder) -> Optional[Entry]:
    """Return the note that the holder's job was stopped while it waited, or None without a note."""
    notes = [entry for entry in here if entry["state"] == STOPPED and _is_of(entry, holder)]
    mine = [e for e in notes if (e["task"], e["attempt"]) == (holder.task, holder.attempt)]
    return mine[0] if mine else None


def _obey_stop(here: List[Entry], holder: Holder) -> None:
    """Raise StoppedError if the holder's job was stopped while it waited."""
    note = _note_of_stop(here, holder)
    if note is not None:
        raise StoppedError(note["reason"] or "was stopped")


def take(
    folder: str,
    resources: Dict[str, str],
    holder: Holder,
    seconds: float = TAKEN_S,
    patience: float = PATIENCE_S,
    stay: bool = False,
) -> None:
    """Take all ``resources`` for a rank that is about to start, for ``seconds``.

    ``stay`` keeps the rank's place in the queue. Nothing is taken if this raises HeldError (another
    job has one of the resources or waits for it), StoppedError (the job was stopped) or LeaseError
    (the folder cannot be used).

    If two jobs start on several machines at the same time, each may be first on some of them. The
    later job then fails at once and releases its leases. The earlier job waits for these leases for
    up to ``patience`` seconds.
    """

    def attempt(descriptor: int) -> _Published:
        here = _entries(descriptor, prune=True)
        _obey_stop(here, holder)
        _refuse(here, resources, holder)
        published = _publish(descriptor, holder, TAKEN, resources, _now())
        for entry in here:
            overlaps = any(_overlap(a, b) for a in entry["resources"] for b in resources)
            mine = entry["task"] == holder.task and not stay
            over = {TAKEN: overlaps, QUEUED: mine}
            if _is_of(entry, holder) and over.get(entry["state"], False):
                _remove(descriptor, entry)
        return published

    deadline = time.monotonic() + patience
    while resources:
        try:
            _keep(folder, *_change(folder, attempt), seconds)
            return
        except HeldError as error:
            certain = any(b["state"] != TAKEN or _order_of(b) <= holder[:2] for b in error.blockers)
            if certain or time.monotonic() > deadline:
                raise
        time.sleep(_POLL_S)


def wait(
    folder: str,
    resources: Dict[str, str],
    holder: Holder,
    seconds: float,
    is_first: bool = False,
) -> List[Entry]:
    """Wait in the queue up to ``seconds`` for ``resources``, and return the blockers.

    The resources are not taken. The result is empty if they can be taken. Raise StoppedError if the
    job was stopped meanwhile. A stop before this call counts as well, unless ``is_first`` is true.
    """
    deadline = time.monotonic() + seconds

    def queue(descriptor: int) -> _Published:
        here = _entries(descriptor, prune=True)
        if not is_first:  # an earlier stop does not apply to a new wait
            _obey_stop(here, holder)
        before = _not_started(here, holder)
        since = min([entry["since"] for entry in before if entry["state"] == QUEUED] or [_now()])
        published = _publish(descriptor, holder, QUEUED, resources, since)
        for entry in before:
            _remove(descriptor, entry)
        return published

    _keep(folder, *_change(folder, queue), QUEUED_S + seconds)
    while True:
        here = entries(folder)
        _obey_stop(here, holder)
        blockers = _blockers(here, resources, holder)
        if not blockers or time.monotonic() > deadline:
            return blockers
        time.sleep(_POLL_S)


def give_back(folder: str, holder: Holder) -> None:
    """Release the leases of a rank that has not started, in this and earlier attempts.

    Its places in the queue and its notes are removed as well.
    """
    with contextlib.suppress(OSError), _opened(folder) as descriptor:
        for entry in _not_started(_entries(descriptor, prune=True), holder):
            if entry["attempt"] <= holder.attempt:
                _remove(descriptor, entry)


def stop_job(folder: str, job: str, reason: str) -> int:
    """Release the leases and places in the queue of this user's job that no supervisor holds.

    All ranks and attempts are included. Notes inform waiting control nodes that the job was
    stopped. Return the number of released leases and places. ``reason`` is a phrase that follows
    the job's name.
    """
    given_back = 0
    for entry in entries(folder):
        if entry["own"] and entry["job"] == job and entry["state"] in (QUEUED, TAKEN):
            with contextlib.suppress(LeaseError):
                _replace_by_note(folder, entry, reason)
                given_back += 1
    return given_back


def _replace_by_note(folder: str, entry: Entry, reason: str) -> None:
    """Replace a lease or a place in the queue with a note that the job was stopped."""
    holder = Holder(entry["created_at"], entry["job"], entry["task"], entry["attempt"])

    def replace(descriptor: int) -> _Published:
        if entry["name"] not in os.listdir(descriptor):
            raise LeaseError("it was released in the meantime")
        published = _publish(descriptor, holder, STOPPED, [], _now(), reason[:_LONGEST_REASON])
        _remove(descriptor, entry)
        return published

    _keep(folder, *_change(folder, replace), QUEUED_S)


def seconds_until_start(spec: records.RankSpec) -> float:
    """Return for how many seconds the lease of a rank that has not started is valid."""
    return max(TAKEN_S, float(spec.get("start_timeout", 0)))


def _not_started(found: List[Entry], holder: Holder) -> List[Entry]:
    """Return the entries of the holder's rank, in any attempt, that no supervisor holds."""
    own = [entry for entry in found if _is_of(entry, holder) and entry["task"] == holder.task]
    return [entry for entry in own if entry["state"] != STARTED]


def release_rank(spec: records.RankSpec) -> None:
    """Release the leases in a rank's ``rank.json``, unless its supervisor has taken them over."""
    if spec.get("leases"):  # rank.json may be truncated
        give_back(spec["leases"]["folder"], holder_of(spec))


def holder_of(spec: records.RankSpec) -> Holder:
    """Return the holder that a ``rank.json`` describes; it must contain ``leases``."""
    return Holder(spec["leases"]["created_at"], spec["job"], spec["task"], spec["attempt"])


def _now() -> float:
    return round(time.time(), 3)


class Held:
    """The leases that a supervisor holds from the start of its rank to the end."""

    def __init__(self, spec: records.RankSpec) -> None:
        self._folder = spec["leases"]["folder"]
        self._resources = spec["leases"]["resources"]
        self._holder = holder_of(spec)
        self._since = _now()
        self._name = ""
        self._descriptor = -1
        self._due = 0.0
        self._problem = ""

    def confirm(self) -> None:
        """Hold the leases from now on, including expired ones that are still free.

        Raise HeldError if another job, or another start of this rank, has one of them. The lock
        belongs to this process only, not to processes that it forked earlier or starts later.
        """

        def attempt(descriptor: int) -> _Published:
            here = _entries(descriptor)
            _refuse(here, self._resources, self._holder)
            published = self._publish(descriptor)
            for entry in _not_started(here, self._holder):
                _remove(descriptor, entry)
            return published

        self._due = time.monotonic() + RENEW_S
        if self._resources:
            try:
                self._name, self._descriptor = _change(self._folder, attempt)
            except LeaseError as error:
                self._note(str(error))

    def renew(self) -> None:
        """Check the lease's file every RENEW_S seconds, and write it again if it is missing."""
        if not self._resources or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + RENEW_S
        if not self._is_there():
            try:
                with _opened(self._folder, create=True) as descriptor:
                    published = self._publish(descriptor)
            except OSError as error:
                self._note(_unusable(self._folder, error))
            else:
                self.release()
                self._name, self._descriptor = published

    def release(self) -> None:
        """Release the leases, at the rank's end."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self._folder, self._name))
            os.close(self._descriptor)
            self._descriptor = -1

    def _is_there(self) -> bool:
        try:
            found = os.stat(os.path.join(self._folder, self._name), follow_symlinks=False)
        except OSError:
            return False
        return self._descriptor >= 0 and os.path.samestat(found, os.fstat(self._descriptor))

    def _publish(self, folder: int) -> _Published:
        return _publish(folder, self._holder, STARTED, self._resources, self._since)

    def _note(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            plain_text.note("the rank is running without leases: %s" % problem)


def describe(blocker: Entry) -> str:
    """Return a description of a blocking entry."""
    return "%s is %s" % (blocker["label"], whose(blocker))


def whose(blocker: Entry) -> str:
    """Return who holds or claims a resource, such as ``in use by worker-0 of job night-1 ...``."""
    when = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(blocker["since"]))
    what = {
        STARTED: "in use by %s of job %s (user %s, since %s)",
        TAKEN: "reserved for %s of job %s (user %s, since %s), which is about to start",
        QUEUED: "claimed by %s of job %s (user %s, waiting since %s)",
    }[blocker["state"]]
    return what % (blocker["task"], blocker["job"], blocker["user"], when)


def answer(request: Mapping[str, Any]) -> Dict[str, Any]:
    """Handle a request from the control node for a job that waits for ports and GPUs.

    The request has ``do`` (first ``queue``, then ``wait``, ``take`` or ``give_back``), ``folder``,
    ``resources``, ``holder`` and ``seconds``. Return ``blockers``, a description of each blocking
    entry, and, if the job was stopped, the reason in ``stopped``.
    """
    folder, resources = request["folder"], request["resources"]
    holder = Holder(*request["holder"])
    blockers: List[Entry] = []
    try:
        if request["do"] in ("queue", "wait"):
            is_first = request["do"] == "queue"
            blockers = wait(folder, resources, holder, request["seconds"], is_first)
        elif request["do"] == "take":
            take(folder, resources, holder, request["seconds"], patience=0.0, stay=True)
        else:
            give_back(folder, holder)
    except HeldError as error:
        blockers = error.blockers
    except StoppedError as error:
        return {"blockers": [], "stopped": str(error)}
    except LeaseError:
        pass  # stage prints a warning
    return {"blockers": [describe(blocker) for blocker in blockers]}
