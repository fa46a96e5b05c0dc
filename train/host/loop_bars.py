"""Derives progress records from the bars of tqdm, which Lightning uses as well.

A bar is one line, which tqdm draws again and again::

    Epoch 2/5:  40%|####      | 4/10 [00:01<00:02,  3.91it/s, loss=0.52, accuracy=0.81]
    Epoch 1: 100%|##########| 10/10 [00:02<00:00,  4.10it/s, v_num=0, train_loss=0.31]

A bar of training has an epoch or the word "train" before it, or a loss behind it. Bars of other
loops, such as validation and downloads, do not count. The word alone is weak evidence, because it
is also in the names of data: ``Generating train split``. It counts only without a word about the
preparation of data, and if the bar counts iterations, batches or steps, and not examples or files.

Lightning counts epochs from 0, and does not show how many there are. Other scripts print the epoch
on a line before the bar: ``Epoch 2/5``. The first bar of training after it is of that epoch. A
later one of the same epoch may be one of validation, and does not count.
"""

from __future__ import annotations

import math
import re
from typing import Dict, Optional, Tuple

from .progress_records import MAX_NUMBER, Progress

_BAR = re.compile(
    r"(?P<label>.{0,200}?):? {0,9}[0-9]{1,3}%\|[^|]{0,500}\| *"
    r"(?P<done>[0-9]{1,15})/(?P<total>[0-9]{1,15}) "
    r"\[[0-9:]{1,20}<[0-9:?]{1,20}, *(?P<speed>[^,\]]{1,40})(?P<fields>[^\]]{0,4000})\]"
)
_NUMBERS = r"epoch\W{0,3}(?P<epoch>[0-9]{1,9})(?: ?(?:/|of) ?(?P<epochs>[0-9]{1,9}))"
_EPOCH = re.compile(r"\b" + _NUMBERS + "?", re.I)
_PRINTED = re.compile(r"\W{0,100}" + _NUMBERS + r"\W{0,100}", re.I)
#: A loss before a bar, but not one of another kind, such as the best one.
_LOSS = re.compile(
    r"(?:^|[^\w\s]|\d|(?<![a-z])(?:train(?:ing)?|avg|average|mean|total|batch|running|current))[\s_]*"
    r"loss(?: ?[:=] ?| (?=\S{0,20}\.))"
    r"(?P<loss>[-+]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?(?:e[-+]?[0-9]{1,4})?|nan|inf))(?![\w./])",
    re.I,
)
_TRAINS = re.compile(r"(?<![a-z/\\.])(?:pre|re)?train(?:ing|er)?(?![a-z/\\]|\.\w)", re.I)
#: Words of the preparation of data: all that end with "ing", except for those of training.
_PREPARES = re.compile(
    r"(?<![a-z])(?:(?!(?:pre|re)?training(?![a-z])|(?:fine)?tuning|learning)[a-z]{1,40}ing(?![a-z])"
    r"|data|sets?(?![a-z])|split|subset|corp|vocab|image|img|picture|video|audio|clip|text|sentence"
    r"|doc|example|sample|record|row|line|item|feature|label|file|shard|folder|json|csv|parquet"
    r"|arrow|tfrecord|zip|tar(?![a-z])|cache|load|read|fetch|download|upload|import|export|copy|copies"
    r"|save|write|dump|pars|scan|index|sort|shuffl|filter|map|process|preproc|prepar|token|encod"
    r"|decod|embed|convert|cast|extract|unpack|pack|collat|collect|creat|build|generate|comput"
    r"|count|check|verif|clean|dedup|merg|concat|augment|resiz|crop|normali[sz]|statistic|stats)",
    re.I,
)
_DOES_NOT_TRAIN = re.compile(
    r"(?<![a-z])(?:val(?![a-z])|valid|eval|test|dev(?![a-z])|sanity|predict|infer)", re.I
)
_SPEED = re.compile(
    r"(?P<number>[0-9]{1,15}(?:\.[0-9]{1,15})?)"
    r"(?:(?P<slow>s/) ?[^\W\d]+| ?(?P<thousands>k(?=it|batch|step))?[^\W\d]+/s)"
)
_FIELD = re.compile(r", *(?P<name>[^\s=,][^=,]{0,99})=(?P<value>[^,]{0,40})")
#: Units of a loop that may train, if nothing but a word indicates it, and of a loop over bytes.
_STEPS = re.compile(r"(?:s/ ?)?k?(?:it|iter|iteration|batch|step)(?:e?s)?(?:/s)?", re.I)
_BYTES = re.compile(r"(?:s/ ?)?[kMGTPEZY]?i?B(?:/s)?")
#: A field of Lightning that is not a metric.
_VERSION = "v_num"
#: Names of a loss, in lower case with underscores.
_LOSSES = ("loss", "train_loss", "training_loss")


