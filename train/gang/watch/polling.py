"""Requests updates from all machines of a job, and keeps copies of the ranks' files.

One thread per machine makes the requests (``host.updates``, which waits on the machine). All
updates go through one queue, so that the first failure is recognized regardless of the number of
Ansible's forks. Updates are checked (``reports``) and stored on the control node: logs and progress
records.
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
from train.gang.errors import BusyError
from train.gang.job_records import LOCK_FILE
from train.gang.watch.fetched import FetchedFile
from train.gang.watch.views import Target, View
from train.host import plain_text, processes, rank_files, records
from train.host.records import ABSENT, Cursor, RankState, Update

#: Seconds before the second attempt to reach a host, and between two attempts to write a file.
_BACKOFF = 1.0
_DISK_PAUSE = 5.0
#: Maximum bytes of the text in the lock file, which describes the process that follows a job, and
#: maximum characters of the process's command in it.
_FOLLOWER, _COMMAND = 1000, 200
#: A rank's files that are limited in size, on the control node and on the host: key, name in
#: messages, and file name.
BOUNDED: tuple[tuple[reports.FileName, str, str], ...] = (
    ("log", "log", rank_files.LOG_FILE),
    ("progress", "progress records", rank_files.PROGRESS_FILE),
)
#: Bytes of all files in one answer: minimum, first and maximum. The size grows while an answer with
#: data takes less than _FAST seconds, and shrinks after one that takes more than _SLOW seconds.
_ANSWER_LEAST, _ANSWER, _ANSWER_MOST = 1 << 18, 1 << 20, 1 << 23
_FAST, _SLOW = 1.0, 2.0
#: If more bytes than this are waiting, a host answers without gathering lines.
_BACKLOG = 1 << 16
#: If more bytes of a file than this are waiting, only an answer's newest lines are parsed.
_FAR_BEHIND = 1 << 22
#: Maximum bytes of an answer to parse: of any log, and of progress that is far behind.
_LOG_SEEN, _PROGRESS_SEEN = 1 << 18, 1 << 16
#: Maximum number of updates in the queue, and seconds between two attempts to add one. A thread
#: that tries again goes to the end of the line.
_QUEUE, _TURN_S = 64, 5.0
#: Maximum seconds in which updates are taken from the queue between two judgements.
_TAKE_S = 0.05
#: Paths of a rank's files in the job's folder.
_PLACES: Mapping[reports.FileName, str] = {
    "log": "logs/{}.log",
    "progress": "progress/{}.jsonl",
    "supervisor": "logs/{}.supervisor.log",
}


#: Asks the machine of a rank for updates of the job's ranks there. For the other arguments and the
#: result, see host.updates.wait_for_updates. Raises UnreachableError, or OSError if the request
#: failed.
Poll = Callable[[Target, dict[str, Cursor], float, float], Mapping[str, Any]]

#: Is called with the rank of the last ``Poll`` when its machine will not be asked again.
Leave = Callable[[Target], None]


@dataclass(frozen=True)
class Limits:
    """Limits of a watch, in seconds unless stated otherwise."""

    start_timeout: float  # until every rank must have a state, and a slow start is noticed
    unreachable_timeout: float  # until a host is lost, if other hosts of the job confirm it
    interval: float  # for which a host gathers lines before it answers
    log_limit: int  # maximum bytes to keep of each of a rank's files
    start_wait_timeout: float = 0.0  # for a running rank to wait for another; 0 for no limit
    #: For non-training tasks to end by themselves after training.
    non_training_exit_timeout: float = 0.0
    grace: float = 0.0  # for the ranks of a stopped job to end
    straggler_factor: float = 0.0  # how many times longer than the others' own step time is slow
    disconnected_timeout: float = 0.0  # until the watch ends without any host; 0 for no limit


#: The state of a rank before its host has reported one.
_UNKNOWN = Cursor(phase="", frozen=False, log=0, progress=0, supervisor=0)

_T = TypeVar("_T")


def leave_nothing(target: Target) -> None:
    """Do nothing, because nothing stays on a machine between two requests."""


class Ranks:
    """Ranks whose hosts are asked for updates. Their logs and progress are stored in ``folder``.

    Creating an object raises BusyError with the message ``busy`` if another process writes to the
    folder, and OSError if the folder cannot be written to.
    """

    #: Maximum pause in seconds between two attempts to reach a host.
    longest_backoff = 15.0

    def __init__(
        self,
        targets: Sequence[Target],
        folder: Path,
        poll: Poll,
        limits: Limits,
        busy: str,
        leave: Leave = leave_nothing,
    ) -> None:
        self.views = [View(target) for target in targets]
        self._poll, self._leave, self._limits = poll, leave, limits
        self._updates: queue.Queue[tuple[View, Update | Exception, str]] = queue.Queue(_QUEUE)
        self._over = threading.Event()
        self._has_failed = False  # whether a rank was seen to fail; guarded by _changed
        self._changed = threading.Condition()
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
        """Unlock the folder for other processes."""
        os.close(self._lock)

    def _run(self, judge: Callable[[], _T | None], wait: float) -> _T:
        """Ask all machines until ``judge`` returns a result. With ``wait`` 0, ask only once."""
        self._began = time.monotonic()
        places: dict[str, list[View]] = {}
        for view in self.views:
            if view.drained:  # an earlier watch has fetched everything
                continue
            view.wait = wait
            places.setdefault(view.target.place, []).append(view)
        for together in places.values():
            threading.Thread(target=self._ask, args=(together, wait), daemon=True).start()
        try:
            while True:
                with contextlib.suppress(queue.Empty):
                    self._take(*self._updates.get(timeout=0.5))
                    # A judgement looks at all ranks, so others that have reported come first.
                    until = time.monotonic() + _TAKE_S
                    while time.monotonic() < until:
                        self._take(*self._updates.get_nowait())
                judgement = judge()
                if judgement is not None:
                    return judgement
        finally:
            with self._changed:
                self._over.set()
                self._changed.notify_all()

    def _ask(self, views: Sequence[View], wait: float) -> None:
        """Ask a machine for updates of its ranks until they have ended. Runs in a thread."""
        try:
            self._ask_until_the_end(views, wait)
        finally:
            self._leave(views[0].target)

    def _ask_until_the_end(self, views: Sequence[View], wait: float) -> None:
        ranks = {view.target.rank_dir: view for view in views}
        cursors: dict[str, Cursor] = {}
        for rank_dir, view in ranks.items():
            offset: Any = {name: file.offset for name, file in self._files[view].items()}
            cursors[rank_dir] = {**_UNKNOWN, **offset}
        gather, backoff, size = 0.0, _BACKOFF, _ANSWER  # existing data comes at once
        while cursors and not self._over.is_set():
            asked, had_failed = time.monotonic(), self._has_failed
            for rank_dir in cursors:
                ranks[rank_dir].asked = asked
            # An answer is much smaller than the kept part of a file.
            most = min(size, self._limits.log_limit // 4)
            for cursor in cursors.values():
                cursor["answer"] = most
            try:
                answer = self._poll(views[0].target, dict(cursors), wait, gather)
                updates = {rank_dir: reports.update(answer.get(rank_dir)) for rank_dir in cursors}
            except Exception as error:  # any error: the thread must not end, others wait for it
                for rank_dir in cursors:
                    ranks[rank_dir].asked = None
                    self._hand_over(ranks[rank_dir], error, "")
                if self._wait_for_failure(had_failed, backoff):
                    backoff = _BACKOFF
                else:
                    backoff = min(2 * backoff, self.longest_backoff)
                size = _ANSWER_LEAST
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

    def _wait_for_failure(self, known: bool, limit: float) -> bool:
        """Wait up to ``limit`` seconds, or until the first rank fails; return whether it did.

        The host to ask next may know why it failed. With ``known``, only wait.
        """

        def has_failed() -> bool:
            return self._has_failed and not known

        with self._changed:
            self._changed.wait_for(lambda: has_failed() or self._over.is_set(), limit)
            return has_failed()

    def _hand_over(self, view: View, update: Update | Exception, unsaved: str) -> None:
        """Queue an update to be judged after the previous ones."""
        while not self._over.is_set():
            with contextlib.suppress(queue.Full):
                self._updates.put((view, update, unsaved), timeout=_TURN_S)
                return

    def _skip(self, view: View, update: Update, cursor: Cursor) -> None:
        """Skip to the newest part of a file if its remaining data does not fit into the copy."""
        limit = self._limits.log_limit
        # Skip more while the file grows: one long gap is easier to read than many short ones.
        final = update["state"]["phase"] in records.FINAL_PHASES
        keep = limit * 3 // 8 if final else limit // 4
        for name, _, _ in BOUNDED:
            left = update.get("left", {}).get(name, 0)
            if left > limit // 2 and self._files[view][name].kept() + left > limit:
                cursor[name] = max(cursor[name], update["sizes"][name] - keep)

    def _save(self, view: View, update: Update, cursor: Cursor) -> str:
        """Append to the copies of a rank's files, and remove already known data from ``update``.

        If a file cannot be written, return the reason. Its data is then requested again. Otherwise,
        return an empty string.
        """
        if not view.target.is_of_attempt(update["state"]):
            for name in reports.FILES:  # ignore data of another attempt
                update[name], update["cursor"][name] = "", cursor[name]
            other = update["state"]["attempt"]
            update["state"] = {"phase": ABSENT, "attempt": other}
            update["more"], update["left"], update["last"] = False, {}, ""
            return ""
        problem = ""
        for name, file in self._files[view].items():
            end = update["cursor"][name]
            data = update[name].encode("utf-8", "surrogateescape")
            begin = end - len(data)  # after the cursor if the host has skipped a part
            gap, note, cut = begin - file.offset if data else 0, b"", 0
            if gap > 0:
                cut = data.find(b"\n") + 1  # the first line is incomplete
                note = self._gap_note(view, name, gap + cut, update["state"])
            if data:
                try:
                    file.append(note + data[cut:], end)
                    view.left_out[name] = view.left_out.get(name, 0) + max(0, gap)
                except OSError as error:
                    problem = f"{file.path} cannot be written: {error.strerror}"
                    update["cursor"][name] = cursor[name]
            known = view.known.get(name, 0)
            if begin < known <= end:  # received before, but could not be written
                cut = max(cut, known - begin)
            view.known[name] = end
            view.received += len(data)
            text = data[cut:].decode("utf-8", "replace")
            far = update.get("left", {}).get(name, 0) > _FAR_BEHIND
            if name == "progress":
                text = view.whole_lines(text, _PROGRESS_SEEN if far else 0, bool(note))
            update[name] = text[-_LOG_SEEN:] if name == "log" else text
        return problem

    def _gap_note(self, view: View, name: reports.FileName, size: int, state: RankState) -> bytes:
        """Return the text that replaces missing bytes in the copy of a file."""
        begin = b"" if self._files[view][name].tail(1) in ("", "\n") else b"\n"
        if name == "progress":
            return begin + json.dumps({"left_out": size}).encode() + b"\n"
        path = f"{view.target.host}:{view.target.rank_dir}/{rank_files.LOG_FILE}"
        where = f"the complete log is {path}"
        if name in holes_of(state):
            where = f"its beginning and newest part are in {path}"
        return begin + f"... {listing.size(size)} omitted here: {where} ...\n".encode()

    def _take(self, view: View, update: Update | Exception, unsaved: str) -> None:
        """Store a host's report about a rank, or the error that prevented it.

        ``unsaved`` is the reason why the rank's files could not be written, or empty.
        """
        if isinstance(update, Exception):
            view.unresponsive_since = view.unresponsive_since or time.monotonic()
            view.error = plain_text.clean(str(update) or type(update).__name__, reports.MAX_REASON)
            return
        view.unresponsive_since, view.error, view.last_update_at = None, "", time.monotonic()
        if update["state"]["phase"] == records.FAILED and view.phase != records.FAILED:
            with self._changed:
                self._has_failed = True
                self._changed.notify_all()
        view.state, view.drained, view.unsaved = update["state"], not update["more"], unsaved
        view.left = sum(update.get("left", {}).values())


def _take_lock(path: Path, busy: str) -> int:
    """Lock a file, write the id and command of this process to it, and return its descriptor.

    If the file is already locked, raise BusyError with a message of ``busy`` and the process that
    holds the lock.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    lock = os.open(path, flags, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        follower = plain_text.clean(
            os.pread(lock, _FOLLOWER, 0).decode("utf-8", "replace"), _FOLLOWER
        )
        os.close(lock)
        raise BusyError(f"{busy} ({follower})" if follower else busy) from None
    # Arguments from the first -e on may be secret.
    command = processes.command(os.getpid()).partition(" -e")[0][:_COMMAND]
    follower = f"pid {os.getpid()} on {socket.gethostname()}: {command}"
    with contextlib.suppress(OSError):  # a full disk
        os.ftruncate(lock, 0)
        os.pwrite(lock, follower.encode("utf-8", "replace")[:_FOLLOWER], 0)
    return lock


def _next_size(size: int, seconds: float) -> int:
    """Return the size of the next answer in bytes, after one of ``size`` that took ``seconds``."""
    if seconds > _SLOW:
        return max(_ANSWER_LEAST, size // 2)
    return min(_ANSWER_MOST, 2 * size) if seconds < _FAST else size


def _note_left(view: View, update: Update, last: bool) -> None:
    """Note the remaining bytes of a rank's files. With ``last``, ignore data that follows later."""
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


def holes_of(state: RankState) -> Mapping[str, Sequence[int]]:
    """Return the gaps in a rank's files (host.limited.Hole)."""
    return state.get("left_out", {})
