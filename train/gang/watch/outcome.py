"""Describes how a job ended, and finds the rank that was first at fault."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from train.gang import cause_names, suggestions
from train.gang.job_records import ResultRecord
from train.gang.login_failures import names_of
from train.gang.watch import causes, doubts
from train.gang.watch.diagnosis import PathBetween, cut_off, each_other, how_cut_off
from train.gang.watch.views import View, is_secondary, views_in_training
from train.host import end_causes, metadata, preemption, rank_files, records

#: Seconds that a rank may stay stopped by a signal or a debugger.
FROZEN_LIMIT = 20.0
#: Maximum seconds from the end of a rank that lost another one to the end of the lost rank. A
#: process closes its connections before it ends.
_LEAVING = 5.0
#: The beginning of the outcome of a gang that is stopped to continue with more hosts, and of the
#: reason for which its ranks are stopped.
_GROWS = "the job grows: "
_STOPPED_TO_GROW = f"was stopped because {_GROWS}"
#: The same for a gang that leaves a host that was preempted.
_LEAVES = "the job leaves "
STOPPED_TO_LEAVE = f"was stopped because {_LEAVES}"
#: Seconds of a notice whose length is unknown, and the longest notice of a host that is certain to
#: be reclaimed at its end.
_USUAL_NOTICE, _LONGEST_NOTICE = 30.0, 120.0
#: Sources of notices of preemption.
_NOTICES = {
    preemption.FILE: f"notice by the file {rank_files.PREEMPT_FILE}",
    preemption.SIGNAL: "notice by SIGUSR1",
    metadata.GCP: "notice from Google Cloud",
    metadata.AWS: "notice from AWS",
    metadata.AZURE: "notice from Azure",
    metadata.URL: "notice from the server in train_job_preemption",
}
#: Messages of TensorFlow and JAX about a lost rank, and of train/worker.py about one that does not
#: answer.
_NAMED_AS_LOST = re.compile(
    r"TrainingError: (?:lost contact with (?P<lost>\w+-[0-9]+(?:, \w+-[0-9]+)*):"
    r"|(?P<mute>\w+-[0-9]+) \(\S+\) was unresponsive)"
    r"|(?:remote target|heartbeat\w*\)?:?|timed? ?out|task) /job:(?P<job>\w+)/(?:replica:[0-9]+/)?"
    r"task:(?P<index>[0-9]+)"
    r"|\bTask (?P<process>[0-9]+) heartbeat timeout"
)


@dataclass(frozen=True)
class GangOutcome:
    """The outcome of a job."""

    state: str  # ``completed``, ``failed`` or ``stopped``
    root_cause: str | None  # the task first at fault, or None if there is none
    message: str  # for people: the task, what happened, the remedy and the last lines
    cause: str = ""  # a key of causes.CAUSES if failed, GROWN or PREEMPTED; otherwise empty
    step: int | None = None  # the last step of the root cause, or else of any rank
    unreachable: Sequence[str] = field(default_factory=list)  # hosts that do not answer
    doubts: Sequence[str] = field(default_factory=list)  # doubts that arose while the job ran
    grace: float | None = None  # seconds that the ranks have to end, if it is not the usual time


def grown(hosts: Sequence[str]) -> GangOutcome:
    """Return the outcome of an attempt that ends so that ``hosts`` can join again."""
    message = f"{_GROWS}{names_of(hosts)} can join again"
    return GangOutcome("stopped", None, message, cause=cause_names.GROWN)


def preempted(views: Sequence[View]) -> GangOutcome:
    """Return the outcome of an attempt that ends because the hosts of ``views`` got notices.

    The ranks then have the time until the first of the hosts is reclaimed.
    """
    first = min(views, key=lambda view: view.state["preemption"]["at"] + view.offset)
    found = first.state["preemption"]
    hosts = list(dict.fromkeys(view.target.host for view in views))
    why = _NOTICES.get(found["source"], "notice of preemption")
    if "seconds" in found:
        why += f", {found['seconds']:.0f} s in advance"
    now = time.time()
    left = (preemption.seconds_left(view.state["preemption"], now - view.offset) for view in views)
    grace = min((seconds for seconds in left if seconds is not None), default=None)
    message = f"{_LEAVES}{names_of(hosts)}: {why}"
    return GangOutcome("stopped", None, message, cause=end_causes.PREEMPTED, grace=grace)


def leaving(views: Sequence[View]) -> dict[str, dict[str, Any]]:
    """Return, for each host that got a notice of preemption, when it can be replaced.

    ``until`` is the time of the control node at which the host will have ended. If it
    ``may_be_off`` before, it can be replaced once it no longer answers. As a cloud still lists an
    instance that is shutting down, this applies only to notices of unknown or great length.
    """
    found = {}
    for view in views:
        if noticed := view.state.get("preemption"):
            seconds = noticed.get("seconds")
            length = _USUAL_NOTICE if seconds is None else min(seconds, _LONGEST_NOTICE)
            found[view.target.host] = {
                "until": noticed["at"] + view.offset + length,
                "may_be_off": seconds is None or seconds > _LONGEST_NOTICE,
            }
    return found


def stopped_for(reason: str) -> GangOutcome:
    """Return the outcome of a job whose training ranks were all stopped for the same reason."""
    if reason.startswith(STOPPED_TO_LEAVE):
        message = _LEAVES + reason[len(STOPPED_TO_LEAVE) :]
        return GangOutcome("stopped", None, message, cause=end_causes.PREEMPTED)
    if reason.startswith(_STOPPED_TO_GROW):  # by a watch that ended before it wrote the result
        message = _GROWS + reason[len(_STOPPED_TO_GROW) :]
        return GangOutcome("stopped", None, message, cause=cause_names.GROWN)
    return GangOutcome("stopped", None, f"the job {reason}")


def named_by(view: View) -> set[str]:
    """Return the other ranks that a failed rank names as lost."""
    named: set[str] = set()
    lines = [view.state.get("reason") or "", *view.tail]
    for match in _NAMED_AS_LOST.finditer("\n".join(lines)):
        of_jax = match["process"] or (match["job"] == "jax_worker" and match["index"])
        one = match["mute"] or f"{match['job']}-{match['index']}"
        one = f"worker-{of_jax}" if of_jax else one
        named.update(match["lost"].split(", ") if match["lost"] else [one])
    return named - {view.target.task}


def stuck(views: Sequence[View], now: float) -> View | None:
    """Return a rank that is frozen or, if there is none, whose host is unresponsive; or None.

    The rank has not ended. Of several such ranks, return the one that most failed ranks name as
    lost.
    """
    named = Counter(task for v in views if v.phase == records.FAILED for task in named_by(v))
    others = [view for view in views if not view.final]
    for suspects in (
        [view for view in others if view.state.get("frozen")],
        [view for view in others if view.is_unresponsive(now)],
    ):
        if suspects:
            return max(suspects, key=lambda view: named[view.target.task])
    return None


@dataclass(frozen=True)
class LostContact:
    """The rank that lost contact with the others, or None if it may be either of two."""

    view: View | None
    reason: str  # text that follows the rank's name, or a sentence about both ranks
    one_word: bool = False  # whether the report of one rank is the only evidence


def who_lost_contact(
    views: Sequence[View], failed: Sequence[View], tried: Set[PathBetween], broken: Set[PathBetween]
) -> LostContact | None:
    """Return the rank at fault if all ``failed`` ranks report only that they lost another one.

    Return None if they name none. ``tried`` are the paths that hosts have checked, ``broken`` those
    on which connections failed. One rank's claim about another is not evidence, because the
    claiming rank may itself be cut off.
    """
    by_task = {view.target.task: view for view in views}
    if broken:
        task = cut_off(broken)
        if task is None:
            return LostContact(None, each_other(broken))
        return LostContact(by_task[task], how_cut_off(broken, task))
    for words in (_words(by_task, failed, living=True), _words(by_task, failed, living=False)):
        most = words.most_common(2)
        if most and most[0][1] > 1 and (len(most) == 1 or most[0][1] > most[1][1]):
            return LostContact(by_task[most[0][0]], "could not be reached by the others")
    accusers = [view for view in failed if named_by(view) & by_task.keys()]
    if not accusers:
        return None
    accuser = first_of(accusers)
    accused = by_task[min(named_by(accuser) & by_task.keys())]
    return _one_word(accuser, accused, tried)


def _words(by_task: Mapping[str, View], failed: Sequence[View], *, living: bool) -> Counter[str]:
    """Count, for each rank, the failed ranks that name it as lost.

    With ``living``, count only failed ranks that ended before the named rank did. The others may
    have lost it only because it had ended.
    """
    accused: Counter[str] = Counter()
    for view in failed:
        for task in named_by(view) & by_task.keys():
            named = by_task[task]
            if not living or not named.final or named.ended_at > view.ended_at:
                accused[task] += 1
    return accused


def _one_word(accuser: View, accused: View, tried: Set[PathBetween]) -> LostContact:
    """Judge one rank's claim that it lost another one. All ``tried`` paths were open."""
    names = accuser.target.task, accused.target.task
    by = sorted({source for source, to in tried if to == names[1]} - {names[0]})
    if by:
        others = ", ".join(by)
        reason = f"lost contact with {names[1]}, which {others} could still reach"
        return LostContact(accuser, reason, one_word=True)
    fell_first = accused.final and accused.ended_at < accuser.ended_at
    if fell_first and names[0] not in named_by(accused):
        return LostContact(accused, "could not be reached by the others")
    if accused.final or (names in tried):
        reason = f"{' and '.join(sorted(names))} lost contact with each other"
        return LostContact(None, reason, one_word=True)
    return LostContact(accused, "is unreachable", one_word=True)


