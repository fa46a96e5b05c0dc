"""Follows all ranks of a gang at once, and says how the gang ended.

One thread a machine asks for news of the ranks there (``host.news``, which waits on the machine);
all news meet in one queue, so that the first failure is seen as such, whatever the number of
Ansible's forks. What comes in is kept in the job's folder on the control node: logs, progress
records, ``events.jsonl``.
Standard library only: it runs inside Ansible's action plugin ``gang_watch``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from train.control import causes
from train.control.diagnosis import Diagnosis, Finding, Peers, Probe
from train.control.stragglers import Stragglers
from train.control.verdicts import (
    FROZEN_LIMIT,
    Verdict,
    accused,
    blame,
    different_weights,
    first_of,
)
from train.control.views import Target, View, describe, is_secondary
from train.host import ranks as host_ranks
from train.host import records

EVENTS_FILE = "events.jsonl"
LOCK_FILE = ".followed"
#: Seconds that a host waits for news before it answers without.
WAIT = 5.0
#: Seconds for a rank that was first at fault to be seen after one that fell with it.
SETTLE = 3.0
#: Seconds, beside the interval, in which word of a rank's last records is here.
NOTICE = 2.0
_BACKOFF = 1.0

#: Seconds for which all ranks must be up without a new step before they are asked whether they
#: reach one another, the pause until they are asked again, and how often that is done.
PROBE_AFTER = 8.0
PROBE_AGAIN = 2.0
PROBES = 6


class BusyError(Exception):
    """Another process follows the job already."""


class UnreachableError(Exception):
    """A host does not answer."""


#: Asks the machine of a rank for news of its ranks; the other arguments and what it returns are
#: those of host.news.wait_for_news. Raises UnreachableError, or OSError where the look failed.
Look = Callable[[Target, dict[str, Any], float, float], dict[str, Any]]


class Gang:
    """All ranks of a job.

    Args:
        targets: the ranks.
        run_dir: the job's folder on the control node; files there are continued.
        look: asks a machine for news.
        say: shows a line to a person.
        start_timeout: seconds until every rank must have a state.
        unreachable_timeout: seconds that a host may not answer.
        interval: seconds that a host gathers lines before it answers.
        end_timeout: seconds that services may take to end by themselves after the training.
        straggler_factor: how many times the others' own part of a step is told as slow.
        peers: where each rank is for the others, by task; empty where they are not to be asked.
        probe: has a host find out which of them it reaches.

    Raises:
        BusyError: another process follows the job.
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
    ) -> None:
        self.views = [View(target) for target in targets]
        self.run_dir = run_dir
        self._look = look
        self._say = say
        self._start_timeout = start_timeout
        self._unreachable_timeout = unreachable_timeout
        self._interval = interval
        self._end_timeout = end_timeout
        self._news: queue.SimpleQueue[tuple[View, dict[str, Any] | Exception]] = queue.SimpleQueue()
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
        run_dir.mkdir(parents=True, exist_ok=True)
        # Two that follow one job would both append to its logs.
        self._lock = (run_dir / LOCK_FILE).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(
                f"another process follows this job already: see {run_dir / EVENTS_FILE}"
            ) from None
        for name in ("logs", "progress"):
            (run_dir / name).mkdir(parents=True, exist_ok=True)
        for view in self.views:
            self._take_up(view)

    def _log_path(self, view: View) -> Path:
        return self.run_dir / "logs" / f"{view.target.task}.log"

    def _progress_path(self, view: View) -> Path:
        return self.run_dir / "progress" / f"{view.target.task}.jsonl"

    def _take_up(self, view: View) -> None:
        """Read what an earlier watch of this job has left."""
        for path in (self._log_path(view), self._progress_path(view)):
            path.touch()
        view.add_log(self._log_path(view).read_text(encoding="utf-8", errors="replace")[-65_536:])
        text = self._progress_path(view).read_text(encoding="utf-8", errors="replace")
        view.add_progress(records.parse_progress(text))

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
        with (self.run_dir / EVENTS_FILE).open("a", encoding="utf-8") as events:
            while True:
                with contextlib.suppress(queue.Empty):
                    self._take(*self._news.get(timeout=0.5), events)
                verdict = judge()
                if verdict is not None:
                    self._over.set()
                    return verdict

    def _ask(self, views: Sequence[View], wait: float) -> None:
        """Ask a machine for news of its ranks until they have ended (in a thread of its own)."""
        target = views[0].target
        cursors: dict[str, Any] = {
            view.target.rank_dir: {
                "phase": "",
                "frozen": False,
                "log": self._log_path(view).stat().st_size,
                "progress": self._progress_path(view).stat().st_size,
            }
            for view in views
        }
        waiting = {view.target.rank_dir: view for view in views}
        interval = 0.0
        while waiting and not self._over.is_set():
            asked = {rank_dir: cursors[rank_dir] for rank_dir in waiting}
            for view in waiting.values():
                view.asked = time.monotonic()
            try:
                told = self._look(target, asked, wait, interval)
            except Exception as error:  # whatever it is: a thread that ends is waited for for ever
                for view in waiting.values():
                    view.asked = None
                    self._news.put((view, error))
                self._over.wait(_BACKOFF)
                continue
            interval = self._interval
            for rank_dir, news in told.items():
                cursors[rank_dir] = news["cursor"]
                waiting[rank_dir].asked = None
                self._news.put((waiting[rank_dir], news))
                final = news["state"]["phase"] in records.FINAL_PHASES
                if not news["more"] and (wait == 0 or final):
                    del waiting[rank_dir]

    def _take(self, view: View, news: dict[str, Any] | Exception, events: TextIO) -> None:
        if isinstance(news, Exception):
            view.silent_since = view.silent_since or time.monotonic()
            view.trouble = str(news) or type(news).__name__
            return
        view.silent_since, view.trouble = None, ""
        for path, text in (
            (self._log_path(view), news["log"]),
            (self._progress_path(view), news["progress"]),
        ):
            if text:
                with path.open("ab") as stream:
                    stream.write(text.encode("utf-8", "surrogateescape"))
        view.add_log(news["log"].encode("utf-8", "replace").decode())
        self._add_progress(view, news, events)
        view.state, view.age = news["state"], news["age"]
        if view.state.get("attempt", view.target.attempt) != view.target.attempt:
            view.state = {"phase": host_ranks.ABSENT}  # what an earlier attempt has left
        view.offset = time.time() - news["now"]
        if not view.state.get("frozen"):
            view.frozen_since = None
        elif view.frozen_since is None:
            view.frozen_since = time.monotonic()
        view.drained, view.answered = not news["more"], True
        if view.phase == host_ranks.ABSENT:
            return
        event = {
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
        events.write(json.dumps(event, sort_keys=True) + "\n")
        events.flush()
        self._tell(view)

    def _add_progress(self, view: View, news: dict[str, Any], events: TextIO) -> None:
        """Take new progress records, and tell which rank keeps the others waiting."""
        found = records.parse_progress(news["progress"])
        view.add_progress(found)
        rank = (view.target.task, view.target.host)
        for record in found:
            self._stragglers.add(*rank, record, None)
        self._stragglers.add(*rank, None, news.get("load"))
        told = self._stragglers.news()
        if told is not None:
            self._say(told.text)
            line = {"t": round(time.time(), 3), "straggler": told.event}
            events.write(json.dumps(line, sort_keys=True) + "\n")
            events.flush()

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
        # The first to answer need not be the first to have ended.
        silent = [view for view in self.views if not (view.answered or view.trouble)]
        if silent and now - self._began < WAIT:
            return None
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
                view.state = dict(view.state, phase=records.FAILED)
                view.trouble = (
                    f"did not answer for {self._unreachable_timeout:g} s "
                    f"(train_job_unreachable_timeout){': ' if view.trouble else ''}{view.trouble}"
                )
                return self._blame(view, now, causes.UNREACHABLE, view.trouble)
            if view.frozen_since is not None and now - view.frozen_since > FROZEN_LIMIT:
                reason = f"was stopped for {FROZEN_LIMIT:g} s by a signal or a debugger"
                return self._blame(view, now, causes.FROZEN, reason)
            if view.phase == host_ranks.ABSENT and view.target.start_error:
                view.trouble = f"could not be started: {view.target.start_error}"
                return self._blame(view, now, causes.NOT_STARTED, view.trouble)
            if view.phase == host_ranks.ABSENT and now - self._began > self._start_timeout:
                view.trouble = (
                    f"did not start within {self._start_timeout:g} s (train_job_start_timeout)"
                )
                return self._blame(view, now, causes.NOT_STARTED, view.trouble)
        return None

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
        return f"does not answer: {view.trouble}" if view.trouble else ""
