"""How a gang ended, and whose fault it was.

Standard library only, as watch.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from train.gang.watch import causes
from train.gang.watch.views import View, is_secondary
from train.host import records

#: Seconds that a rank may be stopped by a signal or a debugger.
FROZEN_LIMIT = 20.0
#: A host that has owed an answer for this many seconds is silent.
SILENT = 2.0
#: How TensorFlow names a rank that it has lost, and train/worker.py one that does not answer.
_ACCUSING = re.compile(
    r"TrainingError: (?:lost contact with (?P<lost>\w+-\d+):"
    r"|(?P<mute>\w+-\d+) \(\S+\) has not answered)"
    r"|(?:remote target|heartbeat\w*\)?:?|timed? ?out|task) /job:(?P<job>\w+)/(?:replica:\d+/)?"
    r"task:(?P<index>\d+)"
)


@dataclass(frozen=True)
class Verdict:
    """How the gang stands.

    Attributes:
        state: ``completed``, ``failed`` or ``stopped``.
        culprit: the task that was first at fault; None unless failed.
        message: for people; names the culprit, what happened, what to do and its last lines.
        cause: a key of causes.CAUSES; empty unless failed.
        exit_code: of the culprit's script, None where it is not known.
        reason: what it says of its end.
        step: the last step that the culprit has told, or else any rank.
        waited: seconds that the other ranks waited for the culprit, as far as it is known.
        silent: the inventory hosts that do not answer.
    """

    state: str
    culprit: str | None
    message: str
    cause: str = ""
    exit_code: int | None = None
    reason: str = ""
    step: int | None = None
    waited: float | None = None
    silent: Sequence[str] = field(default_factory=list)

    @property
    def failure(self) -> causes.Failure:
        """The part that says whether another try is worth it."""
        return causes.Failure(self.cause, self.culprit, self.exit_code, self.reason, self.step)


def is_silent(view: View, now: float, wait: float) -> bool:
    """Tell whether a rank's host owes an answer; a look takes it up to ``wait`` seconds."""
    return not view.final and (bool(view.trouble) or view.silence(now, wait) > SILENT)


def last_step(views: Sequence[View]) -> int | None:
    """Return the last step that any rank has told."""
    steps = [view.record.get("step") for view in views]
    return max((step for step in steps if isinstance(step, int)), default=None)


def accusations(views: Sequence[View]) -> Counter[str]:
    """Return how many failed ranks name another one as lost, by task."""
    found: Counter[str] = Counter()
    for view in views:
        lines = [str(view.state.get("reason") or ""), *view.tail]
        named = set()
        for match in (match for line in lines for match in _ACCUSING.finditer(line)):
            named.add(match["lost"] or match["mute"] or f"{match['job']}-{match['index']}")
        found.update(named - {view.target.task})
    return found


def accused(views: Sequence[View], failed: Sequence[View], now: float, wait: float) -> View | None:
    """Return who brought down ranks that only say that they lost another one.

    The first of these that there is: a rank that is stopped, one whose host is silent, one that
    lives on and is named by the others, one that has fallen as they have and is named by them.
    """
    named, first = accusations(failed), accusations([first_of(failed)])
    others = [view for view in views if not view.final]
    for suspects in (
        [view for view in others if view.state.get("frozen")],
        [view for view in others if is_silent(view, now, wait)],
        [view for view in others if named[view.target.task]],
        [view for view in failed if named[view.target.task]],
    ):
        if suspects:
            return max(suspects, key=lambda v: (named[v.target.task], first[v.target.task]))
    return None


def first_of(failed: Sequence[View]) -> View:
    """Return the rank that ended first, by the clocks of the hosts set right."""
    return min(failed, key=lambda view: view.ended_at)


def blame(
    views: Sequence[View],
    view: View,
    *,
    now: float,
    wait: float,
    cause: str = "",
    reason: str = "",
    witness: View | None = None,
) -> Verdict:
    """Return the verdict that ``view`` was at fault.

    Args:
        now: seconds of the monotonic clock.
        wait: seconds that a look may take.
        cause: by default the one in its state.
        reason: by default the one in its state, or that its host does not answer.
        witness: the rank whose end told of it.
    """
    cause = cause or str(view.state.get("cause") or causes.UNREACHABLE)
    reason = reason or str(view.state.get("reason") or view.trouble or "does not answer")
    # Its own, where it has ended by itself: ranks tell their steps at different times.
    step = view.state.get("step")
    step = step if isinstance(step, int) else last_step(views)
    failure = causes.Failure(cause, view.target.task, view.state.get("exit_code"), reason, step)
    told = [f"{view.target.task} on {view.target.host} {reason}"]
    if witness is not None:
        told[0] += f": {witness.target.task} on {witness.target.host} {witness.state.get('reason')}"
    waited = _waited(views, view)
    where = f"the last step told was {step}" if step is not None else "no step was told"
    told.append(where + (f"; the others waited {waited:.1f} s" if waited is not None else ""))
    if failure.remedy:
        told.append(f"what to do: {failure.remedy}")
    tail = view.tail if witness is None else ()
    if tail:
        told.append("its last lines:\n  " + "\n  ".join(tail))
    return Verdict(
        "failed",
        view.target.task,
        "\n".join(told),
        cause=cause,
        exit_code=failure.exit_code,
        reason=reason,
        step=step,
        waited=waited,
        silent=sorted({v.target.host for v in views if is_silent(v, now, wait)}),
    )


def _waited(views: Sequence[View], culprit: View) -> float | None:
    """Return the seconds from the culprit's end to the last end that followed from it."""
    if "ended_at" not in culprit.state:
        return None
    fallen = [view for view in views if view is not culprit and view.phase == records.FAILED]
    ended = [view.ended_at for view in fallen if is_secondary(view)]
    waited = max(ended, default=0.0) - culprit.ended_at
    return round(waited, 1) if waited > 0 else None


def different_weights(training: Sequence[View]) -> Verdict | None:
    """Return the verdict on ranks that ended with different weights; None where they are equal."""
    hashes: dict[str, list[str]] = {}
    for view in training:
        if view.weights_sha256:
            hashes.setdefault(view.weights_sha256, []).append(view.target.task)
    if len(hashes) < 2:
        return None
    told = "; ".join(f"{value[:12]} on {', '.join(t)}" for value, t in hashes.items())
    reason = f"the ranks ended with different weights: {told}"
    return Verdict("failed", None, reason, cause=causes.WEIGHTS, reason=reason)


def result_of(job: str, verdict: Verdict, views: Sequence[View], attempts: int) -> dict[str, Any]:
    """Return the contents of ``result.json``; see docs/formats.md.

    The metrics are those of the first rank that trains and has some: the chief.
    """
    training = [view for view in views if not view.target.service]
    metrics = next((view.metrics for view in training if view.metrics), {})
    return {
        "version": records.FORMAT_VERSION,
        "job": job,
        "state": verdict.state,
        "attempts": attempts,
        "culprit": verdict.culprit,
        "cause": verdict.cause or None,
        "step": verdict.step,
        "message": verdict.message,
        "metrics": metrics,
        "ranks": [view.summary() for view in views],
    }
