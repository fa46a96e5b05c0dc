"""Follows all ranks of a gang at once, and says how the gang ended.

One thread a machine asks for updates of the ranks there (``host.updates``, which waits on the
machine); all updates meet in one queue, so that the first failure is seen as such, whatever the
number of Ansible's forks. What comes in is checked (``reports``) and kept in the job's folder on
the control node: logs, progress records, ``events.jsonl``.

What is merely not known ends no job: a host that cannot be reached from here counts as lost only
where others of the gang confirm it, and what cannot be written here is fetched later.
Standard library only: it runs inside Ansible's action plugin ``gang_call``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from train.gang import reports
from train.gang.watch import causes
from train.gang.watch.diagnosis import Diagnosis, Finding, Peers, Probe
from train.gang.watch.fetched import FetchedFile
from train.gang.watch.outcome import (
    FROZEN_LIMIT,
    Verdict,
    accused,
    blame,
    different_weights,
    first_of,
    is_silent,
)
from train.gang.watch.stragglers import Stragglers
from train.gang.watch.views import Target, View, describe, is_secondary
from train.host import probe as host_probe
from train.host import ranks as host_ranks
from train.host import records

EVENTS_FILE = "events.jsonl"
LOCK_FILE = ".followed"
#: Seconds that a host waits for updates before it answers without.
WAIT = 5.0
#: Seconds for a rank that was first at fault to be seen after one that fell with it.
SETTLE = 3.0
#: Seconds, beside the interval, in which word of a rank's last records is here.
NOTICE = 2.0
#: Seconds between two tries to reach a host, the first and the longest; and to write a file.
_BACKOFF, _LONGEST_BACKOFF = 1.0, 15.0
_DISK_PAUSE = 5.0
#: Bytes of a file's end that a watch which continues another one reads.
_TAIL = 1 << 20
#: Where the files of a rank lie in the job's folder.
_PLACES = {
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


def _hosts(views: Sequence[View]) -> str:
    return ", ".join(dict.fromkeys(view.target.host for view in views))


def fetched_files(run_dir: Path, task: str, limit: int) -> dict[str, FetchedFile]:
    """Return the local copies of a rank's files, each of at most ``limit`` bytes."""
    paths = {name: run_dir / place.format(task) for name, place in _PLACES.items()}
    return {name: FetchedFile(path, limit) for name, path in paths.items()}


#: Asks the machine of a rank for updates of its ranks; the other arguments and what it returns are
#: those of host.updates.wait_for_updates. Raises UnreachableError, or OSError where it failed.
Look = Callable[[Target, dict[str, Any], float, float], dict[str, Any]]


