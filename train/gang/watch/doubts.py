"""Finds reasons to doubt that a completed job did what its user intended.

Exit codes of 0 are not enough: a rank may have left early, trained alone, or ended while another
process was still training. Each doubt is one sentence with the rank, the observation and a remedy.
A false alarm is worse than a miss, so each rule uses only reported facts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from train.gang import cause_names, listing
from train.gang.watch import causes
from train.gang.watch.views import View, views_in_training
from train.host import end_causes, frameworks, progress_records, rank_files, tracebacks

#: A rank may be ahead of its last record by this many times the distance between two records.
_STRIDES = 2
#: Minimum seconds that a rank must run before it is certain that it has not opened its port.
_SHORT = 3.0
#: Minimum Keras epochs by which a rank must be behind another.
_EPOCHS = 2
#: The beginning of a line of Python's logging that reports an error.
_ERROR = re.compile(r"(?:\S+ ){0,4}\[?(?:ERROR|CRITICAL|FATAL)\]?(?:[:|]|\s|$)")
#: A number that a script prints about its model, and a line in which ERROR names a measurement.
_NUMBER = r"-?(?:\d+\.\d*(?:e[-+]?\d+)?|\d+e[-+]?\d+|\d+(?=\s*%))\s*%?"
_MEASURE = re.compile(
    rf".*\bERROR(?: \(?\w+\)?){{0,2}}\s*[:=|]?\s*{_NUMBER}(?:[,;|]?\s+\w+\s*[:=]?\s*{_NUMBER})*\.?$"
)
#: Sources of an exception at the end of a log that count as an error of the script.
_OWNERS = (tracebacks.SCRIPT, tracebacks.THREAD, tracebacks.CHILD)
#: Describes a rank that had no contact with the others.
TRAINED_ALONE = "trained without any connection to another rank, so no gang was formed"
#: Maximum characters of a line of a log.
_LINE = 200


def find(views: Sequence[View]) -> list[str]:
    """Return the doubts about a completed job, from the ranks' last states and records."""
    training = views_in_training(views)
    return [
        *_never_began(training),
        *_alone(training),
        *_left_at_work(training),
        *_lingered(training),
        *_left_early(training),
        *_behind(training),
        *_without_loss(training),
        *_with_an_error(training),
    ]


def notes(views: Sequence[View]) -> list[str]:
    """Return notes about a completed job: result files that remain in working directories."""
    found = []
    for view in views:
        left = view.state.get("left_files")
        if left and left["count"]:
            several = left["count"] > 1
            place = f"{view.target.host}:{view.target.rank_dir}/{rank_files.CODE_DIR}"
            found.append(
                f"{left['count']} file{'s' if several else ''} of {view.target.task} that "
                f"look{'' if several else 's'} like results remain{'' if several else 's'} in "
                f"{place} ({listing.size(left['bytes'])}: {', '.join(left['names'])}"
                f"{', ...' if left['count'] > len(left['names']) else ''}): "
                "let the script write results to $TRAIN_MODEL_DIR, or list these files in "
                "train_job_collect"
            )
    return found


def _named(views: Sequence[View]) -> str:
    return ", ".join(f"{view.target.task} ({view.target.host})" for view in views)


def _alike(views: Mapping[View, str]) -> dict[str, list[View]]:
    """Group ranks by the text about them, so that one sentence covers all of them."""
    found: dict[str, list[View]] = {}
    for view, text in views.items():
        found.setdefault(text, []).append(view)
    return found


def _never_began(training: Sequence[View]) -> Iterator[str]:
    """Yield a doubt about ranks that have neither opened their port nor reported anything.

    Ports are checked every half second, so a short run proves nothing.
    """
    idle = []
    for view in training:
        state = view.state
        seconds = float(state.get("ended_at", 0.0)) - float(state.get("started_at", 0.0))
        if state.get("port") and not view.was_running and not view.record and seconds > _SHORT:
            idle.append(view)
    if idle:
        is_tensorflow = idle[0].target.framework == frameworks.TENSORFLOW
        begun = "opening a port" if is_tensorflow else "joining the others"
        yield (
            f"{_named(idle)} ended without {begun} or reporting a step: check that "
            "the script is meant to train, and that it calls its training function"
        )


def _alone(training: Sequence[View]) -> Iterator[str]:
    """Yield a doubt about ranks that have trained without the others."""
    alone = [view for view in training if view.state.get("alone")]
    if alone:
        remedy = causes.remedy_of(cause_names.ALONE, alone[0].target.framework)
        yield f"{_named(alone)} {TRAINED_ALONE}; {remedy}"


