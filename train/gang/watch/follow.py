"""Follows all ranks of a gang at once, and decides how the gang ended.

One thread a machine asks for updates of the ranks there (``host.updates``, which waits on the
machine); all updates meet in one queue, so that the first failure is seen as such, whatever the
number of Ansible's forks. What comes in is checked (``reports``) and kept in the job's folder on
the control node: logs, progress records, ``events.jsonl``.

What is merely not known ends no job: a host that cannot be reached from here counts as lost only
where others of the gang confirm it, and what cannot be written here is fetched later.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from train.gang import lines, listing, reports, run_folders
from train.gang.records import EVENTS_FILE, LOAD_DIR, read_result
from train.gang.watch import causes, doubts, metrics
from train.gang.watch.activity import Activity
from train.gang.watch.diagnosis import Diagnosis, Finding, PathBetween, Peers, Probe
from train.gang.watch.fetched import FetchedFile
from train.gang.watch.outcome import (
    FROZEN_LIMIT,
    Outcome,
    different_weights,
    failed_at,
    first_of,
    how_it_left,
    neither_at_fault,
    rank_that_left,
    stuck,
    who_lost_contact,
)
from train.gang.watch.stragglers import Stragglers
from train.gang.watch.views import WAIT, Target, View, is_secondary, views_in_training
from train.host import ends as host_ends
from train.host import probe as host_probe
from train.host import processes, records
from train.host import ranks as host_ranks
from train.host.records import Cursor, Progress, State, Update

LOCK_FILE = ".followed"
#: Seconds for a rank that was first at fault to be seen after one that fell with it.
ROOT_CAUSE_WAIT = 3.0
#: The same where there is nothing but the word of one rank about another one, and more ranks live.
WORDS_WAIT = 20.0
#: Seconds, in addition to the interval, in which a rank's last records arrive here.
NOTICE = 2.0
#: Seconds before the second try to reach a host; and between two tries to write a file.
_BACKOFF = 1.0
_DISK_PAUSE = 5.0
#: Seconds without a sign of work after which an evaluator is done once the training is.
QUIET = 10.0
#: Seconds between two writings of the file for Prometheus.
_METRICS_PAUSE = 5.0
#: Seconds between two lines about a host's load, and the part of the time since the begin.
LOAD_EVERY, LOAD_PART = 5.0, 0.01
#: Bytes of the lock file about the process that follows a job, and characters of its command.
_FOLLOWER, _COMMAND = 1000, 200
#: Bytes of a file's end that a watch which continues another one reads.
_TAIL = 1 << 20
#: The files of a rank that have limits, here and on its host, and what people call them.
_BOUNDED: tuple[tuple[reports.FileName, str, str], ...] = (
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
#: Seconds between two events of a rank whose phase is the same, and between two lines about how
#: much of the logs is fetched.
_EVENT_PAUSE = 0.5
FETCH_EVERY = 5.0
#: Where the files of a rank lie in the job's folder.
_PLACES: Mapping[reports.FileName, str] = {
    "log": "logs/{}.log",
    "progress": "progress/{}.jsonl",
    "supervisor": "logs/{}.supervisor.log",
}

#: Seconds for which all ranks must be up without a new step before they are asked whether they
#: reach one another, the pause until they are asked again, and how often that is done.
PROBE_AFTER = 8.0
PROBE_AGAIN = 2.0
PROBES = 6


class BusyError(Exception):
    """Another process follows the job already."""


class UnreachableError(Exception):
    """A host cannot be reached."""


class WatchEndedError(Exception):
    """The watch ends, and the job does not."""


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
        """Ask a machine for updates of its ranks until they have ended (in a thread of its own)."""
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
        for name, _, _ in _BOUNDED:
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
        if name in _holes(state):
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


def _holes(state: State) -> Mapping[str, Sequence[int]]:
    """Return the holes of a rank's files (host.limited.Hole)."""
    return state.get("left_out", {})