def rank_that_left(views: Sequence[View], failed: Sequence[View]) -> View | None:
    """Return the rank that completed first while others needed it, or None.

    All ``failed`` ranks report only that they lost another rank.
    """
    fallen = [view for view in failed if not view.target.non_training]
    if not fallen:
        return None
    until = first_of(fallen).ended_at + _LEAVING
    done = [view for view in views if view.phase == records.COMPLETED]
    left = [view for view in done if not view.target.non_training and view.ended_at <= until]
    return min(left, key=lambda view: view.ended_at, default=None)


def how_it_left(view: View) -> str:
    """Describe how a rank left while others needed it. The text follows the rank's name."""
    for name in ("step", "epoch"):
        value, total = view.record.get(name), view.record.get(f"{name}s")
        if isinstance(value, int) and isinstance(total, int):
            trained = "kept training" if value < total else "continued"
            return f"left after {name} {value} of {total} while the others {trained}"
    step = view.record.get("step")
    return (
        f"left after step {step}" if step is not None else "left"
    ) + " while the others continued"


def first_of(failed: Sequence[View]) -> View:
    """Return the rank that ended first, according to the corrected clocks of the hosts."""
    return min(failed, key=lambda view: view.ended_at)


def failed_at(
    views: Sequence[View],
    view: View,
    *,
    now: float,
    cause: str = "",
    reason: str = "",
    reported_by: View | None = None,
) -> GangOutcome:
    """Return the outcome of a job in which ``view`` was first at fault.

    ``cause`` and ``reason`` default to those of the rank's state or, without any, to an unreachable
    host. ``reported_by`` is the rank whose end shows the fault.
    """
    cause = cause or view.state.get("cause") or cause_names.UNREACHABLE
    reason = reason or view.state.get("reason") or view.error or "is unreachable"
    # Its own step if it has ended by itself, because ranks report steps at different times.
    step = view.state.get("step")
    if step is None:
        step = max((v.record["step"] for v in views if "step" in v.record), default=None)
    script, framework = view.target.script, view.target.framework
    failure = causes.Failure(
        cause, view.target.task, view.state.get("exit_code"), reason, step, script, framework
    )
    lines = [f"{view.target.task} on {view.target.host} {reason}{_reported(reported_by)}"]
    waited = _waited(views, view)
    where = f"the last step reported was {step}" if step is not None else "no step was reported"
    lines.append(where + (f"; the others waited {waited:.1f} s" if waited > 0 else ""))
    if failure.remedy:
        lines.append(_what_to_do(failure, view.target.job))
    shown = view.last_words(cause) if reported_by is None else ()
    if shown:
        lines.append("its last lines:\n  " + "\n  ".join(shown))
    return GangOutcome(
        "failed",
        view.target.task,
        "\n".join(lines),
        cause=cause,
        step=step,
        unreachable=sorted({v.target.host for v in views if v.is_unresponsive(now)}),
    )