class Gang:
    """All ranks of a job.

    Args:
        targets: the ranks.
        run_dir: the job's folder on the control node; files there are continued.
        look: asks a machine for updates.
        say: shows a line to a person.
        start_timeout: seconds until every rank must have a state.
        unreachable_timeout: seconds that a host may be unreachable; then it is lost, if others of
            the gang confirm it.
        interval: seconds that a host gathers lines before it answers.
        end_timeout: seconds that services may take to end by themselves after the training.
        straggler_factor: how many times the others' own part of a step is told as slow.
        peers: where each rank is for the others, by task; empty where they are not to be asked.
        probe: has a host find out which of them it reaches.
        disconnected_timeout: seconds without any host after which the watch ends; 0 for no limit.
        log_limit: the most bytes that are kept of each of a rank's files.

    Raises:
        BusyError: another process follows the job.
        OSError: the job's folder cannot be written.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        run_dir: Path,
        look: Look,
        say: Callable[[str], None],
        start_timeout: float,
        unreachable_timeout: float,
        interval: float,
        end_timeout: float,
        straggler_factor: float = 1.5,
        peers: Peers | None = None,
        probe: Probe | None = None,
        disconnected_timeout: float = 0.0,
        log_limit: int = 1 << 28,
    ) -> None:
        self.views = [View(target) for target in targets]
        self.run_dir = run_dir
        self._look = look
        self._say = say
        self._start_timeout = start_timeout
        self._unreachable_timeout = unreachable_timeout
        self._interval = interval
        self._end_timeout = end_timeout
        self._disconnected_timeout = disconnected_timeout
        self._log_limit = log_limit
        self._updates: queue.SimpleQueue[tuple[View, dict[str, Any] | Exception]] = (
            queue.SimpleQueue()
        )
        self._over = threading.Event()
        self._said: dict[str, tuple[Any, ...]] = {}
        self._suspect: tuple[View, float] | None = None
        self._trained_at: float | None = None
        tasks = [view.target.task for view in self._training]
        self._stragglers = Stragglers(tasks, straggler_factor)
        self._peers, self._probe = peers or {}, probe
        self._up_since: float | None = None
        self._diagnosis: Diagnosis | None = None
        self._fallen: Diagnosis | None = None
        self._probed = 0
        self._steps: list[Any] = []
        self._found: Finding | None = None
        self._cut_since: float | None = None  # no connection to any host that is waited for
        self._back: tuple[float, float] | None = None  # when the last cut began and ended
        self._noticed: set[tuple[str, str]] = set()
        self._losses: dict[str, tuple[float, Diagnosis]] = {}
        run_dir.mkdir(parents=True, exist_ok=True)
        # Two that follow one job would both append to its logs.
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._lock = os.open(run_dir / LOCK_FILE, flags, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise BusyError(
                f"another process follows this job already: see {run_dir / EVENTS_FILE}"
            ) from None
        for name in ("logs", "progress"):
            (run_dir / name).mkdir(parents=True, exist_ok=True)
        self._files = {view: self._resume(view) for view in self.views}

    def _resume(self, view: View) -> dict[str, FetchedFile]:
        """Return the copies of a rank's files, after reading what an earlier watch has left."""
        files = fetched_files(self.run_dir, view.target.task, self._log_limit)
        view.add_log(files["log"].tail(65_536))
        view.add_progress(records.parse_progress(files["progress"].tail(_TAIL)))
        view.lines = files["progress"].lines()
        return files

    def follow(self) -> Verdict:
        """Follow the ranks until the gang is over.

        Services do not count once the training is done: those that end by themselves get
        ``end_timeout`` for it. Before that, a service that is lost ends the gang, unless it is a
        worker that the training goes on without.
        """
        return self._run(lambda: self._judge(time.monotonic()), wait=WAIT)

    def drain(self, verdict: Verdict) -> Verdict:
        """Fetch what the hosts still have, without waiting, and keep ``verdict``."""

        def done() -> Verdict | None:
            now, limit = time.monotonic(), self._unreachable_timeout
            settled = (v.drained or v.trouble or v.silence(now, 0) > limit for v in self.views)
            if not all(settled):
                return None
            for view in self.views:
                if not view.answered:  # what it does now is not known; the gang is without it
                    view.state = {"phase": records.FAILED}
                    view.trouble = view.trouble or "does not answer"
            return verdict

        return self._run(done, wait=0.0)

    def _run(self, judge: Callable[[], Verdict | None], wait: float) -> Verdict:
        self._began = time.monotonic()
        places: dict[str, list[View]] = {}
        for view in self.views:
            places.setdefault(view.target.place, []).append(view)
        for views in places.values():
            threading.Thread(target=self._ask, args=(views, wait), daemon=True).start()
        while True:
            with contextlib.suppress(queue.Empty):
                self._take(*self._updates.get(timeout=0.5))
            verdict = judge()
            if verdict is not None:
                self._over.set()
                return verdict

    def _ask(self, views: Sequence[View], wait: float) -> None:
        """Ask a machine for updates of its ranks until they have ended (in a thread of its own)."""
        waiting = {view.target.rank_dir: view for view in views}
        start = {"phase": "", "frozen": False}
        cursors: dict[str, Any] = {
            view.target.rank_dir: {**start, **{n: f.offset for n, f in self._files[view].items()}}
            for view in views
        }
        interval, backoff = 0.0, _BACKOFF
        while waiting and not self._over.is_set():
            asked = {rank_dir: cursors[rank_dir] for rank_dir in waiting}
            for view in waiting.values():
                view.asked = time.monotonic()
            try:
                told = self._look(views[0].target, asked, wait, interval)
                found = {rank_dir: reports.update(told.get(rank_dir)) for rank_dir in waiting}
            except Exception as error:  # whatever it is: a thread that ends is waited for for ever
                for view in waiting.values():
                    view.asked = None
                    self._updates.put((view, error))
                self._over.wait(backoff)
                backoff = min(2 * backoff, _LONGEST_BACKOFF)
                continue
            interval, backoff, pause = self._interval, _BACKOFF, 0.0
            for rank_dir, update in found.items():
                view = waiting[rank_dir]
                update["unsaved"] = self._save(view, update, cursors[rank_dir])
                pause = max(pause, _DISK_PAUSE if update["unsaved"] else 0.0)
                cursors[rank_dir] = update["cursor"]
                view.asked = None
                self._updates.put((view, update))
                state = update["state"]
                final = state["phase"] in records.FINAL_PHASES and view.is_of_attempt(state)
                if not update["more"] and (wait == 0 or final):
                    del waiting[rank_dir]
            self._over.wait(pause)

    def _save(self, view: View, update: dict[str, Any], cursor: dict[str, Any]) -> str:
        """Append to the copies of a rank's files; what is not new to the watch is left out of it.

        Returns:
            Why a file could not be written, in words; it is asked for again then.
        """
        trouble = ""
        for name, file in self._files[view].items():
            begin, end = cursor[name], update["cursor"][name]
            data = update[name].encode("utf-8", "surrogateescape")
            if data:
                try:
                    file.append(data, end)
                except OSError as error:
                    trouble = f"{file.path} cannot be written: {error.strerror}"
                    update["cursor"][name] = begin
            known = view.known.get(name, 0)
            if begin < known <= end:  # it came before, and could not be written
                data = data[len(data) - (end - known) :] if end > known else b""
            view.known[name] = end
            update[name] = data.decode("utf-8", "replace")
        return trouble

    def _take(self, view: View, update: dict[str, Any] | Exception) -> None:
        if isinstance(update, Exception):
            view.silent_since = view.silent_since or time.monotonic()
            view.trouble = records.clean(str(update) or type(update).__name__, reports.MAX_REASON)
            return
        if ("unreachable", view.target.host) in self._noticed:
            self._noticed.discard(("unreachable", view.target.host))
            self._notice("reachable", f"{view.target.host} can be reached again", view)
        view.silent_since, view.trouble, view.heard = None, "", time.monotonic()
        if update["unsaved"] and ("disk", "") not in self._noticed:
            self._noticed.add(("disk", ""))
            self._notice(
                "disk", f"{update['unsaved']}; the job goes on, and attach fetches the rest"
            )
        view.add_log(update["log"])
        self._add_progress(view, update)
        view.state, view.age = update["state"], update["age"]
        if not view.is_of_attempt(update["state"]):
            view.state = {"phase": host_ranks.ABSENT}  # what an earlier attempt has left
        view.offset = time.time() - update["now"]
        if not view.state.get("frozen"):
            view.frozen_since = None
        elif view.frozen_since is None:
            view.frozen_since = time.monotonic()
        view.drained, view.answered = not update["more"], True
        if view.phase == host_ranks.ABSENT:
            return
        self._write(
            {
                "t": round(time.time(), 3),
                "task": view.target.task,
                "host": view.target.host,
                "phase": view.phase,
                "reason": view.state.get("reason", ""),
                "exit_code": view.state.get("exit_code"),
                "progress": view.record,
                "last_line": view.tail[-1] if view.tail else "",
                "age": view.age,
            }
        )
        self._tell(view)

    def _write(self, event: dict[str, Any]) -> None:
        """Append a line to ``events.jsonl``; one that does not fit on the disk is lost."""
        line = json.dumps(event, sort_keys=True) + "\n"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with contextlib.suppress(OSError):
            descriptor = os.open(self.run_dir / EVENTS_FILE, flags, 0o644)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(line.encode())

    def _notice(self, kind: str, text: str, view: View | None = None) -> None:
        """Show a line about the watch itself, and note it in ``events.jsonl``."""
        self._say(text)
        about = {"kind": kind, "task": view.target.task if view else None, "text": text}
        self._write({"t": round(time.time(), 3), "notice": about})

    def _note_connection(self, now: float) -> None:
        """Notice when no host, or one host, cannot be reached, and when that is over.

        Raises:
            WatchEndedError: there was no connection for longer than the user's limit.
        """
        waiting = [view for view in self.views if not view.final]
        silent = [view for view in waiting if is_silent(view, now, WAIT)]
        heard = max(view.heard for view in self.views)
        since = min((view.silent_from(now, WAIT) for view in silent), default=now)
        none = bool(silent) and len(silent) == len(waiting)
        if none and self._disconnected_timeout and now - since > self._disconnected_timeout:
            raise WatchEndedError(
                f"there was no connection to {_hosts(silent)} for {self._disconnected_timeout:g} s "
                "(train_job_disconnected_timeout)"
            )
        if self._cut_since is not None and (heard > self._cut_since or not none):
            self._back = (self._cut_since, now)
            self._notice("connected", f"connected again after {now - self._cut_since:.0f} s")
            self._cut_since = None
        elif self._cut_since is None and none and heard <= since:
            self._cut_since = since
            clock = time.strftime("%H:%M:%S", time.localtime(time.time() - now + since))
            why = next((f" ({view.trouble})" for view in silent if view.trouble), "")
            self._notice(
                "disconnected",
                f"no connection to {_hosts(silent)} since {clock}{why}; the job is left alone, and "
                "its hosts are tried again",
            )
        if self._cut_since is None:
            limit = min(_LONGEST_BACKOFF, self._unreachable_timeout)
            for view in silent:
                key = ("unreachable", view.target.host)
                if key not in self._noticed and view.silence(now, WAIT) > limit:
                    self._noticed.add(key)
                    why = view.trouble or "it does not answer"
                    text = f"{view.target.host} cannot be reached from here: {why}; the job goes on"
                    self._notice("unreachable", text, view)

    def _add_progress(self, view: View, update: dict[str, Any]) -> None:
        """Take new progress records, and tell which rank keeps the others waiting."""
        text = view.rest + update["progress"]
        complete, newline, view.rest = text.rpartition("\n")
        if len(view.rest) > records.MAX_LINE:
            view.rest = view.rest[: records.MAX_LINE + 1]  # too long, whatever follows
        found, wrong = records.read_progress(complete)
        if wrong and ("progress", view.target.task) not in self._noticed:
            self._noticed.add(("progress", view.target.task))
            place, why = wrong[0]
            self._notice(
                "progress",
                f"{view.target.task} ({view.target.host}): line {view.lines + place + 1} of its "
                f"progress is passed over, as others like it will be: {why}",
                view,
            )
        view.bad_lines += len(wrong)
        view.lines += (complete + newline).count("\n")
        before = view.record.get("step")
        view.add_progress(found)
        if view.record.get("step") != before:
            view.stepped = time.monotonic()
        rank = (view.target.task, view.target.host)
        try:
            for record in found:
                self._stragglers.add(*rank, record, None)
            self._stragglers.add(*rank, None, update["load"])
            told = self._stragglers.finding()
        except Exception as error:  # of what a host says of itself: the job does not hang on it
            if ("load", "") not in self._noticed:
                self._noticed.add(("load", ""))
                self._notice("load", f"slow ranks are not looked for any more: {error!r}")
            return
        if told is not None:
            self._say(told.text)
            self._write({"t": round(time.time(), 3), "straggler": told.event})

    def _tell(self, view: View) -> None:
        """Say a line where the phase or the epoch has changed."""
        record = view.record
        key: tuple[Any, ...] = (view.phase, bool(view.state.get("frozen")), record.get("phase"))
        key += (record.get("epoch"), bool(record.get("step")))
        if self._said.get(view.target.task) != key:
            self._said[view.target.task] = key
            without = view.phase == records.FAILED and self._goes_on_without(view)
            told = describe(view) + ("; the training goes on without it" if without else "")
            self._say(f"{view.target.task} ({view.target.host}): {told}")

    @property
    def _training(self) -> list[View]:
        return [view for view in self.views if not view.target.service]

    def _goes_on_without(self, view: View) -> bool:
        """Tell whether the training does not need a rank: a worker beside parameter servers that
        was up and is not the last, with the chief past its beginning, as far as it tells.
        """
        if not (view.target.spare and view.was_running):
            return False
        begun = all(other.was_running and other.at_work for other in self._training)
        lost = (records.FAILED, records.STOPPED)
        others = [other for other in self.views if other.target.spare and other is not view]
        return begun and any(other.phase not in lost for other in others)

    def _judge(self, now: float) -> Verdict | None:
        self._note_connection(now)
        # The first to answer need not be the first to have ended.
        silent = [view for view in self.views if not (view.answered or view.trouble)]
        if silent and now - self._began < WAIT:
            return None
        if self._back is not None and now - self._back[1] < self._unreachable_timeout:
            # After a cut, all states are read before any of them is judged.
            if any(not view.final and view.heard < self._back[0] for view in self.views):
                return None
            self._back = None
        training = self._training
        if all(view.phase == records.COMPLETED for view in training):
            return self._end(training, now) if all(view.drained for view in training) else None
        needed = [view for view in self.views if not self._goes_on_without(view)]
        failed = [view for view in needed if view.phase == records.FAILED]
        if not failed:
            self._suspect = None
        elif self._suspect is None or self._suspect[0] not in failed:
            self._suspect = (failed[0], now)
        if self._suspect is not None:
            first, since = self._suspect
            primary = [view for view in failed if not is_secondary(view)]
            if primary:
                # Where several are at fault, the first to end was first.
                first = first_of(primary)
            # That the training goes on without a rank may be told by records on their way.
            spare = first.target.spare and first.was_running
            settle = SETTLE + (self._interval if spare else 0.0)
            sure = primary and first.drained and not spare
            if primary:
                return self._blame(first, now) if sure or now - since > settle else None
            fell_at_the_start = self._fallen_at_the_start(now - since)
            if isinstance(fell_at_the_start, Verdict):
                return fell_at_the_start
            if fell_at_the_start or now - since <= settle:
                return None
            return self._blame_other(failed, now)
        verdict = self._overdue(needed, now) or self._unreached(now)
        if verdict is not None:
            return verdict
        stopped = [view for view in self.views if view.phase == records.STOPPED]
        if any(not view.target.service for view in stopped):
            named = ", ".join(view.target.task for view in stopped)
            return Verdict("stopped", None, f"{named} {stopped[0].state.get('reason')}")
        return None

    def _overdue(self, needed: Sequence[View], now: float) -> Verdict | None:
        """Return the verdict on a rank that has not failed and keeps the gang waiting."""
        for view in needed:
            if view.silence(now, WAIT) > self._unreachable_timeout:
                evidence = self._evidence_of_loss(view, now)
                if evidence:
                    reason = (
                        f"did not answer for {self._unreachable_timeout:g} s "
                        f"(train_job_unreachable_timeout){': ' if view.trouble else ''}"
                        f"{view.trouble}; {evidence}"
                    )
                    return self._blame(view, now, causes.UNREACHABLE, reason)
            else:
                self._losses.pop(view.target.task, None)
            if view.frozen_since is not None and now - view.frozen_since > FROZEN_LIMIT:
                reason = f"was stopped for {FROZEN_LIMIT:g} s by a signal or a debugger"
                return self._blame(view, now, causes.FROZEN, reason)
            absent = view.phase == host_ranks.ABSENT
            if absent and view.target.start_error and self._cut_since is None:
                view.trouble = f"could not be started: {view.target.start_error}"
                return self._blame(view, now, causes.NOT_STARTED, view.trouble)
            if absent and view.answered and now - self._began > self._start_timeout:
                view.trouble = (
                    f"did not start within {self._start_timeout:g} s (train_job_start_timeout)"
                )
                return self._blame(view, now, causes.NOT_STARTED, view.trouble)
        return None

    def _evidence_of_loss(self, view: View, now: float) -> str:
        """Return what others of the gang know of a host that cannot be reached from here.

        A synchronous gang whose steps advance is alive, all of it. Where they do not, other hosts
        are asked whether they reach the rank.

        Returns:
            Evidence that the host is lost, in words; empty where there is none.
        """
        others = [
            other
            for other in self.views
            if other is not view
            and other.phase == records.RUNNING
            and not is_silent(other, now, WAIT)
        ]
        stepped = [o.stepped for o in others if not o.target.service and o.stepped is not None]
        if not others or (stepped and now - max(stepped) < self._unreachable_timeout):
            self._losses.pop(view.target.task, None)
            return ""
        task = view.target.task
        if self._probe is None or task not in self._peers:
            return "no other rank makes a step any more" if stepped else ""
        asked_at, diagnosis = self._losses.get(task, (now, None))
        if diagnosis is None or now - asked_at > PROBE_AFTER:
            targets = [other.target for other in others if other.target.task in self._peers]
            self._losses[task] = (now, Diagnosis(targets, self._peers, self._probe))
            return ""
        words = diagnosis.words_on(task) if diagnosis.done else {}
        # Where somebody reaches it, or nobody knows, they are asked again later.
        if not words or {host_probe.OPEN, host_probe.REFUSED} & set(words.values()):
            return ""
        told = ", ".join(f"{other}: {word}" for other, word in words.items())
        return f"nor do other ranks reach it ({told})"

    def _fallen_at_the_start(self, elapsed: float) -> Verdict | bool:
        """Ask the ranks of a gang that fell before its first step whom they reach.

        Returns:
            The verdict, or whether the answers are still to be waited for.
        """
        ranks = [view for view in self.views if view.target.task in self._peers]
        if self._probe is None or any(view.record.get("step") for view in ranks):
            return False
        if self._fallen is None:
            targets = [view.target for view in ranks if not view.trouble]
            self._fallen = Diagnosis(targets, self._peers, self._probe)
        found = self._fallen.finding() if self._fallen.done else None
        if found is None:
            return not self._fallen.done and elapsed < 2 * SETTLE
        view = next(view for view in ranks if view.target.task == found.task)
        return self._blame(view, time.monotonic(), found.cause, found.reason)

    def _unreached(self, now: float) -> Verdict | None:
        """Have the ranks of a gang that makes no steps find out whom they reach.

        What they find counts when they find it twice. TensorFlow notices nothing where two ranks
        lose each other that both still reach the first one.
        """
        ranks = [view for view in self.views if view.target.task in self._peers]
        steps = [view.record.get("step") for view in ranks]
        up = all(view.phase == records.RUNNING and not view.trouble for view in ranks)
        if self._probe is None or len(ranks) < 2 or not up:
            self._up_since = self._diagnosis = None
            return None
        if self._up_since is None or steps != self._steps:
            self._up_since, self._steps = now, steps
            self._diagnosis, self._found, self._probed = None, None, 0
        if self._probed >= PROBES:
            return None
        if self._diagnosis is None:
            if now - self._up_since > PROBE_AFTER:
                targets = [view.target for view in ranks]
                self._diagnosis = Diagnosis(targets, self._peers, self._probe)
            return None
        if not self._diagnosis.done:
            return None
        found, before = self._diagnosis.finding(), self._found
        self._diagnosis, self._found = None, found
        self._probed += 1
        if (
            found is None
            or before is None
            or (found.task, found.cause)
            != (
                before.task,
                before.cause,
            )
        ):
            self._up_since = now + (PROBE_AGAIN if found else PROBE_AFTER) - PROBE_AFTER
            return None
        view = next(view for view in ranks if view.target.task == found.task)
        return self._blame(view, now, found.cause, found.reason)

    def _blame(
        self, view: View, now: float, cause: str = "", reason: str = "", witness: View | None = None
    ) -> Verdict:
        return blame(
            self.views, view, now=now, wait=WAIT, cause=cause, reason=reason, witness=witness
        )

    def _blame_other(self, failed: Sequence[View], now: float) -> Verdict:
        """Return the verdict on ranks that all say that they lost another one."""
        culprit = accused(self.views, failed, now, WAIT)
        first = first_of([view for view in failed if view is not culprit] or failed)
        if culprit is None:
            cause = causes.NETWORK if first.state.get("exit_code") is not None else ""
            return self._blame(first, now, cause)
        if culprit.final:
            reason = "could not be reached by the others"
            return self._blame(culprit, now, causes.NETWORK, reason, first)
        if culprit.state.get("frozen"):
            reason = "is stopped by a signal or a debugger"
            return self._blame(culprit, now, causes.FROZEN, reason, first)
        silent = culprit.trouble or culprit.silence(now, WAIT) > 0
        cause = causes.UNREACHABLE if silent else causes.NETWORK
        return self._blame(culprit, now, cause, "does not answer", first)

    def _end(self, training: Sequence[View], now: float) -> Verdict | None:
        """Return how the gang ended whose training is done, once its services have ended."""
        self._trained_at = now if self._trained_at is None else self._trained_at
        services = [view for view in self.views if view.target.service]
        running = [view for view in services if view.may_end]
        late = [view for view in running if view.at_work]
        waited = now - self._trained_at
        # An evaluator that seems to wait may have found the last checkpoint just now.
        wait = self._end_timeout if late else min(self._end_timeout, self._interval + NOTICE)
        if running and waited < wait:
            return None
        different = different_weights(training)
        if different is not None:
            return different
        fates = [(view, self._fate(view, view in late)) for view in services]
        named = [f"{view.target.task} on {view.target.host} {fate}" for view, fate in fates if fate]
        told = "; ".join(["the training completed", *named]) if named else "all ranks completed"
        return Verdict("completed", None, told)

    def _fate(self, view: View, late: bool) -> str:
        """Return what has become of a service that did not end well; empty for others."""
        if late:
            return f"did not end within {self._end_timeout:g} s (train_job_end_timeout)"
        if view.final:
            return str(view.state.get("reason", ""))
        return f"cannot be reached: {view.trouble}" if view.trouble else ""
