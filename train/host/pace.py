"""Tells whether a rank still makes steps, and where it is stuck when it does not.

Standard library only, Python 3.8 and newer.
"""

from __future__ import annotations

import os
import re
import statistics
from collections import deque
from typing import Any, Deque, Dict, Iterable, List, Optional, Tuple

_TRAINING = "training"
_END_OF_EPOCH = "training, end of an epoch"
_FRAME = re.compile(r'^  File "([^"]+)", line (\d+) in (.+)$')
#: Where a rank is that waits for the others: in TensorFlow or Keras.
_FRAMEWORK = re.compile(r"/(?:tensorflow|tf_keras|keras)/")
_INSTALLED = re.compile(r"/(?:site-packages|dist-packages|lib/python3[^/]*)/")


class Pace:
    """How often a rank makes steps, from its progress records.

    What counts is the silence between two records that tell of new steps. It is compared with the
    usual silence of the same kind: between two steps, at the end of an epoch (a test or a
    checkpoint may follow that nobody tells of), in another phase such as ``evaluating``. What has
    happened only once before, or never, has no limit, but for the steps themselves. There is none
    either after the last epoch, and where it is not known how long an epoch is.

    A rank may have come further than it has told: the end of an epoch is near as soon as twice the
    most steps that were ever between two records would reach it.

    Args:
        factor: how many times the usual silence is too long; 0 for no limit.
        least: seconds that are never too long.
    """

    def __init__(self, factor: float, least: float) -> None:
        self._factor, self._least = factor, least
        self._step: Optional[int] = None
        self._epoch: Any = None
        self._since = 0.0
        self._record: Dict[str, Any] = {}
        self._most = 0
        self._usual: Dict[str, Deque[float]] = {}

    @property
    def step(self) -> Optional[int]:
        """The last step that was told; None before the first."""
        return self._step

    def feed(self, records: Iterable[Any], now: float) -> None:
        """Take new progress records, at the time ``now`` in seconds of a monotonic clock."""
        for record in records:
            step = record.get("step")
            if isinstance(step, int) and step != self._step:
                epoch = record.get("epoch")
                if self._step is not None:
                    self._note(step, epoch != self._epoch, now - self._since)
                self._step, self._epoch, self._since = step, epoch, now
            if self._step is not None:
                self._record = record

    def _note(self, step: int, new_epoch: bool, silence: float) -> None:
        """Note a silence that a new step has ended."""
        kind = self._phase()
        if kind == _TRAINING and new_epoch:
            kind = _END_OF_EPOCH
        elif self._step is not None:
            self._most = max(self._most, step - self._step)
        self._usual.setdefault(kind, deque(maxlen=64)).append(silence)

    def _phase(self) -> str:
        return str(self._record.get("phase", _TRAINING))

    def _kind(self) -> str:
        """Return what kind of silence this may be; empty for one that has no limit."""
        phase, epoch = self._phase(), self._record.get("epoch")
        if phase != _TRAINING:
            return phase
        if epoch is None and "steps" not in self._record:
            return _TRAINING  # a script that tells of steps alone
        place = _place(self._record)
        if place is None:
            return ""
        if self._most and place[0] + 2 * self._most < place[1]:
            return _TRAINING
        return "" if epoch in (None, self._record.get("epochs")) else _END_OF_EPOCH

    def overdue(self, now: float) -> str:
        """Return in words how long there has been no step if that is too long, else nothing."""
        if self._step is None or not self._factor:
            return ""
        kind = self._kind()
        silences = self._usual.get(kind, ())
        if kind == _TRAINING:
            usual = statistics.median(silences) if silences else 0.0
        elif kind and len(silences) > 1:
            usual = max(silences)
        else:
            return ""
        limit = max(self._least, self._factor * usual)
        silent = now - self._since
        if silent <= limit:
            return ""
        return "has made no step for %.0f s after step %d; the limit is %.0f s" % (
            silent,
            self._step,
            limit,
        )


def _place(record: Dict[str, Any]) -> Optional[Tuple[int, int]]:
    """Return how many steps of an epoch are done, and of how many; None where that is not told."""
    batch, batches = record.get("batch"), record.get("batches")
    if isinstance(batch, int) and isinstance(batches, int):
        return batch, batches
    step, steps, epochs = record.get("step"), record.get("steps"), record.get("epochs", 1)
    if "epoch" in record and "epochs" not in record:
        return None
    if not (isinstance(step, int) and isinstance(steps, int) and isinstance(epochs, int)):
        return None
    if record.get("source") == "console" or epochs < 1 or steps < 1 or steps % epochs:
        return None
    return (step - 1) % (steps // epochs) + 1, steps // epochs


def stuck_in(stacks: str) -> Tuple[str, bool]:
    """Return where the main thread was, and whether that was inside TensorFlow.

    A rank that waits for another one is inside TensorFlow, the one that they wait for mostly is
    not.

    Args:
        stacks: what Python's faulthandler writes, the main thread last.

    Returns:
        Such as ``main.py, line 12 in load``: the innermost place in the user's own code, or else
        the innermost of all; empty where nothing could be read.
    """
    frames: List[Tuple[str, str, str]] = []
    for line in stacks.splitlines():
        if "(most recent call first)" in line:
            frames = []
            continue
        found = _FRAME.match(line)
        if found:
            frames.append((found[1], found[2], found[3]))
    if not frames:
        return "", False
    own = [frame for frame in frames if not _INSTALLED.search(frame[0])]
    path, line_number, function = (own or frames)[0]
    place = "%s, line %s in %s" % (os.path.basename(path), line_number, function)
    return place, bool(_FRAMEWORK.search(frames[0][0]))