def _left_at_work(training: Sequence[View]) -> Iterator[str]:
    """Yield doubts about ranks whose script ended while its processes were still at work."""
    found = {view: "; ".join(view.state.get("at_work", [])) for view in training}
    for commands, views in _alike(found).items():
        if commands:
            yield (
                f"the script of {_named(views)} ended while processes that it had started "
                f"were still running, and these were killed ({commands}): let the script "
                "wait for them, and do not leave processes in the background"
            )


def _lingered(training: Sequence[View]) -> Iterator[str]:
    """Yield doubts about ranks that did not end by themselves after their last step."""
    for view in training:
        if view.state.get("cause") == end_causes.LINGERED:
            yield (
                f"{_named([view])} {view.state.get('reason')}, so the launcher ended it: work "
                "after the last step, such as saving, may be incomplete"
            )


def _reports(view: View) -> bool:
    """Return whether a rank's script itself writes progress records."""
    return bool(view.record) and view.record.get("source") != "console"


def _room(view: View) -> int:
    """Return how many steps a rank may be ahead of its last record."""
    return _STRIDES * (view.stride or view.record.get("step", 0))


def _is_early_stopping(view: View, training: Sequence[View]) -> bool:
    """Return whether all ranks ended together at the end of an epoch."""
    step, steps = view.record.get("step"), view.record.get("steps")
    epoch, epochs = view.record.get("epoch"), view.record.get("epochs")
    if not step or not steps or not epoch or not epochs:
        return False
    at_end = epoch < epochs and step * epochs == epoch * steps
    return at_end and {other.record.get("step", step) for other in training} == {step}


def _ended_early(view: View, training: Sequence[View]) -> bool:
    step, steps = view.record.get("step"), view.record.get("steps")
    if not _reports(view) or step is None or not steps or view.record.get("phase") != "training":
        return False
    return step + _room(view) < steps and not _is_early_stopping(view, training)


def _left_early(training: Sequence[View]) -> Iterator[str]:
    """Yield doubts about ranks that have made only some of their steps."""
    early = {
        view: f"step {view.record['step']} of {view.record['steps']}"
        for view in training
        if _ended_early(view, training)
    }
    for place, views in _alike(early).items():
        yield (
            f"{_named(views)} ended with exit code 0 after {place}: check the end of the log; if "
            "the script stops early on purpose, let it write a final progress record "
            'with phase "done"'
        )


def _behind(training: Sequence[View]) -> Iterator[str]:
    """Yield doubts about ranks that made fewer steps or epochs than others of the job."""
    for name, ranks in (
        ("step", [view for view in training if _reports(view)]),
        ("epoch", [view for view in training if not _reports(view)]),
    ):
        known: dict[View, Any] = {view: view.record.get(name) for view in ranks}
        places = {view: int(place) for view, place in known.items() if place is not None}
        most = max(places.values(), default=0)
        behind = {
            view: f"{name} {place}"
            for view, place in places.items()
            if place + (_room(view) if name == "step" else _EPOCHS - 1) < most
            and not _ended_early(view, training)
        }
        for place_of, views in _alike(behind).items():
            yield (
                f"{_named(views)} ended after {place_of} while others continued to {name} "
                f"{most}: give all ranks the same number of steps, and check that each uses "
                "the strategy"
            )


def _without_loss(training: Sequence[View]) -> Iterator[str]:
    """Yield doubts about ranks whose last loss is not a finite number."""
    lost = {
        view: str(view.record.get("loss"))
        for view in training
        if view.record.get("loss") in progress_records.NOT_FINITE
    }
    for value, views in _alike(lost).items():
        yield (
            f"the last loss of {_named(views)} was {value}: the model has stopped learning; "
            "lower the learning rate, or check the data"
        )


def _with_an_error(training: Sequence[View]) -> Iterator[str]:
    """Yield doubts about ranks whose exit code is 0 although their log ends with an error."""
    for text, views in _alike({view: _last_error(view) for view in training}).items():
        if text:
            yield (
                f"the log of {_named(views)} ends with an error, although the exit code was "
                f"0: {text}; if the error matters, let the script raise it"
            )


def _last_error(view: View) -> str:
    """Return the error at the end of a rank's log, or an empty string."""
    line = view.last_line
    if _ERROR.match(line) and not _MEASURE.match(line):
        return line[:_LINE]
    lines = [text for text in view.end_of_log if text.strip()]
    ended = tracebacks.ending(lines, 1) if lines else None
    if ended is None or not ended.certain or ended.owner not in _OWNERS:
        return ""
    # Lines after it may belong to its message, or to a script that continued.
    is_last = [text.strip() for text in ended.error] == [lines[-1].strip()]
    return ended.brief[:_LINE] if is_last else ""