class LoopBars:
    """Converts lines to progress records (without ``t``).

    ``step`` counts the steps of all epochs. ``steps`` is known only if the bars show the number of
    epochs. There are no ``batches``: with them, a rank would count as hung while it does something
    else for a long time after a bar.
    """

    def __init__(self) -> None:
        self._earlier = 0  # steps of earlier bars, if bars show no epochs
        self._bar = (0, 0)  # done and total of the last one
        self._has_loss = False  # whether a bar without an epoch had one
        self._first: Optional[int] = None  # the number of the first epoch, 0 or 1
        self._printed: Optional["re.Match[str]"] = None  # the line of the current epoch
        self._is_first = True  # no other bar has begun since that line
        self.train = False  # whether a bar with an epoch or a loss was seen

    @property
    def count_from_0(self) -> bool:
        """Whether the number of the first epoch is 0."""
        return self._first == 0

    def line(self, line: str) -> Optional[Progress]:
        """Return the progress record of a line, or None if it shows no progress of training."""
        printed = _PRINTED.fullmatch(line)
        if printed is not None:
            self._begin_epoch(printed)
        bar = _BAR.match(line)
        if bar is None:
            return None
        unit = bar.group("speed").strip().lstrip("0123456789.?").strip()
        label, metrics = bar.group("label"), _metrics(bar.group("fields"))
        loss = _loss(label, metrics)
        trains = loss is not None or _EPOCH.search(label) or _is_training(label, unit)
        if _BYTES.fullmatch(unit) or _DOES_NOT_TRAIN.search(label) or not trains:
            return None
        place = self._place(bar, loss is not None)
        if place is None:
            return None
        self.train = self.train or loss is not None or "epoch" in place
        record: Progress = {"source": "console", "phase": "training", **place}
        if loss is not None:
            record["loss"] = loss
        if metrics:
            record["metrics"] = dict(metrics)
        speed = _speed(bar.group("speed"))
        if speed:
            record["steps_per_s"] = speed
        return record

    def _begin_epoch(self, printed: "re.Match[str]") -> None:
        """Note the line of an epoch, unless such lines are printed after the bars."""
        if self._printed is None and self._has_loss:
            return
        self._printed, self._is_first, self._bar = printed, True, (0, 0)
        self._number(printed)

    def _place(self, bar: "re.Match[str]", has_loss: bool) -> Optional[Progress]:
        """Return the step and the epoch of a bar of training; None if it is one of another loop."""
        done, total = int(bar.group("done")), int(bar.group("total"))
        shown = _EPOCH.search(bar.group("label"))
        is_new = done < self._bar[0] or total != self._bar[1]
        if shown is not None:
            return self._of_epoch(shown, done, total)
        if self._printed is not None:
            self._is_first = self._is_first and (not is_new or self._bar == (0, 0))
            if not self._is_first:
                return None
            self._bar = done, total
            return self._of_epoch(self._printed, done, total)
        # A bar that shows less than others did may be around them, or of validation.
        if self._first is not None or (self._has_loss and not has_loss and total != self._bar[1]):
            return None
        self._has_loss = self._has_loss or has_loss
        if done < self._bar[0]:
            self._earlier += self._bar[0]
        self._bar = done, total
        return {"step": self._earlier + done}

    def _number(self, shown: "re.Match[str]") -> Tuple[int, Optional[int]]:
        """Return the number of an epoch, from 1, and of all epochs."""
        epoch, epochs = int(shown.group("epoch")), shown.group("epochs")
        if self._first is None or epoch == 0:
            # Without a total, a loop of the user starts at 1, and a later number is Lightning's.
            self._first = int(epoch == 1 or (epoch > 0 and epochs is not None))
        number = epoch - self._first + 1
        # Some loops count from 0 up to the number of epochs, others to one less.
        return number, None if epochs is None else max(int(epochs), number)

    def _of_epoch(self, shown: "re.Match[str]", done: int, total: int) -> Progress:
        """Return the place of a bar in the epoch that its label or the line before it shows."""
        epoch, epochs = self._number(shown)
        place: Progress = {"epoch": epoch, "step": (epoch - 1) * total + done}
        if epochs is not None:
            place["epochs"], place["steps"] = epochs, epochs * total
        return place


def is_vague(record: Progress) -> bool:
    """Return whether only the word "train" shows that a record is one of training."""
    certain = {"epoch", "batch", "loss", "approximate"}
    return record.get("source") == "console" and certain.isdisjoint(record)


def _is_training(label: str, unit: str) -> bool:
    """Return whether a bar without an epoch and a loss is one of training."""
    trains = _TRAINS.search(label) and not _PREPARES.search(label)
    return bool(trains and _STEPS.fullmatch(unit))


def _loss(label: str, metrics: Dict[str, float]) -> Optional[float]:
    """Return the loss of a bar, after removing it from ``metrics``, or None if it shows none."""
    names = {re.sub(r"\W+", "_", name).strip("_").lower(): name for name in reversed(list(metrics))}
    for name in _LOSSES:
        if name in names:
            return metrics.pop(names[name])
    shown = _LOSS.search(label)
    return float(shown.group("loss")) if shown else None


def _metrics(fields: str) -> Dict[str, float]:
    """Return the numbers after a bar by name."""
    found = {}
    for field in _FIELD.finditer(fields):
        try:
            number = float(field.group("value"))
        except ValueError:
            continue
        too_large = math.isfinite(number) and abs(number) > MAX_NUMBER
        if field.group("name") != _VERSION and not too_large:
            found[field.group("name")] = number
    return found


def _speed(text: str) -> Optional[float]:
    """Return the steps per second in ``3.91it/s`` or ``2.50s/it``, or None if it is unknown."""
    found = _SPEED.fullmatch(text.strip())
    number = float(found.group("number")) if found else 0.0
    if not found or not number:
        return None
    number *= 1000 if found.group("thousands") else 1
    return float("%.4g" % (1 / number if found.group("slow") else number))
