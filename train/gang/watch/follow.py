"""Follows all ranks of a job at once until it is decided how the job ended.

``polling`` requests updates and keeps copies of files, ``journal`` and ``notices`` record and show
them, ``reachability`` tracks the hosts that this machine cannot reach, and ``verdict`` decides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from train.gang.job_records import EVENTS_FILE
from train.gang.watch.activity import Activity
from train.gang.watch.diagnosis import Peers, Probe
from train.gang.watch.journal import Journal
from train.gang.watch.missing_hosts import Growth
from train.gang.watch.notices import Notices
from train.gang.watch.outcome import GangOutcome, grown
from train.gang.watch.polling import Leave, Limits, Poll, Ranks, holes_of, leave_nothing
from train.gang.watch.reachability import Reachability
from train.gang.watch.stragglers import Stragglers
from train.gang.watch.verdict import Verdict
from train.gang.watch.views import WAIT, Target, View, views_in_training
from train.host import progress_records, records
from train.host.records import ABSENT, Update

#: Bytes to read at the end of a log and of progress when a watch continues another one.
_LOG_TAIL, _PROGRESS_TAIL = 1 << 16, 1 << 20
#: Fields of a view that the copies of a rank's files do not contain.
_OF_ENDED = ("state", "offset", "last_update_at")
#: Seconds between two comparisons of all ranks' paces.
_COMPARE_S = 1.0


class FollowedGang(Ranks):
    """All ranks of a job. Existing copies of their files in ``run_dir`` are continued.

    Without ``peers``, connections between ranks are not checked. Without ``metrics_dir``, no file
    for Prometheus is written.
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
        leave: Leave = leave_nothing,
    ) -> None:
        # Two watches of one job would both append to its logs.
        busy = f"another process is already following this job: see {run_dir / EVENTS_FILE}"
        super().__init__(targets, run_dir, poll, limits, busy, leave)
        self.run_dir, self._say_fetch = run_dir, say
        self._training = views_in_training(self.views)
        self._activity = {view: Activity() for view in self.views}
        self._continue()
        self._journal = Journal(run_dir, say, metrics_dir)
        is_new = not any(view.lines for view in self.views)
        self._notices = Notices(self.views, self._journal, is_new)
        backoff = self.longest_backoff
        self._reachability = Reachability(self.views, limits, self._journal, backoff)
        self._verdict = Verdict(self.views, limits, peers, probe, self._journal, self._activity)
        hosts = {view.target.task: view.target.host for view in self._training}
        self._stragglers = Stragglers(hosts, limits.straggler_factor)
        self._compare_at = 0.0

    def _continue(self) -> None:
        """Read the files of an earlier watch."""
        for view, files in self._files.items():
            view.add_log(files["log"].tail(_LOG_TAIL))
            view.add_progress(
                progress_records.parse_progress(files["progress"].tail(_PROGRESS_TAIL))
            )
            view.lines = files["progress"].lines()

    def follow(self, growth: Growth | None = None) -> GangOutcome:
        """Follow the ranks until the attempt is over, or until the job should grow.

        While ranks train, the loss of a non-training task ends the job, unless it is a worker that
        training can continue without. Once training is done, failures of non-training tasks do not
        count. Tasks that end by themselves, and evaluators at work, then have
        ``non_training_exit_timeout`` seconds to end.
        """
        try:
            return self._run(lambda: self._judge(time.monotonic(), growth), wait=WAIT)
        finally:
            self._journal.write_late(float("inf"))
            if growth is not None:
                growth.close()

    def ended_ranks(self) -> dict[str, dict[str, Any]]:
        """Return fields of the views of ranks that have ended and are fetched, for ``drain``."""
        return {
            view.target.task: {name: getattr(view, name) for name in _OF_ENDED}
            for view in self.views
            if view.final and view.drained and not (view.error or view.unsaved)
        }

    def drain(
        self,
        say: Callable[[str], None] | None = None,
        ended: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Fetch all remaining data from the hosts, without waiting.

        Args:
            say: shows the progress.
            ended: what ``ended_ranks`` returned at the end of the watch, because the hosts of these
                ranks are not asked again.
        """
        self._say_fetch = say or self._journal.say
        for view in self.views:
            for name, value in (ended or {}).get(view.target.task, {}).items():
                setattr(view, name, value)
                view.drained = True
        began = time.monotonic()

        def done() -> bool | None:
            self._notices.fetching(time.monotonic(), self.views, self._say_fetch)
            now, limit = time.monotonic(), self._limits.unreachable_timeout
            # While some hosts answer, the others may only be slow, as on a busy network.
            newest = max((v.last_update_at or began for v in self.views), default=began)
            none_answers = now - newest > limit
            fates = (
                v.drained or v.error or (none_answers and v.unresponsive_for(now) > limit)
                for v in self.views
            )
            return all(fates) or None

        if not all(view.drained for view in self.views):
            self._run(done, wait=0.0)
        self._compare()
        for view in self.views:
            if not view.last_update_at:  # its state is unknown, and the job continues without it
                view.state = {"phase": records.FAILED}
                view.error = view.error or "is unreachable"

    def _take(self, view: View, update: Update | Exception, unsaved: str) -> None:
        phase, holes = view.phase, holes_of(view.state)
        super()._take(view, update, unsaved)
        if isinstance(update, Exception):
            return
        self._reachability.answered(view)
        if unsaved:
            text = f"{unsaved}; the job continues, and `attach` fetches the rest"
            self._journal.notice("disk", text, once="")
        self._notices.left_out(view, phase, holes)
        view.add_log(update["log"], update.get("last", ""))
        self._add_progress(view, update)
        text = update["log"] + update["progress"]
        self._activity[view].add(text, update["load"], time.monotonic())
        view.offset = time.time() - update["now"]
        self._notices.alone(view)
        self._notices.at_risk(view)
        self._notices.lingering(view)
        if not view.state.get("frozen"):
            view.frozen_since = None
        elif view.frozen_since is None:
            view.frozen_since = view.last_update_at
        if view.phase == ABSENT:
            return
        self._journal.add_update(view, phase, update["age"])
        without = view.phase == records.FAILED and self._verdict.can_do_without(view)
        self._journal.describe(view, "; the training continues without it" if without else "")

    def _add_progress(self, view: View, update: Update) -> None:
        """Process a rank's new progress records and the load of its host."""
        task, host = view.target.task, view.target.host
        found, wrong = progress_records.read_progress(update["progress"])
        if wrong:
            place, why = wrong[0]
            text = (
                f"{task} ({host}): ignoring line {view.lines + place + 1} of the rank's "
                f"progress: {why}; later lines with errors are ignored without notice"
            )
            self._journal.notice("progress", text, view, once=task)
        self._journal.add_load(task, update)
        view.lines += update["progress"].count("\n")
        before = view.record.get("step")
        view.add_progress(found)
        self._notices.resumed(view, found)
        if view.record.get("step") != before:
            view.stepped = time.monotonic()
        try:
            if not view.target.non_training:
                for record in found:
                    self._stragglers.add_record(task, record)
                self._stragglers.add_reading(task, update["load"])
        except Exception as error:
            self._cannot_compare(error)

    def _compare(self) -> None:
        """Report any rank that slows down the others."""
        try:
            slow = self._stragglers.finding()
        except Exception as error:
            self._cannot_compare(error)
            return
        if slow is not None:
            self._journal.say(slow.text)
            self._journal.write(straggler=asdict(slow))

    def _cannot_compare(self, error: Exception) -> None:
        # The job must not depend on a host's load reports.
        text = f"the paces of the ranks could not be compared: {error!r}"
        self._journal.notice("load", text, once="")

    def _judge(self, now: float, growth: Growth | None) -> GangOutcome | None:
        """Return how the attempt ends, or None if that is not decided yet.

        Show the notices that are due.
        """
        if now >= self._compare_at:
            self._compare_at = now + _COMPARE_S
            self._compare()
        self._reachability.check(now)
        self._notices.missing_chief()
        self._journal.write_metrics(self.views, now)
        self._journal.write_late(now)
        if all(view.final for view in self._training):
            self._notices.fetching(now, self._training, self._say_fetch)
        # The first host to answer need not have the first rank that ended.
        if now - self._began < WAIT and not all(v.last_update_at or v.error for v in self.views):
            return None
        if not self._reachability.is_settled(now):
            return None
        ended = self._verdict.reach(now, self._reachability.cut_since is not None)
        if ended is not None:
            self._compare()
        is_whole = all(view.phase == records.RUNNING for view in self._training)
        if ended is None and is_whole and growth is not None:
            back = growth.returned(now, self._training)
            return grown(back) if back else None
        return ended