def neither_at_fault(
    views: Sequence[View], reason: str, *, now: float, reported_by: View | None = None
) -> GangOutcome:
    """Return the outcome of a job in which two ranks lost each other and either may be at fault.

    ``reason`` names both ranks.
    """
    for view in views:
        named = f"{view.target.task} on {view.target.host}"
        reason = re.sub(rf"\b{re.escape(view.target.task)}\b(?! on )", named, reason)
    step = max((v.record["step"] for v in views if "step" in v.record), default=None)
    failure = causes.Failure(cause_names.NETWORK, None, None, reason, step)
    where = f"the last step reported was {step}" if step is not None else "no step was reported"
    lines = [reason + _reported(reported_by), where, _what_to_do(failure, views[0].target.job)]
    lost = sorted({v.target.host for v in views if v.is_unresponsive(now)})
    return GangOutcome(
        "failed", None, "\n".join(lines), cause=cause_names.NETWORK, step=step, unreachable=lost
    )


def _what_to_do(failure: causes.Failure, job: str) -> str:
    return f"what to do: {suggestions.filled(failure.remedy, job=job)}"


def _reported(by: View | None) -> str:
    """Describe how ``by`` ended, whose error points to the faulty rank; empty if ``by`` is None."""
    return f": {by.target.task} on {by.target.host} {by.state.get('reason')}" if by else ""


