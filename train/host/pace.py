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
_FRAME = re.compile(r'^  File "([^"]+)", line (\d+) in (.+)$')
#: Where a rank is that waits for the others: in TensorFlow or Keras.
_FRAMEWORK = re.compile(r"/(?:tensorflow|tf_keras|keras)/")
_INSTALLED = re.compile(r"/(?:site-packages|dist-packages|lib/python3[^/]*)/")


class Pace:
    """How often a rank makes steps, from its progress records.

    What counts is the silence between two records that tell of new steps. It is compared with the
    usual silence after records of the same kind: after a step, after the last step of an epoch
    (a test may follow that nobody tells of), in another phase such as ``evaluating``. What has
    happened only once before, or never, has no limit, but for the steps themselves.

    Args:
        factor: how many times the usual silence is too long; 0 for no limit.
        least: seconds that are never too long.
    """

    def __init__(self, factor: float, least: float) -> None:
        self._factor, self._least = factor, least
        self._step: Optional[int] = None
        self._since = 0.0
        self._kind = ""
        self._usual: Dict[str, Deque[float]] = {}

    @property
    def step(self) -> Optional[int]:
        """The last step that was told; None before the first."""
        return self._step

    def feed(self, records: Iterable[Dict[str, Any]], now: float) -> None:
        """Take new progress records, at the time ``now`` in seconds of a monotonic clock."""
        for record in records:
            step = record.get("step")
            if isinstance(step, int) and step != self._step:
                if self._step is not None:
                    silences = self._usual.setdefault(self._kind, deque(maxlen=64))
                    silences.append(now - self._since)
                self._step, self._since = step, now
            if self._step is not None:
                self._kind = self._kind_of(record)

    def _kind_of(self, record: Dict[str, Any]) -> str:
        phase = str(record.get("phase", _TRAINING))
        steps, epochs = record.get("steps"), record.get("epochs")
        if phase == _TRAINING and isinstance(steps, int) and isinstance(epochs, int) and epochs:
            per_epoch = steps // epochs
            if per_epoch and self._step is not None and self._step % per_epoch == 0:
                return phase + ", end of an epoch"
        return phase

    def overdue(self, now: float) -> str:
        """Return in words how long there has been no step if that is too long, else nothing."""
        if self._step is None or not self._factor:
            return ""
        silences = self._usual.get(self._kind, ())
        if self._kind == _TRAINING:
            usual = statistics.median(silences) if silences else 0.0
        elif len(silences) > 1:
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
