"""Detects whether a rank still makes steps, and where it is stuck if not."""

from __future__ import annotations

import os
import re
from collections import deque
from typing import Any, Deque, Dict, Iterable, Optional, Tuple

from . import log_shapes, progress_records
from .progress_records import Progress

_TRAINING = "training"
_END_OF_EPOCH = "training, end of an epoch"
#: Phases that may last long after the last step.
_OTHER_WORK = ("evaluating", "predicting")
_FRAME = re.compile(r'^  File "([^"]+)", line ([0-9]+) in (.+)$')
#: Files of the frameworks, in which a rank waits for the others.
_FRAMEWORK = re.compile(r"/(?:tensorflow|tf_keras|keras|jax|jaxlib|torch)/")
_INSTALLED = re.compile(r"/(?:site-packages|dist-packages|lib/python3[^/]*)/")


class Pace:
    """Measures from progress records how often a rank makes steps.

    The time between two records with new steps is compared with the usual time of the same kind:
    between two steps, at the end of an epoch (where an unreported test or checkpoint may follow),
    or in another phase such as ``evaluating``. The limit is ``factor`` times the usual time (0: no
    limit), but at least ``least`` seconds. A kind has no limit until it has occurred: the time
    between two steps once, the others twice. There is also no limit after the last epoch, or in an
    epoch of unknown length.
    """

    def __init__(self, factor: float, least: float) -> None:
        self._factor, self._least = factor, least
        self.step: Optional[int] = None  # step of the last record
        self._epoch: Any = None
        self._since = 0.0
        self._record: Progress = {}  # the last one, with the fields of earlier ones
        self._last: Progress = {}  # as it was written
        self._most = 0
        self._seen_at = 0.0  # time of the last record
        self._restarts = False  # steps followed after the last one
        self._usual: Dict[str, Deque[float]] = {}

    def feed(self, records: Iterable[Progress], now: float) -> None:
        """Add progress records that were read at ``now``, in seconds of a monotonic clock."""
        for added in records:
            self._seen_at = now
            record = progress_records.with_earlier(added, self._record)
            step = record.get("step")
            if _has_all_steps(self._record) and step != self._record["step"]:
                self._restarts = True
            if step is not None and step != self.step:
                epoch = record.get("epoch")
                if self.step is not None:
                    self._note(step - self.step, epoch != self._epoch, now - self._since)
                self.step, self._epoch, self._since = step, epoch, now
            self._record, self._last = record, added

    def postpone(self, seconds: float) -> None:
        """Leave out some seconds in which the rank's steps could not be seen."""
        self._since += seconds
        self._seen_at += seconds

    def _note(self, steps: int, new_epoch: bool, gap: float) -> None:
        kind = self._phase()
        if kind == _TRAINING and new_epoch:
            kind = _END_OF_EPOCH
        else:
            self._most = max(self._most, steps)
        self._usual.setdefault(kind, deque(maxlen=64)).append(gap)

    def _phase(self) -> str:
        return str(self._record.get("phase", _TRAINING))

    def _kind(self) -> str:
        """Return the kind of the current interval; an empty string if it has no limit."""
        # An epoch or a batch of an earlier record shows no place of this one.
        phase, last = self._phase(), self._last
        epoch = last.get("epoch")
        if phase != _TRAINING:
            return phase
        if _has_all_steps(self._record):
            return ""
        if epoch is None and "steps" not in last and "source" not in last:
            return _TRAINING  # a script that reports only steps
        place = _place(last)
        if place is None:
            return ""
        # A rank may be ahead of its last record.
        if self._most and place[0] + 2 * self._most < place[1]:
            return _TRAINING
        return "" if epoch in (None, last.get("epochs")) else _END_OF_EPOCH

    def finished_for(self, now: float) -> float:
        """Return the seconds since the last record of a rank that has made all of its steps.

        Return 0 if more steps are to come, if that is unknown, or while the rank evaluates or
        predicts. Keras prints only the steps of one call of ``fit``, and with ``verbose=2`` nothing
        until the end of an epoch. More steps may therefore come at any time if the call was for a
        single epoch, as in a loop, or if steps have followed the last one of a call before.
        """
        record = self._record
        if not _has_all_steps(record):
            return 0.0
        if self._phase() in _OTHER_WORK and record.get("batch", 0) != record.get("batches"):
            return 0.0
        if record.get("source") == "console" and (self._restarts or record.get("epochs") == 1):
            return 0.0
        return now - self._seen_at

    def overdue(self, now: float) -> str:
        """Return a message if a rank has not made a step for too long, or an empty string."""
        if self.step is None or not self._factor:
            return ""
        kind = self._kind()
        gaps = self._usual.get(kind, ())
        if kind == _TRAINING and gaps:
            usual = _median(gaps)
        elif kind != _TRAINING and kind and len(gaps) > 1:
            usual = max(gaps)
        else:
            return ""
        limit, gap = max(self._least, self._factor * usual), now - self._since
        if gap <= limit:
            return ""
        text = "has not completed a step for %.0f s after step %d; the limit is %.0f s"
        return text % (gap, self.step, limit)


def _median(values: Iterable[float]) -> float:
    """Return the median of one or more values. The module ``statistics`` is slow to import."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return (ordered[middle] + ordered[-1 - middle]) / 2


def _has_all_steps(record: Progress) -> bool:
    """Return whether a rank has made the last step that it planned, as far as is known."""
    step, steps = record.get("step"), record.get("steps")
    epoch, epochs = record.get("epoch"), record.get("epochs")
    if step is None or not steps or step < steps:
        return False
    # A script may count the steps of each epoch.
    return epoch is None or epochs is None or epoch >= epochs


def _place(record: Progress) -> Optional[Tuple[int, int]]:
    """Return the completed steps of the current epoch, and the epoch's steps; None if unknown."""
    if "batch" in record and "batches" in record:
        return record["batch"], record["batches"]
    step, steps, epochs = record.get("step"), record.get("steps"), record.get("epochs", 1)
    if ("epoch" in record and "epochs" not in record) or record.get("source") == "console":
        return None
    if step is None or not steps or not epochs or steps % epochs:
        return None
    return (step - 1) % (steps // epochs) + 1, steps // epochs


def crashed_in(log: str) -> str:
    """Return where the thread that received a fatal signal was, in the format of ``stuck_in``.

    The result is an empty string if faulthandler has written nothing.
    """
    stack = log.rpartition(log_shapes.FATAL)[2].rpartition("\n" + log_shapes.CURRENT_THREAD)[2]
    return stuck_in(stack.partition("\n\n")[0])[0]


def stuck_in(stacks: str) -> Tuple[str, bool]:
    """Return where the main thread was, from faulthandler's output.

    The result is a place in the user's own code if possible, such as ``main.py, line 12 in load``,
    or an empty string if nothing could be read. Also return whether the thread was inside the
    framework, which is the case in a rank that waits for another one.
    """
    last = stacks.rpartition("(most recent call first)")[2]
    frames = [found.groups() for found in map(_FRAME.match, last.splitlines()) if found]
    if not frames:
        return "", False
    own = [frame for frame in frames if not _INSTALLED.search(frame[0])]
    path, line, function = (own or frames)[0]
    place = "%s, line %s in %s" % (os.path.basename(path), line, function)
    return place, bool(_FRAMEWORK.search(frames[0][0]))