class Gang(Ranks):
    """All ranks of a job, whose files in ``run_dir`` are continued. ``peers`` is empty where nobody
    is to be asked whom it reaches, ``metrics_dir`` where there is to be no file for Prometheus.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        run_dir: Path,
        poll: Poll,
        say: Callable[[str], None],
        limits: Limits,
        peers: Peers,
        probe: Probe,
        metrics_dir: str,
    ) -> None:
        # Two that follow one job would both append to its logs.
        busy = f"another process follows this job already: see {run_dir / EVENTS_FILE}"
        super().__init__(targets, run_dir, poll, limits, busy)
        self.run_dir, self._say = run_dir, say
        self._peers, self._probe, self._metrics_dir = peers, probe, metrics_dir
        self._said: dict[str, tuple[Any, ...]] = {}
        self._suspect: tuple[View, float] | None = None
        self._trained_at: float | None = None
        self._stopped_at: float | None = None  # when a first rank was seen to have been stopped
        hosts = {view.target.task: view.target.host for view in self._training}
        self._stragglers = Stragglers(hosts, limits.straggler_factor)
        self._load_due: dict[str, float] = {}
        self._fallen: Diagnosis | None = None
        self._diagnosis: Diagnosis | None = None
        self._last: Diagnosis | None = None  # the last one that is done, since the last step
        self._probe_at: float | None = None
        self._probed = 0
        self._steps: list[int | None] = []
        self._found: Finding | None = None
        self._cut_since: float | None = None  # no connection to any host that is waited for
        self._back: tuple[float, float] | None = None  # when the last cut began and ended
        self._noticed: set[tuple[str, str]] = set()
        self._measured = -_METRICS_PAUSE
        self._losses: dict[str, Diagnosis] = {}
        self._activity = {view: Activity() for view in self.views}
        self._evaluators = [v for v in self.views if v.target.task.startswith("evaluator-")]
        self._alone_at: float | None = None  # when a rank was first seen to have trained alone
        self._unwritten: dict[View, float | None] = {}  # ranks without an event of their update
        self._fetch_from: int | None = None  # bytes that had come when only logs were waited for
        self._fetch_said = 0.0
        self._say_fetch = say
        for view, files in self._files.items():  # what an earlier watch has left
            view.add_log(files["log"].tail(65_536))
            view.add_progress(records.parse_progress(files["progress"].tail(_TAIL)))
            view.lines = files["progress"].lines()
        self._is_new = not any(view.lines for view in self.views)  # no watch has seen a step of it
        self._first_step: int | None = None  # of a new attempt

    def follow(self) -> Outcome:
        """Follow the ranks until the gang is over.

        Non-training tasks do not count once the training is done: those that end by themselves get
        ``end_timeout`` for it, as do evaluators that are at work. Before that, a lost non-training
        task ends the gang, unless it is a worker that the training can do without.
        """
        return self._run(lambda: self._judge(time.monotonic()), wait=WAIT)

    def drain(self, say: Callable[[str], None] | None = None) -> None:
        """Fetch what the hosts still have, without waiting; ``say`` shows how far that is."""
        self._say_fetch = say or self._say

        def done() -> bool | None:
            self._note_fetch(time.monotonic(), self.views)
            now, limit = time.monotonic(), self._limits.unreachable_timeout
            fates = (v.drained or v.trouble or v.silence(now) > limit for v in self.views)
            return all(fates) or None

        self._run(done, wait=0.0)
        for view in self.views:
            if not view.heard:  # what it does now is not known; the gang is without it
                view.state = {"phase": records.FAILED}
                view.trouble = view.trouble or "is unreachable"

    def _take(self, view: View, update: Update | Exception, unsaved: str) -> None:
        phase, holes = view.phase, _holes(view.state)
        super()._take(view, update, unsaved)
        if isinstance(update, Exception):
            return
        if ("unreachable", view.target.host) in self._noticed:
            self._noticed.discard(("unreachable", view.target.host))
            self._notice("reachable", f"{view.target.host} can be reached again", view)
        if unsaved:
            text = f"{unsaved}; the job continues, and attach fetches the rest"
            self._notice("disk", text, once="")
        self._note_left_out(view, phase, holes)
        view.add_log(update["log"], update.get("last", ""))
        self._add_progress(view, update)
        text = update["log"] + update["progress"]
        self._activity[view].add(text, update["load"], time.monotonic())
        view.offset = time.time() - update["now"]
        self._note_alone(view)
        self._note_lingering(view)
        if not view.state.get("frozen"):
            view.frozen_since = None
        elif view.frozen_since is None:
            view.frozen_since = view.heard
        if view.phase == host_ranks.ABSENT:
            return
        if view.phase != phase or time.monotonic() - view.event_at >= _EVENT_PAUSE:
            self._write_rank(view, update["age"])
        else:
            self._unwritten[view] = update["age"]
        self._describe(view)

    def _note_lingering(self, view: View) -> None:
        """Notice a rank that has made all of its steps, and does not end."""
        running = view.state.get("lingering")
        if running and view.phase == records.RUNNING:
            text = (
                f"{view.target.task} ({view.target.host}) made its last step "
                f"{view.state.get('lingering_s', 0.0):.0f} s ago and has not ended: "
                f"{', '.join(running)} still runs (train_job_exit_timeout can end it)"
            )
            self._notice("lingering", text, view, once=view.target.task)

    def _note_alone(self, view: View) -> None:
        """Notice a rank that makes steps by itself, while the job runs."""
        is_going_on = any(other.phase in records.ALIVE_PHASES for other in self._training)
        if view.state.get("alone") and not view.target.non_training and is_going_on:
            about = f"{view.target.task} ({view.target.host})"
            remedy = causes.CAUSES[causes.ALONE].remedy
            text = f"{about} {doubts.TRAINED_ALONE}; {remedy}"
            self._notice("alone", text, view, once=view.target.task)

    def _write_rank(self, view: View, age: float | None) -> None:
        """Write an event about a rank."""
        self._unwritten.pop(view, None)
        view.event_at = time.monotonic()
        self._write(
            task=view.target.task,
            host=view.target.host,
            phase=view.phase,
            reason=view.state.get("reason", ""),
            exit_code=view.state.get("exit_code"),
            progress=view.record,
            last_line=view.last_line,
            age=age,
        )

    def _write_late(self, now: float) -> None:
        """Write the events that would have come too soon after others."""
        for view, age in list(self._unwritten.items()):
            if now - view.event_at >= _EVENT_PAUSE:
                self._write_rank(view, age)

    def _note_left_out(self, view: View, phase: str, holes: Mapping[str, Sequence[int]]) -> None:
        """Notice that a file is not kept or fetched as a whole; the arguments after the rank are
        those of its state before.
        """
        task, host = view.target.task, view.target.host
        about = f"{task} ({host})"
        for name, what, file in _BOUNDED:
            if name in _holes(view.state) and name not in holes and phase != host_ranks.ABSENT:
                text = (
                    f"{about}: the host keeps only the beginning and the newest part of its {what}"
                )
                text += " (train_job_host_log_limit_mb)"
                self._notice("left_out", text, view, once=f"{task} {name} host")
            if view.left_out.get(name):
                text = (
                    f"{about}: parts of its {what} are not fetched (train_job_log_limit_mb): see "
                )
                text += f"{host}:{view.target.rank_dir}/{file}"
                self._notice("left_out", text, view, once=f"{task} {name}")

    def _note_fetch(self, now: float, views: Sequence[View]) -> None:
        """Show now and then how much of the logs of ranks that have ended is fetched."""
        left, received = sum(view.left for view in views), sum(view.received for view in views)
        if not left:
            self._fetch_from = None
            return
        if self._fetch_from is None:
            self._fetch_from, self._fetch_said = received, now
        if now - self._fetch_said >= FETCH_EVERY:
            self._fetch_said = now
            done = received - self._fetch_from
            of = (done + left) / 1e6
            text = f"fetching logs: {done / 1e6:.0f} of {of:.0f} MB"
            self._say_fetch(text)
            self._write(notice={"kind": "fetching", "task": None, "text": text})

    def _write(self, **event: Any) -> None:
        """Append a line to ``events.jsonl``; one that does not fit on the disk is lost."""
        with contextlib.suppress(OSError):
            write_event(self.run_dir, **event)

    def _notice(
        self, kind: str, text: str, view: View | None = None, once: str | None = None
    ) -> None:
        """Show a line about the watch and note it; some only ``once`` about the same."""
        if once is not None:
            if (kind, once) in self._noticed:
                return
            self._noticed.add((kind, once))
        self._say(text)
        task = view.target.task if view else None
        self._write(notice={"kind": kind, "task": task, "text": text})

    def _write_metrics(self, now: float) -> None:
        """Write the job's file for Prometheus, now and then."""
        if now - self._measured < _METRICS_PAUSE:
            return
        self._measured = now
        attempt = max(view.target.attempt for view in self.views)
        about = (self.run_dir.name, records.RUNNING, attempt, self.views)
        trouble = metrics.write(self._metrics_dir, *about)
        if trouble:
            self._notice("metrics", f"{trouble}; the job continues", once="")

    def _note_connection(self, now: float) -> None:
        """Notice hosts that are out of reach or back; WatchEndedError: all were for too long."""
        limits = self._limits
        waiting = [view for view in self.views if not view.final]
        unresponsive = [view for view in waiting if view.is_unresponsive(now)]
        hosts = ", ".join(dict.fromkeys(view.target.host for view in unresponsive))
        heard = max(view.heard for view in self.views)
        since = min((view.unresponsive_from(now) for view in unresponsive), default=now)
        none = bool(unresponsive) and len(unresponsive) == len(waiting)
        if none and limits.disconnected_timeout and now - since > limits.disconnected_timeout:
            raise WatchEndedError(
                f"there was no connection to {hosts} for "
                f"{limits.disconnected_timeout:g} s (train_job_disconnected_timeout)"
            )
        if self._cut_since is not None and (heard > self._cut_since or not none):
            self._back = (self._cut_since, now)
            self._notice("connected", f"connected again after {now - self._cut_since:.0f} s")
            self._cut_since = None
        elif self._cut_since is None and none and heard <= since:
            self._cut_since = since
            clock = time.strftime("%H:%M:%S", time.localtime(time.time() - now + since))
            why = next((f" ({view.trouble})" for view in unresponsive if view.trouble), "")
            self._notice(
                "disconnected",
                f"no connection to {hosts} since {clock}{why}; the job is left "
                "alone, and its hosts are tried again",
            )
        if self._cut_since is None:
            limit = min(self.longest_backoff, limits.unreachable_timeout)
            # After a cut, the first host to answer is only the first.
            settled = self._back is None or now - self._back[1] >= limit
            for view in unresponsive:
                if settled and view.silence(now) > limit:
                    host, why = view.target.host, view.trouble or "it is unreachable"
                    text = f"{host} cannot be reached from here: {why}; the job continues"
                    self._notice("unreachable", text, view, once=host)

    def _add_progress(self, view: View, update: Update) -> None:
        """Take new progress records, and report which rank keeps the others waiting."""
        task, host = view.target.task, view.target.host
        found, wrong = records.read_progress(update["progress"])
        if wrong:
            place, why = wrong[0]
            text = (
                f"{task} ({host}): line {view.lines + place + 1} of its progress is passed over, "
                f"as others like it will be: {why}"
            )
            self._notice("progress", text, view, once=task)
        self._keep_load(task, update)
        view.lines += update["progress"].count("\n")
        before = view.record.get("step")
        view.add_progress(found)
        self._note_resumed(view, found)
        if view.record.get("step") != before:
            view.stepped = time.monotonic()
        try:
            if not view.target.non_training:
                for record in found:
                    self._stragglers.add_record(task, record)
                self._stragglers.add_reading(task, update["load"])
            slow = self._stragglers.finding()
        except Exception as error:  # the job does not depend on what a host reports of itself
            text = f"slow ranks are not searched for any more: {error!r}"
            self._notice("load", text, once="")
            return
        if slow is not None:
            self._say(slow.text)
            self._write(straggler=asdict(slow))

    def _note_resumed(self, view: View, found: Sequence[Progress]) -> None:
        """Notice at which step a further attempt begins, and how far the one before had come."""
        attempt = view.target.attempt
        if view.target.non_training or attempt == 1 or not self._is_new:
            return
        if self._first_step is None:
            self._first_step = next((r["step"] for r in found if "step" in r), None)
        if self._first_step is None or any(v.phase == host_ranks.ABSENT for v in self._training):
            return  # the ranks may have different checkpoints
        self._is_new = False
        text = f"attempt {attempt} starts at step {self._first_step}"
        if not any(v.state.get("checkpoint_found") for v in self.views):
            text += ", as nothing was left in TRAIN_CHECKPOINT_DIR"
        elif self._first_step > 1:
            text = f"attempt {attempt} resumes at step {self._first_step}"
        else:
            text += ", though there are files in TRAIN_CHECKPOINT_DIR"
        before = read_result(self.run_dir / records.ATTEMPTS_DIR / str(attempt - 1)) or {}
        if before.get("step") is not None:
            text += f"; attempt {attempt - 1} had reached step {before['step']}"
        self._notice("resumed", text)

    def _keep_load(self, task: str, update: Update) -> None:
        """Append a host's load to a file, ever more rarely: that of a long job stays small."""
        now = time.monotonic()
        if not update["load"] or now < self._load_due.get(task, now):
            return
        self._load_due[task] = now + max(LOAD_EVERY, LOAD_PART * (now - self._began))
        with contextlib.suppress(reports.ReportError, OSError):
            line = {"t": round(update["now"], 3), "load": reports.load(update["load"])}
            path = self.run_dir / LOAD_DIR / f"{task}.jsonl"
            path.parent.mkdir(exist_ok=True)
            _append(path, line)

    def _describe(self, view: View) -> None:
        """Show a line where the phase or the epoch has changed."""
        record, task = view.record, view.target.task
        key: tuple[Any, ...] = (view.phase, bool(view.state.get("frozen")), record.get("phase"))
        key += (record.get("epoch"), bool(record.get("step")))
        if self._said.get(task) != key:
            self._said[task] = key
            without = view.phase == records.FAILED and self._can_do_without(view)
            more = "; the training continues without it" if without else ""
            progress = {**record, "metrics": view.metrics} if record else {}
            line = lines.line(view.phase, view.state.get("reason"), progress, view.last_line)
            self._say(f"{task} ({view.target.host}): {line}{more}")

    @property
    def _training(self) -> list[View]:
        return views_in_training(self.views)

    def _can_do_without(self, view: View) -> bool:
        """Return whether the training needs no such rank: a worker of parameter servers that was up
        and is not the last, with the chief past its beginning, as far as it reports.
        """
        if not (view.target.spare and view.was_running):
            return False
        begun = all(other.was_running and other.at_work for other in self._training)
        others = [other for other in self.views if other.target.spare and other is not view]
        return begun and any(o.phase not in (records.FAILED, records.STOPPED) for o in others)

    def _note_missing_chief(self) -> None:
        """Notice that workers of parameter servers count as training, as there is no chief."""
        kinds = {view.target.task.partition("-")[0] for view in self.views}
        if "ps" in kinds and "chief" not in kinds:
            text = (
                "the gang has parameter servers and no chief, so its workers count as training; "
                "ParameterServerStrategy needs a chief: add a host to the group chief"
            )
            self._notice("no_chief", text, once="")

    def _judge(self, now: float) -> Outcome | None:
        self._note_connection(now)
        self._note_missing_chief()
        self._write_metrics(now)
        self._write_late(now)
        if all(view.final for view in self._training):
            self._note_fetch(now, self._training)
        # The first to answer need not be the first to have ended.
        if now - self._began < WAIT and not all(v.heard or v.trouble for v in self.views):
            return None
        if self._back is not None and now - self._back[1] < self._limits.unreachable_timeout:
            # After a cut, all states are read before any of them is judged.
            if any(not view.final and view.heard < self._back[0] for view in self.views):
                return None
            self._back = None
        training = self._training
        if all(view.phase == records.COMPLETED for view in training):
            return self._end(training, now) if all(view.drained for view in training) else None
        needed = [view for view in self.views if not self._can_do_without(view)]
        failed = [view for view in needed if view.phase == records.FAILED]
        stopped = [view for view in training if view.phase == records.STOPPED]
        if stopped and _are_stopped_first(stopped, failed):
            return self._stop(stopped, now)
        if failed:
            return self._first_failure(failed, now)
        self._suspect = None
        if alone := self._waited_for(now):
            return self._did_not_join(alone, now)
        found = next(filter(None, (self._overdue(view, now) for view in needed)), None)
        found = found or self._unreached(now) or self._kept_waiting(needed)
        if found:
            return self._found_at(found, now)
        return None

    def _stop(self, stopped: Sequence[View], now: float) -> Outcome | None:
        """Return the outcome of a gang that is stopped, once all ranks have ended that can."""
        self._stopped_at = now if self._stopped_at is None else self._stopped_at
        late = [v for v in self.views if not v.final and not v.is_unresponsive(now)]
        if late and now - self._stopped_at <= self._limits.grace + NOTICE:
            return None
        reasons = list(dict.fromkeys(view.state.get("reason") or "was stopped" for view in stopped))
        if len(reasons) == 1 and all(view.phase == records.STOPPED for view in self._training):
            return Outcome("stopped", None, f"the job {reasons[0]}")
        named = (
            f"{view.target.task} {view.state.get('reason') or 'was stopped'}" for view in stopped
        )
        return Outcome("stopped", None, "; ".join(named))

    def _first_failure(self, failed: Sequence[View], now: float) -> Outcome | None:
        """Return the outcome where ranks have failed, once it is sure which was first at fault."""
        if self._suspect is None or self._suspect[0] not in failed:
            self._suspect = (failed[0], now)
        first, since = self._suspect
        primary = [view for view in failed if not is_secondary(view)]
        if primary:
            # Where several are at fault, the first to end was first.
            first = first_of(primary)
        # That the training can do without a rank may be in records on their way.
        spare = first.target.spare and first.was_running
        pause = ROOT_CAUSE_WAIT + (self._limits.interval if spare else 0.0)
        if primary:
            sure = (first.drained and not spare) or now - since > pause
            return failed_at(self.views, first, now=now) if sure else None
        if (alone := self._completed_alone()) and now - since > pause:
            return self._did_not_join(alone, now)
        # One rank's claim about another is not evidence: all are asked whom they reach.
        ranks = [view for view in self.views if view.target.task in self._peers]
        if self._fallen is None:
            self._fallen = self._diagnose(view for view in ranks if not view.trouble)
        if not self._fallen.done:
            pause = max(pause, 2 * ROOT_CAUSE_WAIT)
        began = any(view.record.get("step") for view in ranks)
        if self._fallen.done and not began and (found := self._fallen.finding()):
            return self._found_at(found, now)
        return self._lost_by_all(failed, now, now - since) if now - since > pause else None

    def _completed_alone(self) -> View | None:
        """Return a rank that has trained to its end without the others, if there is one."""
        ended = [view for view in self._training if view.phase == records.COMPLETED]
        return next((view for view in ended if view.state.get("alone")), None)

    def _waited_for(self, now: float) -> View | None:
        """Return a rank that has completed without the others while these wait for it: they have
        made no step, and show no sign of work for as long as a start may take.
        """
        alone = self._completed_alone()
        waiting = [view for view in self._training if not view.final]
        if alone is None or not waiting or any(view.record.get("step") for view in waiting):
            self._alone_at = None
            return None
        self._alone_at = now if self._alone_at is None else self._alone_at
        last = max(self._alone_at, *(self._activity[view].at for view in waiting))
        return alone if now - last > self._limits.start_timeout else None

    def _did_not_join(self, view: View, now: float) -> Outcome:
        """Return the outcome where a rank has trained without the others, who waited for it."""
        others = [other for other in self._training if other.phase != records.COMPLETED]
        named = ", ".join(other.target.task for other in others)
        reason = f"{doubts.TRAINED_ALONE}; {named} waited for it"
        return failed_at(self.views, view, now=now, cause=causes.ALONE, reason=reason)

    def _overdue(self, view: View, now: float) -> Finding | None:
        """Return why a rank keeps the gang waiting that has not failed, if it does."""
        limits, task = self._limits, view.target.task
        if view.silence(now) <= limits.unreachable_timeout:
            self._losses.pop(task, None)
        elif evidence := self._evidence_of_loss(view, now):
            limit = f"{limits.unreachable_timeout:g} s (train_job_unreachable_timeout)"
            trouble = f": {view.trouble}" if view.trouble else ""
            reason = f"was unreachable for {limit}{trouble}; {evidence}"
            return Finding(task, causes.UNREACHABLE, reason)
        if view.frozen_since is not None and now - view.frozen_since > FROZEN_LIMIT:
            reason = f"was stopped for {FROZEN_LIMIT:g} s by a signal or a debugger"
            return Finding(task, causes.FROZEN, reason)
        if view.phase != host_ranks.ABSENT:
            return None
        if view.target.start_error and self._cut_since is None:
            view.trouble = f"could not be started: {view.target.start_error}"
        elif view.heard and now - self._began > limits.start_timeout:
            limit = f"{limits.start_timeout:g} s (train_job_start_timeout)"
            view.trouble = f"did not start within {limit}"
        else:
            return None
        return Finding(task, causes.NOT_STARTED, view.trouble)

    def _kept_waiting(self, needed: Sequence[View]) -> Finding | None:
        """Notice ranks that have not opened their port but show signs of life, as their supervisors
        have not ended them; return the one for which another rank that is up has waited too long.
        """
        clock, limits = time.time(), self._limits
        begun = [(view, view.began_at) for view in needed if view.phase == records.STARTING]
        late = [(v, at) for v, at in begun if at and clock - at > limits.start_timeout + NOTICE]
        for view, at in late:
            text = (
                f"{view.target.task} ({view.target.host}) has not opened its port for "
                f"{clock - at:.0f} s, but it is at work: the other ranks wait until it makes its "
                "strategy (train_job_start_timeout sets a limit)"
            )
            self._notice("starting", text, view, once=view.target.task)
        up = [v.running_at for v in needed if v.phase == records.RUNNING and v.running_at]
        limit = limits.start_wait_timeout
        if not (late and up and limit and clock - min(up) > limit):
            return None
        view = min(late, key=lambda one: one[1])[0]
        reason = f"did not open its port while others waited for {limit:g} s"
        return Finding(
            view.target.task, host_ends.START_TIMEOUT, f"{reason} (train_job_start_wait_timeout)"
        )

    def _evidence_of_loss(self, view: View, now: float) -> str:
        """Return evidence, in words, that a host which cannot be reached from here is lost; or
        nothing. A synchronous gang whose steps advance is alive, all of it. Where they do not,
        other hosts are asked whether they reach the rank.
        """
        running = [other for other in self.views if other.phase == records.RUNNING]
        others = [one for one in running if one is not view and not one.is_unresponsive(now)]
        stepped = [o.stepped for o in others if not o.target.non_training and o.stepped is not None]
        task = view.target.task
        if not others or (stepped and now - max(stepped) < self._limits.unreachable_timeout):
            self._losses.pop(task, None)
            return ""
        if task not in self._peers:
            return "no other rank makes a step any more" if stepped else ""
        diagnosis = self._losses.get(task)
        if diagnosis is None or now - diagnosis.began > PROBE_AFTER:
            self._losses[task] = self._diagnose(others)
            return ""
        reached = diagnosis.reached(task) if diagnosis.done else {}
        # Where somebody reaches it, or nobody knows, they are asked again later.
        if not reached or {host_probe.OPEN, host_probe.REFUSED} & set(reached.values()):
            return ""
        found = ", ".join(f"{other}: {how}" for other, how in reached.items())
        return f"nor do other ranks reach it ({found})"

    def _unreached(self, now: float) -> Finding | None:
        """Have the ranks of a gang that makes no steps check whom they reach.

        What they find counts when they find it twice. TensorFlow notices nothing where two ranks
        lose each other that both still reach the first one.
        """
        ranks = [view for view in self.views if view.target.task in self._peers]
        steps = [view.record.get("step") for view in ranks]
        up = all(view.phase == records.RUNNING and not view.trouble for view in ranks)
        if len(ranks) < 2 or not up:
            self._probe_at = self._diagnosis = None
            return None
        if self._probe_at is None or steps != self._steps:
            self._probe_at, self._steps = now + PROBE_AFTER, steps
            self._diagnosis, self._found, self._probed, self._last = None, None, 0, None
        if self._diagnosis is None:
            if self._probed < PROBES and now > self._probe_at:
                self._diagnosis = self._diagnose(ranks)
        elif self._diagnosis.done:
            found, before = self._diagnosis.finding(), self._found
            self._last, self._diagnosis, self._found = self._diagnosis, None, found
            self._probed += 1
            if found and before and (found.task, found.cause) == (before.task, before.cause):
                return found
            self._probe_at = now + (PROBE_AGAIN if found else PROBE_AFTER)
        return None

    def _diagnose(self, views: Iterable[View]) -> Diagnosis:
        """Have the hosts of some ranks check whom they reach."""
        return Diagnosis([view.target for view in views], self._peers, self._probe)

    def _found_at(self, found: Finding, now: float) -> Outcome:
        if found.task is None:
            return neither_at_fault(self.views, found.reason, now=now)
        view = next(view for view in self.views if view.target.task == found.task)
        return failed_at(self.views, view, now=now, cause=found.cause, reason=found.reason)

    def _lost_by_all(self, failed: Sequence[View], now: float, waited: float) -> Outcome | None:
        """Return the outcome where all failed ranks report only that they lost another one; None
        where more of them will report soon, ``waited`` seconds after the first one.
        """
        first = first_of(failed)
        lost = stuck(self.views, now)
        if lost is not None:
            about: Any = {"cause": causes.UNREACHABLE, "reason": "is unreachable"}
            if lost.state.get("frozen"):
                frozen = "is stopped by a signal or a debugger"
                about = {"cause": causes.FROZEN, "reason": frozen}
            return failed_at(self.views, lost, now=now, **about, reported_by=first)
        left = rank_that_left(self.views, failed)
        if left is not None:
            about = {"cause": causes.LEFT, "reason": how_it_left(left), "reported_by": first}
            return failed_at(self.views, left, now=now, **about)
        contact = who_lost_contact(self.views, failed, *self._paths())
        if contact is None:
            cause = causes.NETWORK if first.state.get("exit_code") is not None else ""
            return failed_at(self.views, first, now=now, cause=cause)
        living = [v for v in self.views if v.target.task in self._peers and not v.final]
        if contact.one_word and len(self._peers) > 2 and living and waited < WORDS_WAIT:
            return None
        lost, reason = contact.view, contact.reason
        if lost is None:
            return neither_at_fault(self.views, reason, now=now, reported_by=first)
        by = first_of([view for view in failed if view is not lost] or failed)
        about = {"cause": causes.NETWORK, "reason": reason, "reported_by": by}
        if not lost.final and (lost.trouble or lost.silence(now) > 0):
            about |= {"cause": causes.UNREACHABLE, "reason": "is unreachable"}
        return failed_at(self.views, lost, now=now, **about)

    def _paths(self) -> tuple[set[PathBetween], set[PathBetween]]:
        """Return the paths between the ranks of a fallen gang that were tried and that are broken:
        at its end or, where all are open again, when it last made no steps.
        """
        tried: set[PathBetween] = set()
        for diagnosis in (self._fallen, self._last):
            if diagnosis is not None and diagnosis.broken:
                return diagnosis.tried, diagnosis.broken
            tried |= diagnosis.tried if diagnosis is not None else set()
        return tried, set()

    def _end(self, training: Sequence[View], now: float) -> Outcome | None:
        """Return how the gang ended whose training is done, once all other tasks have ended."""
        self._trained_at = now if self._trained_at is None else self._trained_at
        others = [view for view in self.views if view.target.non_training]
        busy = [view for view in self._evaluators if self._evaluates(view, now)]
        running = [view for view in others if view.may_end or view in busy]
        late = [v for v in running if v.at_work and (v in busy or v not in self._evaluators)]
        # The limit may be shorter than the time after which an evaluator seems to wait.
        cut_off = [v for v in late if v not in busy or self._evaluates(v, now, seen=True)]
        waited, limit = now - self._trained_at, self._limits.end_timeout
        # An evaluator that seems to wait may have found the last checkpoint just now.
        wait = limit if late else min(limit, self._limits.interval + NOTICE)
        if running and waited < wait:
            return None
        different = different_weights(training)
        if different is not None:
            return different
        fates, unsure = [], []
        for view in others:
            fate = ""
            if view in cut_off:
                fate = f"did not end within {limit:g} s (train_job_end_timeout)"
            elif view.final:
                fate = str(view.state.get("reason", ""))
            elif view.trouble:
                fate = f"cannot be reached: {view.trouble}"
            if fate:
                fates.append(f"{view.target.task} on {view.target.host} {fate}")
            if fate and view in self._evaluators and view.phase != records.STOPPED:
                remedy = "raise train_job_end_timeout" if view in cut_off else "see its log"
                unsure.append(f"{fates[-1]}: the last checkpoint may not be evaluated; {remedy}")
        message = "; ".join(["the training completed", *fates]) if fates else "all ranks completed"
        return Outcome("completed", None, message, doubts=unsure)

    def _evaluates(self, view: View, now: float, seen: bool = False) -> bool:
        """Return whether an evaluator may be at work, also one that writes no records; or was
        ``seen`` to be.
        """
        if view.phase != records.RUNNING or view.trouble or self._trained_at is None:
            return False
        if view.may_end and view.record.get("phase") == "evaluating":
            return True
        at = self._activity[view].at
        return now - (at if seen else max(at, self._trained_at)) < QUIET


def _are_stopped_first(stopped: Sequence[View], failed: Sequence[View]) -> bool:
    """Return whether ranks were stopped, and others failed only for losing them before they were
    stopped themselves.
    """
    first = min(view.ended_at for view in stopped)
    return all(is_secondary(view) and view.ended_at >= first for view in failed)


def write_event(run_dir: Path, **event: Any) -> None:
    """Append an event to ``events.jsonl``; docs/formats.md describes its fields."""
    _append(run_dir / EVENTS_FILE, {"t": round(time.time(), 3), **event})


def _append(path: Path, record: Mapping[str, Any]) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o644), "wb") as stream:
        stream.write(json.dumps(record, sort_keys=True).encode() + b"\n")
