"""Asks all machines of a gang for updates of their ranks, and keeps copies of the ranks' files.

One thread a machine asks (``host.updates``, which waits on the machine); all updates meet in one
queue, so that the first failure is seen as such, whatever the number of Ansible's forks. What comes
in is checked (``reports``) and kept in a folder on the control node: logs and progress records.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from train.gang import listing, reports, run_folders
from train.gang.watch.fetched import FetchedFile
from train.gang.watch.views import Target, View
from train.host import processes, records
from train.host import ranks as host_ranks
from train.host.records import Cursor, State, Update

LOCK_FILE = ".followed"
#: Seconds before the second try to reach a host; and between two tries to write a file.
_BACKOFF = 1.0
_DISK_PAUSE = 5.0
#: Bytes of the lock file about the process that follows a job, and characters of its command.
_FOLLOWER, _COMMAND = 1000, 200
#: The files of a rank that have limits, here and on its host, and what people call them.
BOUNDED: tuple[tuple[reports.FileName, str, str], ...] = (
    ("log", "log", records.LOG_FILE),
    ("progress", "progress records", records.PROGRESS_FILE),
)
#: Bytes of all files in one answer of a machine: the least, the first and the most. There are more
#: while an answer with data takes less than _FAST seconds, and fewer after one of _SLOW seconds.
_ANSWER_LEAST, _ANSWER, _ANSWER_MOST = 1 << 18, 1 << 20, 1 << 23
_FAST, _SLOW = 1.0, 2.0
#: Bytes waiting on a host from which on it gathers no lines before it answers.
_BACKLOG = 1 << 16
#: Of a file with more than this still waiting, only the newest lines of an answer are looked at.
_FAR_BEHIND = 1 << 22
#: Bytes of an answer that are looked at: of any log, and of progress that is far behind.
_LOG_SEEN, _PROGRESS_SEEN = 1 << 18, 1 << 16
#: Updates that wait to be judged.
_QUEUE = 64
#: Where the files of a rank lie in the job's folder.
_PLACES: Mapping[reports.FileName, str] = {
    "log": "logs/{}.log",
    "progress": "progress/{}.jsonl",
    "supervisor": "logs/{}.supervisor.log",
}


class BusyError(Exception):
    """Another process follows the job already."""


class UnreachableError(Exception):
    """A host cannot be reached."""


#: Asks the machine of a rank for updates of its ranks; the other arguments and what it returns are
#: those of host.updates.wait_for_updates. Raises UnreachableError, or OSError where it failed.
Poll = Callable[[Target, dict[str, Cursor], float, float], Mapping[str, Any]]


@dataclass(frozen=True)
class Limits:
    """What bounds a watch, in seconds unless stated otherwise."""

    start_timeout: float  # until every rank must have a state, and before a slow start is noticed
    unreachable_timeout: float  # of a host, until it is lost, if others of the gang confirm it
    interval: float  # that a host gathers lines before it answers
    start_wait_timeout: float = 0.0  # for which a rank that is up waits for another; 0 for no limit
    end_timeout: float = 0.0  # for non-training tasks to end by themselves after the training
    grace: float = 0.0  # for the ranks of a job that is stopped to end
    straggler_factor: float = 1.5  # how many times the others' own part of a step is slow
    disconnected_timeout: float = 0.0  # without any host, until the watch ends; 0 for no limit
    log_limit: int = 1 << 28  # the most bytes that are kept of each of a rank's files


#: The state of a rank before its host has reported one.
_UNKNOWN = Cursor(phase="", frozen=False, log=0, progress=0, supervisor=0)

_T = TypeVar("_T")


class Ranks:
    """Ranks whose hosts are asked for updates; ``folder`` here gets their logs and progress.
    BusyError, with ``busy`` as its message: another process writes there. OSError: nobody can.
    """

    #: The longest pause in seconds between two tries to reach a host.
    longest_backoff = 15.0

    def __init__(
        self, targets: Sequence[Target], folder: Path, poll: Poll, limits: Limits, busy: str
    ) -> None:
        self.views = [View(target) for target in targets]
        self._poll, self._limits = poll, limits
        self._updates: queue.Queue[tuple[View, Update | Exception, str]] = queue.Queue(_QUEUE)
        self._over = threading.Event()
        for name in ("logs", "progress"):
            run_folders.create(folder / name, exist_ok=True)
        self._lock = _take_lock(folder / LOCK_FILE, busy)
        self._files = {
            view: {
                name: FetchedFile(folder / path.format(view.target.task), limits.log_limit)
                for name, path in _PLACES.items()
            }
            for view in self.views
        }

    def close(self) -> None:
        """Let other processes write to the folder."""
        os.close(self._lock)

    def _run(self, judge: Callable[[], _T | None], wait: float) -> _T:
        """Ask all machines until ``judge`` returns something; with ``wait`` 0, each rank once."""
        self._began = time.monotonic()
        places: dict[str, list[View]] = {}
        for view in self.views:
            view.wait = wait
            places.setdefault(view.target.place, []).append(view)
        for together in places.values():
            threading.Thread(target=self._ask, args=(together, wait), daemon=True).start()
        while True:
            with contextlib.suppress(queue.Empty):
                self._take(*self._updates.get(timeout=0.5))
            judgement = judge()
            if judgement is not None:
                self._over.set()
                return judgement

    def _ask(self, views: Sequence[View], wait: float) -> None:
        """Ask a machine for updates of its ranks until they have ended, in a separate thread."""
        ranks = {view.target.rank_dir: view for view in views}
        cursors: dict[str, Cursor] = {}
        for rank_dir, view in ranks.items():
            offset: Any = {name: file.offset for name, file in self._files[view].items()}
            cursors[rank_dir] = {**_UNKNOWN, **offset}
        gather, backoff, size = 0.0, _BACKOFF, _ANSWER  # what is there already comes at once
        while cursors and not self._over.is_set():
            asked = time.monotonic()
            for rank_dir in cursors:
                ranks[rank_dir].asked = asked
            # An answer has far fewer bytes than are kept of a file.
            most = min(size, self._limits.log_limit // 4)
            for cursor in cursors.values():
                cursor["answer"] = most
            try:
                answer = self._poll(views[0].target, dict(cursors), wait, gather)
                updates = {rank_dir: reports.update(answer.get(rank_dir)) for rank_dir in cursors}
            except Exception as error:  # whatever it is: a thread that ends is waited for
                for rank_dir in cursors:
                    ranks[rank_dir].asked = None
                    self._hand_over(ranks[rank_dir], error, "")
                self._over.wait(backoff)
                backoff, size = min(2 * backoff, self.longest_backoff), _ANSWER_LEAST
                continue
            if not gather:
                size = _next_size(size, time.monotonic() - asked)
            gather, backoff, pause = self._limits.interval, _BACKOFF, 0.0
            for rank_dir, update in updates.items():
                view = ranks[rank_dir]
                view.asked = None
                final = update["state"]["phase"] in records.FINAL_PHASES
                _note_left(view, update, last=wait == 0 or final)
                unsaved = self._save(view, update, cursors[rank_dir])
                pause = _DISK_PAUSE if unsaved else pause
                cursors[rank_dir] = update["cursor"]
                ended = wait == 0 or (final and not unsaved)
                left = sum(update.get("left", {}).values())
                if left > (0 if ended else _BACKLOG):
                    gather = 0.0
                if not unsaved:
                    self._skip(view, update, cursors[rank_dir])
                if ended and not update["more"]:
                    del cursors[rank_dir]
                self._hand_over(view, update, unsaved)
            self._over.wait(pause)

    def _hand_over(self, view: View, update: Update | Exception, unsaved: str) -> None:
        """Have an update judged, as soon as those before it were."""
        while not self._over.is_set():
            with contextlib.suppress(queue.Full):
                self._updates.put((view, update, unsaved), timeout=0.5)
                return

    def _skip(self, view: View, update: Update, cursor: Cursor) -> None:
        """Continue near the end of a file if the part that waits does not fit into the copy."""
        limit = self._limits.log_limit
        # More is left to skip while it grows: one long gap reads better than many short ones.
        final = update["state"]["phase"] in records.FINAL_PHASES
        keep = limit * 3 // 8 if final else limit // 4
        for name, _, _ in BOUNDED:
            left = update.get("left", {}).get(name, 0)
            if left > limit // 2 and self._files[view][name].kept() + left > limit:
                cursor[name] = max(cursor[name], update["sizes"][name] - keep)

    def _save(self, view: View, update: Update, cursor: Cursor) -> str:
        """Append to the copies of a rank's files; what is not new to the watch is left out of it.
        Return why a file could not be written; it is asked for again then.
        """
        if not view.target.is_of_attempt(update["state"]):
            for name in reports.FILES:  # what another attempt has written is none of this one's
                update[name], update["cursor"][name] = "", cursor[name]
            other = update["state"]["attempt"]
            update["state"] = {"phase": host_ranks.ABSENT, "attempt": other}
            update["more"], update["left"], update["last"] = False, {}, ""
            return ""
        trouble = ""
        for name, file in self._files[view].items():
            end = update["cursor"][name]
            data = update[name].encode("utf-8", "surrogateescape")
            begin = end - len(data)  # after the cursor if the host has left something out
            gap, note, cut = begin - file.offset if data else 0, b"", 0
            if gap > 0:
                cut = data.find(b"\n") + 1  # the first line is not whole
                note = self._gap_note(view, name, gap + cut, update["state"])
            if data:
                try:
                    file.append(note + data[cut:], end)
                    view.left_out[name] = view.left_out.get(name, 0) + max(0, gap)
                except OSError as error:
                    trouble = f"{file.path} cannot be written: {error.strerror}"
                    update["cursor"][name] = cursor[name]
            known = view.known.get(name, 0)
            if begin < known <= end:  # it came before, and could not be written
                cut = max(cut, known - begin)
            view.known[name] = end
            view.received += len(data)
            text = data[cut:].decode("utf-8", "replace")
            far = update.get("left", {}).get(name, 0) > _FAR_BEHIND
            if name == "progress":
                text = view.whole_lines(text, _PROGRESS_SEEN if far else 0, bool(note))
            update[name] = text[-_LOG_SEEN:] if name == "log" else text
        return trouble

    def _gap_note(self, view: View, name: reports.FileName, size: int, state: State) -> bytes:
        """Return the text that replaces bytes which the copy of a file lacks."""
        begin = b"" if self._files[view][name].tail(1) in ("", "\n") else b"\n"
        if name == "progress":
            return begin + json.dumps({"left_out": size}).encode() + b"\n"
        path = f"{view.target.host}:{view.target.rank_dir}/{records.LOG_FILE}"
        where = f"the whole log is {path}"
        if name in holes_of(state):
            where = f"its beginning and its newest part are kept in {path}"
        return begin + f"... {listing.size(size)} left out here: {where} ...\n".encode()

    def _take(self, view: View, update: Update | Exception, unsaved: str) -> None:
        """Note what a host has reported of a rank, or why it has not; ``unsaved`` is why its files
        could not be written.
        """
        if isinstance(update, Exception):
            view.silent_since = view.silent_since or time.monotonic()
            view.trouble = records.clean(str(update) or type(update).__name__, reports.MAX_REASON)
            return
        view.silent_since, view.trouble, view.heard = None, "", time.monotonic()
        view.state, view.drained = update["state"], not update["more"]
        view.left = sum(update.get("left", {}).values())


def _take_lock(path: Path, busy: str) -> int:
    """Lock a file, note there which process this is, and return its descriptor. BusyError, with
    ``busy`` and the process as its message: another one has locked it.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    lock = os.open(path, flags, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        follower = records.clean(os.pread(lock, _FOLLOWER, 0).decode("utf-8", "replace"), _FOLLOWER)
        os.close(lock)
        raise BusyError(f"{busy} ({follower})" if follower else busy) from None
    # What follows the first -e may be secret.
    command = processes.command(os.getpid()).partition(" -e")[0][:_COMMAND]
    follower = f"pid {os.getpid()} on {socket.gethostname()}: {command}"
    with contextlib.suppress(OSError):  # a full disk
        os.ftruncate(lock, 0)
        os.pwrite(lock, follower.encode("utf-8", "replace")[:_FOLLOWER], 0)
    return lock


def _next_size(size: int, seconds: float) -> int:
    """Return the bytes that the next answer may have after one took some seconds."""
    if seconds > _SLOW:
        return max(_ANSWER_LEAST, size // 2)
    return min(_ANSWER_MOST, 2 * size) if seconds < _FAST else size


def _note_left(view: View, update: Update, last: bool) -> None:
    """Note what is left of a rank's files: at ``last``, nothing that it writes from now on."""
    if "left" not in update or not view.target.is_of_attempt(update["state"]):
        return
    if last and not view.goal:
        view.goal = dict(update["sizes"])
    cursor: Mapping[str, Any] = update["cursor"]
    update["left"] = {
        name: left
        for name, left in update["left"].items()
        if left and (name not in view.goal or cursor[name] < view.goal[name])
    }
    update["more"] = bool(update["left"])


def holes_of(state: State) -> Mapping[str, Sequence[int]]:
    """Return the holes of a rank's files (host.limited.Hole)."""
    return state.get("left_out", {})
