"""Decides how a job ended, from its ranks' states and logs, and from connections between hosts.

Missing information alone never ends a job. A limit set by the user must pass, a rank must end, or
other hosts of the job must confirm that one is lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from train.gang import cause_names
from train.gang.watch import causes, doubts
from train.gang.watch.activity import Activity
from train.gang.watch.diagnosis import Diagnosis, PathBetween, PeerFinding, Peers, Probe
from train.gang.watch.journal import Journal
from train.gang.watch.outcome import (
    FROZEN_LIMIT,
    STOPPED_TO_LEAVE,
    GangOutcome,
    different_weights,
    failed_at,
    first_of,
    how_it_left,
    neither_at_fault,
    preempted,
    rank_that_left,
    stopped_for,
    stuck,
    who_lost_contact,
)
from train.gang.watch.polling import Limits
from train.gang.watch.views import View, is_secondary, lost_a_connection, views_in_training
from train.host import frameworks, records
from train.host.end_causes import PREEMPTED, START_TIMEOUT
from train.host.probe import OPEN, REFUSED
from train.host.records import ABSENT

#: Seconds to wait for the rank that was first at fault, after another rank failed because of it.
ROOT_CAUSE_WAIT = 3.0
#: The same if the only evidence is one rank's report about another and more ranks are running.
WORDS_WAIT = 20.0
#: Seconds, in addition to the interval, until a rank's last records arrive here.
NOTICE = 2.0
#: Seconds without a sign of work after which an evaluator counts as done once training has ended.
QUIET = 10.0
#: Seconds that all ranks must be up without a new step before their connections are checked, the
#: pause before the next check, and the maximum number of checks.
PROBE_AFTER = 8.0
PROBE_AGAIN = 2.0
PROBES = 6
#: What a rank has not done yet, and what the others wait for.
_START_OF = {
    frameworks.TENSORFLOW: ("opened its port", "creates its strategy"),
    frameworks.JAX: ("joined the others", "calls jax.distributed.initialize"),
    frameworks.TORCH: ("joined the others", "calls torch.distributed.init_process_group"),
}


class Verdict:
    """Decides how a job ended. ``activity`` records when each rank was last seen at work.

    Without ``peers``, connections between ranks are not checked.
    """

    def __init__(
        self,
        views: Sequence[View],
        limits: Limits,
        peers: Peers,
        probe: Probe,
        journal: Journal,
        activity: Mapping[View, Activity],
    ) -> None:
        self.views, self._limits, self._journal = views, limits, journal
        self._peers, self._probe, self._activity = peers, probe, activity
        self._training = views_in_training(views)
        self._evaluators = [v for v in views if v.target.task.startswith("evaluator-")]
        self._began = time.monotonic()
        self._is_cut = False
        self._suspect: tuple[View, float] | None = None
        self._trained_at: float | None = None
        self._ended: tuple[int, float] = (0, 0.0)  # ranks of a stopped job, and when that changed
        self._alone_at: float | None = None  # when a rank was first seen to have trained alone
        self._peer_diagnoses: dict[str, Diagnosis] = {}
        self._fallen: Diagnosis | None = None
        self._diagnosis: Diagnosis | None = None
        self._last: Diagnosis | None = None  # the last finished diagnosis since the last step
        self._probe_at: float | None = None
        self._probed = 0
        self._steps: list[int | None] = []
        self._found: PeerFinding | None = None

    def reach(self, now: float, is_cut: bool) -> GangOutcome | None:
        """Return how the job ended, or None if that is not decided yet.

        Set ``is_cut`` if there is no connection to any host.
        """
        self._is_cut = is_cut
        training = self._training
        if all(view.phase == records.COMPLETED for view in training):
            return self._end(training, now) if all(view.drained for view in training) else None
        needed = [view for view in self.views if not self.can_do_without(view)]
        failed = [view for view in needed if view.phase == records.FAILED]
        stopped = [view for view in training if view.phase == records.STOPPED]
        if noticed := self._preempted(needed, failed):
            return preempted(noticed)
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

    def _preempted(self, needed: Sequence[View], failed: Sequence[View]) -> list[View]:
        """Return the ranks whose hosts will be reclaimed, if the attempt ends because of that.

        It ends because of something else if the training is done, if a user stopped the job, or if
        a rank failed by itself.
        """
        noticed = [view for view in needed if view.state.get("preemption")]
        training = [view for view in self._training if view.phase != records.COMPLETED]
        hosts = {view.target.host for view in noticed}
        by_users = any(map(_was_stopped_by_user, self.views))
        if not noticed or not training or by_users:
            return []
        by_itself = (
            view
            for view in failed
            if not self._is_secondary(view)
            and not (view.target.host in hosts and causes.failure_in(view.state).from_outside)
        )
        return [] if any(by_itself) else noticed

    def _stop(self, stopped: Sequence[View], now: float) -> GangOutcome | None:
        """Return the outcome of a stopped job, once all reachable ranks have ended.

        Many ranks end one after the other, so that the last one may end long after the first one.
        """
        ended = sum(view.final for view in self.views)
        if ended != self._ended[0]:
            self._ended = (ended, now)
        late = [v for v in self.views if not v.final and not v.is_unresponsive(now)]
        if late and now - self._ended[1] <= self._limits.grace + NOTICE:
            return None
        reasons = list(dict.fromkeys(view.state.get("reason") or "was stopped" for view in stopped))
        if len(reasons) == 1 and all(view.phase == records.STOPPED for view in self._training):
            return stopped_for(reasons[0])
        named = (
            f"{view.target.task} {view.state.get('reason') or 'was stopped'}" for view in stopped
        )
        return GangOutcome("stopped", None, "; ".join(named))

    def _first_failure(self, failed: Sequence[View], now: float) -> GangOutcome | None:
        """Return the outcome after ranks have failed, or None until the root cause is certain."""
        if self._suspect is None or self._suspect[0] not in failed:
            self._suspect = (failed[0], now)
        first, since = self._suspect
        primary = [view for view in failed if not self._is_secondary(view)]
        if primary:
            # If several are at fault, the first to end counts.
            first = first_of(primary)
        # Records that show that training can continue without a rank may still arrive.
        expendable = first.target.expendable and first.was_running
        pause = ROOT_CAUSE_WAIT + (self._limits.interval if expendable else 0.0)
        if primary:
            sure = (first.drained and not expendable) or now - since > pause
            return failed_at(self.views, first, now=now) if sure else None
        if (alone := self._completed_alone()) and now - since > pause:
            return self._did_not_join(alone, now)
        # One rank's claim about another is not evidence, so check the connections of all ranks.
        ranks = [view for view in self.views if view.target.task in self._peers]
        if self._fallen is None:
            self._fallen = self._diagnose(view for view in ranks if not view.error)
        if not self._fallen.done:
            pause = max(pause, 2 * ROOT_CAUSE_WAIT)
        began = any(view.record.get("step") for view in ranks)
        if self._fallen.done and not began and (found := self._fallen.finding()):
            return self._found_at(found, now)
        return self._lost_by_all(failed, now, now - since) if now - since > pause else None

    def _is_secondary(self, view: View) -> bool:
        return len(self.views) > 1 and is_secondary(view)

    def _completed_alone(self) -> View | None:
        """Return a rank that has finished its training without the others, or None."""
        ended = [view for view in self._training if view.phase == records.COMPLETED]
        return next((view for view in ended if view.state.get("alone")), None)

    def _waited_for(self, now: float) -> View | None:
        """Return a rank that has completed alone while the others still wait for it, or None.

        The others have made no step, and have shown no sign of work for ``start_timeout`` seconds.
        """
        alone = self._completed_alone()
        waiting = [view for view in self._training if not view.final]
        if alone is None or not waiting or any(view.record.get("step") for view in waiting):
            self._alone_at = None
            return None
        self._alone_at = now if self._alone_at is None else self._alone_at
        last = max(self._alone_at, *(self._activity[view].at for view in waiting))
        return alone if now - last > self._limits.start_timeout else None

    def _did_not_join(self, view: View, now: float) -> GangOutcome:
        """Return the outcome of a job in which ``view`` trained alone while the others waited."""
        others = [other for other in self._training if other.phase != records.COMPLETED]
        named = ", ".join(other.target.task for other in others)
        reason = f"{doubts.TRAINED_ALONE}; {named} waited for this rank"
        return failed_at(self.views, view, now=now, cause=cause_names.ALONE, reason=reason)

    def _overdue(self, view: View, now: float) -> PeerFinding | None:
        """Return the reason why a rank that has not failed keeps the job waiting, or None."""
        limits, task = self._limits, view.target.task
        if view.unresponsive_for(now) <= limits.unreachable_timeout:
            self._peer_diagnoses.pop(task, None)
        elif evidence := self._evidence_of_loss(view, now):
            limit = f"{limits.unreachable_timeout:g} s (train_job_unreachable_timeout)"
            because = f": {view.error}" if view.error else ""
            reason = f"was unreachable for {limit}{because}; {evidence}"
            return PeerFinding(task, cause_names.UNREACHABLE, reason)
        if view.frozen_since is not None and now - view.frozen_since > FROZEN_LIMIT:
            reason = f"was stopped for {FROZEN_LIMIT:g} s by a signal or a debugger"
            return PeerFinding(task, cause_names.FROZEN, reason)
        if view.phase != ABSENT:
            return None
        if view.target.start_error and not self._is_cut:
            view.error = f"could not be started: {view.target.start_error}"
        elif view.last_update_at and now - self._began > limits.start_timeout:
            view.error = f"did not start within {limits.start_timeout:g} s"
        else:
            return None
        return PeerFinding(task, cause_names.NOT_STARTED, view.error)

    def _kept_waiting(self, needed: Sequence[View]) -> PeerFinding | None:
        """Show notices about active ranks that have not started for a while.

        If another running rank has waited too long for one of them, return that as a finding.
        """
        clock, limits = time.time(), self._limits
        begun = [(view, view.began_at) for view in needed if view.phase == records.STARTING]
        late = [(v, at) for v, at in begun if at and clock - at > limits.start_timeout + NOTICE]
        for view, at in late:
            start, until = _START_OF.get(view.target.framework, _START_OF[frameworks.TENSORFLOW])
            text = (
                f"{view.target.task} ({view.target.host}) has not {start} for "
                f"{clock - at:.0f} s, but is active: the other ranks wait until it {until} "
                "(train_job_start_timeout sets a limit)"
            )
            self._journal.notice("starting", text, view, once=view.target.task)
        up = [v.running_at for v in needed if v.phase == records.RUNNING and v.running_at]
        limit = limits.start_wait_timeout
        if not (late and up and limit and clock - min(up) > limit):
            return None
        view = min(late, key=lambda one: one[1])[0]
        is_tensorflow = view.target.framework == frameworks.TENSORFLOW
        start = "open its port" if is_tensorflow else "join the others"
        reason = f"did not {start} while others waited for {limit:g} s"
        return PeerFinding(
            view.target.task, START_TIMEOUT, f"{reason} (train_job_start_wait_timeout)"
        )

    def _evidence_of_loss(self, view: View, now: float) -> str:
        """Return evidence that an unreachable host is lost, or an empty string.

        While the steps of synchronous ranks advance, all of them are alive. Otherwise, ask other
        hosts whether they can reach the rank.
        """
        running = [v for v in self.views if v.phase == records.RUNNING]
        others = [v for v in running if v is not view and not v.is_unresponsive(now)]
        stepped = [v.stepped for v in others if not v.target.non_training and v.stepped is not None]
        task = view.target.task
        if not others or (stepped and now - max(stepped) < self._limits.unreachable_timeout):
            self._peer_diagnoses.pop(task, None)
            return ""
        if task not in self._peers:
            return "no other rank is making progress either" if stepped else ""
        diagnosis = self._peer_diagnoses.get(task)
        if diagnosis is None or now - diagnosis.began > PROBE_AFTER:
            self._peer_diagnoses[task] = self._diagnose(others)
            return ""
        reached = diagnosis.reached(task) if diagnosis.done else {}
        # If a host can reach the rank, or no host has tried, ask them again later.
        if not reached or {OPEN, REFUSED} & set(reached.values()):
            return ""
        results = ", ".join(f"{peer}: {how}" for peer, how in reached.items())
        return f"other ranks cannot reach it either ({results})"

    def _unreached(self, now: float) -> PeerFinding | None:
        """If a job makes no steps, make its hosts check their connections, and return a finding.

        Return None until two checks in a row agree. TensorFlow notices nothing if two ranks lose
        each other while both can still reach the first rank.
        """
        ranks = [view for view in self.views if view.target.task in self._peers]
        steps = [view.record.get("step") for view in ranks]
        up = all(view.phase == records.RUNNING and not view.error for view in ranks)
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
        """Make the hosts of some ranks check their connections to the others."""
        return Diagnosis([view.target for view in views], self._peers, self._probe)

    def _found_at(self, found: PeerFinding, now: float) -> GangOutcome:
        if found.task is None:
            return neither_at_fault(self.views, found.reason, now=now)
        view = next(view for view in self.views if view.target.task == found.task)
        return failed_at(self.views, view, now=now, cause=found.cause, reason=found.reason)

    def _lost_by_all(self, failed: Sequence[View], now: float, waited: float) -> GangOutcome | None:
        """Return the outcome if all failed ranks report only that they lost another one.

        Return None while more ranks may report. ``waited`` is the time since the first failure, in
        seconds.
        """
        first = first_of(failed)
        lost = stuck(self.views, now)
        if lost is not None:
            about: Any = {"cause": cause_names.UNREACHABLE, "reason": "is unreachable"}
            if lost.state.get("frozen"):
                frozen = "is stopped by a signal or a debugger"
                about = {"cause": cause_names.FROZEN, "reason": frozen}
            return failed_at(self.views, lost, now=now, **about, reported_by=first)
        # A connection that Python reports may have been to a server outside of the gang.
        unsure = all(map(lost_a_connection, failed))
        left = None if unsure else rank_that_left(self.views, failed)
        if left is not None:
            about = {"cause": cause_names.LEFT, "reason": how_it_left(left), "reported_by": first}
            return failed_at(self.views, left, now=now, **about)
        contact = who_lost_contact(self.views, failed, *self._paths())
        if contact is None:
            tried, broken = self._paths()
            is_open = unsure and tried and not broken
            ended = first.state.get("exit_code") is not None
            cause = cause_names.NETWORK if ended and not is_open else ""
            return failed_at(self.views, first, now=now, cause=cause)
        living = [v for v in self.views if v.target.task in self._peers and not v.final]
        if contact.one_word and len(self._peers) > 2 and living and waited < WORDS_WAIT:
            return None
        lost, reason = contact.view, contact.reason
        if lost is None:
            return neither_at_fault(self.views, reason, now=now, reported_by=first)
        by = first_of([view for view in failed if view is not lost] or failed)
        about = {"cause": cause_names.NETWORK, "reason": reason, "reported_by": by}
        if not lost.final and (lost.error or lost.unresponsive_for(now) > 0):
            about |= {"cause": cause_names.UNREACHABLE, "reason": "is unreachable"}
        return failed_at(self.views, lost, now=now, **about)

    def _paths(self) -> tuple[set[PathBetween], set[PathBetween]]:
        """Return the tried paths between the ranks of a failed job, and the broken ones.

        They were checked at the end of the job or, if all paths were open then, during the last
        pause without steps.
        """
        tried: set[PathBetween] = set()
        for diagnosis in (self._fallen, self._last):
            if diagnosis is not None and diagnosis.broken:
                return diagnosis.tried, diagnosis.broken
            tried |= diagnosis.tried if diagnosis is not None else set()
        return tried, set()

    def _end(self, training: Sequence[View], now: float) -> GangOutcome | None:
        """Return the outcome of a job whose training is done, or None while other tasks may end."""
        self._trained_at = now if self._trained_at is None else self._trained_at
        others = [view for view in self.views if view.target.non_training]
        busy = [view for view in self._evaluators if self._evaluates(view, now)]
        running = [view for view in others if view.may_end or view in busy]
        late = [v for v in running if v.at_work and (v in busy or v not in self._evaluators)]
        # The limit may be shorter than the time after which an evaluator counts as waiting.
        cut_off = [v for v in late if v not in busy or self._evaluates(v, now, seen=True)]
        waited, limit = now - self._trained_at, self._limits.non_training_exit_timeout
        # An evaluator that seems to wait may have just found the last checkpoint.
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
                fate = f"did not end within {limit:g} s (train_job_non_training_exit_timeout)"
            elif view.final:
                fate = str(view.state.get("reason", ""))
            elif view.error:
                fate = f"cannot be reached: {view.error}"
            if fate:
                fates.append(f"{view.target.task} on {view.target.host} {fate}")
            if fate and view in self._evaluators and view.phase != records.STOPPED:
                remedy = (
                    "raise train_job_non_training_exit_timeout"
                    if view in cut_off
                    else f"check the log of {view.target.task}"
                )
                unsure.append(
                    f"{fates[-1]}: the last checkpoint may not have been evaluated; {remedy}"
                )
        message = "; ".join(["the training completed", *fates]) if fates else "all ranks completed"
        return GangOutcome("completed", None, message, doubts=unsure)

    def _evaluates(self, view: View, now: float, seen: bool = False) -> bool:
        """Return whether an evaluator may be at work, even if it writes no records.

        With ``seen``, return whether it has been seen at work recently.
        """
        if view.phase != records.RUNNING or view.error or self._trained_at is None:
            return False
        if view.may_end and view.record.get("phase") == "evaluating":
            return True
        at = self._activity[view].at
        return now - (at if seen else max(at, self._trained_at)) < QUIET

    def can_do_without(self, view: View) -> bool:
        """Return whether training can continue without this rank.

        This is true for a worker with parameter servers that was up, if another such worker remains
        and the training ranks have been up. If these write records, they must also be past their
        beginning.
        """
        if not (view.target.expendable and view.was_running):
            return False
        begun = all(other.was_running and other.at_work for other in self._training)
        others = [other for other in self.views if other.target.expendable and other is not view]
        return begun and any(o.phase not in (records.FAILED, records.STOPPED) for o in others)


def _was_stopped_by_user(view: View) -> bool:
    reason = str(view.state.get("reason") or "")
    is_stopped = view.phase == records.STOPPED and view.state.get("cause") != PREEMPTED
    return is_stopped and not reason.startswith(STOPPED_TO_LEAVE)


def _are_stopped_first(stopped: Sequence[View], failed: Sequence[View]) -> bool:
    """Return whether ranks were stopped first, and all failed ones failed because of that."""
    first = min(view.ended_at for view in stopped)
    return all(is_secondary(view) and view.ended_at >= first for view in failed)
