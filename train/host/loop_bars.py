"""Derives progress records from the bars of tqdm, which Lightning uses as well.

A bar is one line, which tqdm draws again and again::

    Epoch 2/5:  40%|####      | 4/10 [00:01<00:02,  3.91it/s, loss=0.52, accuracy=0.81]
    Epoch 1: 100%|##########| 10/10 [00:02<00:00,  4.10it/s, v_num=0, train_loss=0.31]

A bar of training has an epoch or the word "train" before it, or a loss behind it. Bars of other
loops, such as validation and downloads, do not count. The word alone is weak evidence, because it
is also in the names of data: ``Generating train split``. It counts only without a word about the
preparation of data, and if the bar counts iterations, batches or steps, and not examples or files.

Lightning counts epochs from 0, and does not show how many there are.
"""

from __future__ import annotations

import math
import re
from typing import Dict, Optional

from .progress_records import MAX_NUMBER, Progress

_BAR = re.compile(
    r"(?P<label>[^|]{0,200}?):? *[0-9]{1,3}%\|[^|]{0,500}\| *"
    r"(?P<done>[0-9]{1,15})/(?P<total>[0-9]{1,15}) "
    r"\[[0-9:]{1,20}<[0-9:?]{1,20}, *(?P<speed>[^,\]]{1,40})(?P<fields>[^\]]{0,4000})\]"
)
_EPOCH = re.compile(r"\bepoch\W{0,3}(?P<epoch>[0-9]{1,9})(?: ?/ ?(?P<epochs>[0-9]{1,9}))?", re.I)
_TRAINS = re.compile(r"(?<![a-z/\\.])(?:pre|re)?train(?:ing|er)?(?![a-z/\\]|\.\w)", re.I)
#: Words of the preparation of data: all that end with "ing", except for those of training.
_PREPARES = re.compile(
    r"(?<![a-z])(?:(?!(?:pre|re)?training(?![a-z])|(?:fine)?tuning|learning)[a-z]{1,40}ing(?![a-z])"
    r"|data|sets?(?![a-z])|split|subset|corp|vocab|image|img|picture|video|audio|clip|text|sentence"
    r"|doc|example|sample|record|row|line|item|feature|label|file|shard|folder|json|csv|parquet"
    r"|arrow|tfrecord|zip|tar(?![a-z])|cach|load|read|fetch|download|upload|import|export|copy|copie"
    r"|sav|writ|dump|pars|scan|index|sort|shuffl|filter|map|process|preproc|prepar|token|encod"
    r"|decod|embed|convert|cast|extract|unpack|pack|collat|collect|creat|build|generat|comput"
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
_LOSSES = ("loss", "train_loss")


class LoopBars:
    """Converts lines to progress records (without ``t``).

    ``step`` counts the steps of all epochs. ``steps`` is known only if the bars show the number of
    epochs. There are no ``batches``: with them, a rank would count as hung while it does something
    else for a long time after a bar.
    """

    def __init__(self) -> None:
        self._earlier = 0  # steps of earlier bars, if bars show no epochs
        self._done = 0
        self._first: Optional[int] = None  # the number of the first epoch, 0 or 1

    def line(self, line: str) -> Optional[Progress]:
        """Return the progress record of a line, or None if it shows no progress of training."""
        bar = _BAR.match(line)
        if bar is None:
            return None
        unit = bar.group("speed").strip().lstrip("0123456789.?").strip()
        metrics = _metrics(bar.group("fields"))
        loss = next((metrics.pop(name) for name in _LOSSES if name in metrics), None)
        label = bar.group("label")
        trains = loss is not None or _EPOCH.search(label) or _is_training(label, unit)
        if _BYTES.fullmatch(unit) or _DOES_NOT_TRAIN.search(label) or not trains:
            return None
        record: Progress = {"source": "console", "phase": "training"}
        self._count(record, bar)
        if loss is not None:
            record["loss"] = loss
        if metrics:
            record["metrics"] = dict(metrics)
        speed = _speed(bar.group("speed"))
        if speed:
            record["steps_per_s"] = speed
        return record

    def _count(self, record: Progress, bar: "re.Match[str]") -> None:
        """Add the step and the epoch of a bar of training to ``record``."""
        done, total = int(bar.group("done")), int(bar.group("total"))
        shown = _EPOCH.search(bar.group("label"))
        if shown is None:
            if done < self._done:
                self._earlier += self._done
            self._done = done
            record["step"] = self._earlier + done
            return
        epoch, epochs = int(shown.group("epoch")), shown.group("epochs")
        if self._first is None or epoch == 0:
            # Without a total, a loop of the user starts at 1, and a later number is Lightning's.
            self._first = int(epoch == 1 or (epoch > 0 and epochs is not None))
        record["epoch"] = epoch - self._first + 1
        record["step"] = (epoch - self._first) * total + done
        if epochs is not None:
            # Some loops count from 0 up to the number of epochs, others to one less.
            record["epochs"] = max(int(epochs), record["epoch"])
            record["steps"] = record["epochs"] * total


def is_vague(record: Progress) -> bool:
    """Return whether only the word "train" shows that a record is one of training."""
    certain = {"epoch", "batch", "loss", "approximate"}
    return record.get("source") == "console" and certain.isdisjoint(record)


def _is_training(label: str, unit: str) -> bool:
    """Return whether a bar without an epoch and a loss is one of training."""
    trains = _TRAINS.search(label) and not _PREPARES.search(label)
    return bool(trains and _STEPS.fullmatch(unit))


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
