"""How a gang ended, and which rank was first at fault."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from train.gang.records import Result
from train.gang.watch import causes, doubts
from train.gang.watch.views import View, is_secondary, views_in_training
from train.host import records

#: Seconds that a rank may be stopped by a signal or a debugger.
FROZEN_LIMIT = 20.0
#: How TensorFlow names a rank that it has lost, and train/worker.py one that is unreachable.
_NAMED_AS_LOST = re.compile(
    r"TrainingError: (?:lost contact with (?P<lost>\w+-\d+):"
    r"|(?P<mute>\w+-\d+) \(\S+\) was unresponsive)"
    r"|(?:remote target|heartbeat\w*\)?:?|timed? ?out|task) /job:(?P<job>\w+)/(?:replica:\d+/)?"
    r"task:(?P<index>\d+)"
)


@dataclass(frozen=True)
class Outcome:
    """How the gang stands."""

    state: str  # ``completed``, ``failed`` or ``stopped``
    root_cause: str | None  # the task that was first at fault; None unless failed
    message: str  # for people; names the task, what happened, what to do and its last lines
    cause: str = ""  # a key of causes.CAUSES; empty unless failed
    step: int | None = None  # the last step that it has reported, or else any rank
    unreachable: Sequence[str] = field(default_factory=list)  # hosts that do not answer
    doubts: Sequence[str] = field(default_factory=list)  # what was seen while it ran


def named_as_lost(views: Sequence[View]) -> Counter[str]:
    """Return how many failed ranks name another one as lost, by task."""
    found: Counter[str] = Counter()
    for view in views:
        lines = [view.state.get("reason") or "", *view.tail]
        named = set()
        for match in _NAMED_AS_LOST.finditer("\n".join(lines)):
            named.add(match["lost"] or match["mute"] or f"{match['job']}-{match['index']}")
        found.update(named - {view.target.task})
    return found


def root_cause(views: Sequence[View], failed: Sequence[View], now: float) -> View | None:
    """Return who brought down ranks that only report that they lost another one. The first of these
    that there is: a rank that is stopped, one whose host is unresponsive, one that lives on and is
    named by the others, one that has fallen as they have and is named by them.
    """
    named, first = named_as_lost(failed), named_as_lost([first_of(failed)])
    others = [view for view in views if not view.final]
    for suspects in (
        [view for view in others if view.state.get("frozen")],
        [view for view in others if view.is_unresponsive(now)],
        [view for view in others if named[view.target.task]],
        [view for view in failed if named[view.target.task]],
    ):
        if suspects:
            return max(suspects, key=lambda v: (named[v.target.task], first[v.target.task]))
    return None


def first_of(failed: Sequence[View]) -> View:
    """Return the rank that ended first, by the clocks of the hosts set right."""
    return min(failed, key=lambda view: view.ended_at)


def failed_at(
    views: Sequence[View],
    view: View,
    *,
    now: float,
    cause: str = "",
    reason: str = "",
    reported_by: View | None = None,
) -> Outcome:
    """Return the outcome of a gang in which ``view`` was first at fault, by default for what is in
    its state, or as its host is unreachable; ``reported_by`` is the rank whose end shows it.
    """
    cause = cause or view.state.get("cause") or causes.UNREACHABLE
    reason = reason or view.state.get("reason") or view.trouble or "is unreachable"
    # Its own, where it has ended by itself: ranks report their steps at different times.
    step = view.state.get("step")
    if step is None:
        step = max((v.record["step"] for v in views if "step" in v.record), default=None)
    script = view.target.script
    failure = causes.Failure(
        cause, view.target.task, view.state.get("exit_code"), reason, step, script
    )
    lines = [f"{view.target.task} on {view.target.host} {reason}"]
    if reported_by is not None:
        other = reported_by.target
        lines[0] += f": {other.task} on {other.host} {reported_by.state.get('reason')}"
    waited = _waited(views, view)
    where = f"the last step reported was {step}" if step is not None else "no step was reported"
    lines.append(where + (f"; the others waited {waited:.1f} s" if waited > 0 else ""))
    if failure.remedy:
        lines.append(f"what to do: {failure.remedy}")
    shown = view.last_words(cause) if reported_by is None else ()
    if shown:
        lines.append("its last lines:\n  " + "\n  ".join(shown))
    return Outcome(
        "failed",
        view.target.task,
        "\n".join(lines),
        cause=cause,
        step=step,
        unreachable=sorted({v.target.host for v in views if v.is_unresponsive(now)}),
    )


def _waited(views: Sequence[View], first: View) -> float:
    """Return the seconds from a rank's end to the last end that followed from it; 0 if unknown."""
    fallen = [view for view in views if view is not first and view.phase == records.FAILED]
    ended = [view.ended_at for view in fallen if is_secondary(view)]
    return max(ended, default=0.0) - first.ended_at if "ended_at" in first.state else 0.0


def different_weights(training: Sequence[View]) -> Outcome | None:
    """Return the outcome where ranks ended with different weights; None where they are equal."""
    hashes: dict[str, list[str]] = {}
    for view in training:
        if view.weights_sha256:
            hashes.setdefault(view.weights_sha256, []).append(view.target.task)
    if len(hashes) < 2:
        return None
    named = "; ".join(f"{value[:12]} on {', '.join(t)}" for value, t in hashes.items())
    reason = f"the ranks ended with different weights: {named}"
    return Outcome("failed", None, reason, cause=causes.WEIGHTS)


def result_of(job: str, outcome: Outcome, views: Sequence[View], attempts: int) -> Result:
    """Return ``result.json`` (docs/formats.md); its metrics are the final ones of the chief."""
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