def _waited(views: Sequence[View], first: View) -> float:
    """Return the seconds from a rank's end until the last rank failed due to it; 0 if unknown."""
    fallen = [view for view in views if view is not first and view.phase == records.FAILED]
    ended = [view.ended_at for view in fallen if is_secondary(view)]
    return max(ended, default=0.0) - first.ended_at if "ended_at" in first.state else 0.0


def different_weights(training: Sequence[View]) -> GangOutcome | None:
    """Return the outcome if ranks ended with different weights, or None if they are equal."""
    hashes: dict[str, list[str]] = {}
    for view in training:
        if view.weights_sha256:
            hashes.setdefault(view.weights_sha256, []).append(view.target.task)
    if len(hashes) < 2:
        return None
    named = "; ".join(f"{value[:12]} on {', '.join(t)}" for value, t in hashes.items())
    reason = f"the ranks ended with different weights: {named}"
    return GangOutcome("failed", None, reason, cause=cause_names.WEIGHTS)


def result_of(job: str, outcome: GangOutcome, views: Sequence[View], attempts: int) -> ResultRecord:
    """Return the contents of ``result.json`` (docs/formats.md), with the chief's final metrics."""
    training = views_in_training(views)
    metrics = next((view.final_metrics for view in training if view.final_metrics), {})
    found = doubts.find(views) if outcome.state == records.COMPLETED else []
    return {
        "version": records.FORMAT_VERSION,
        "job": job,
        "state": outcome.state,
        "attempts": attempts,
        "root_cause": outcome.root_cause,
        "cause": outcome.cause or None,
        "step": outcome.step,
        "message": outcome.message,
        "doubts": [*outcome.doubts, *found],
        "notes": doubts.notes(views) if outcome.state == records.COMPLETED else [],
        "strict": False,
        "metrics": metrics,
        "ranks": [view.summary() for view in views],
    }
