"""Derives progress records from the output of Keras 2 (tf-keras) and 3, and from bars of tqdm.

``fit``, ``evaluate`` and ``predict`` print, as far as it matters here:

* ``Epoch 2/5`` on a separate line, only if there is more than one epoch;
* with ``verbose=1``, a bar for each update, with a newline only after the last one. A bar begins
  with as many backspaces as the previous bar was wide and a carriage return, so a first bar has no
  backspaces. Other output follows a bar directly: ``loss: 0.6640WARNING:``;
* with ``verbose=2``, one line at the end of an epoch;
* numbers with exactly four decimals, so that their end is known whatever follows.

During an epoch, ``fit`` and ``evaluate`` of Keras 2 show sums over the replicas: if several workers
train together (MultiWorkerMirroredStrategy), each value is the true one times the number of
replicas, for any metric. At the end of the epoch, Keras computes and prints the true value. A
``train_step`` that returns tensors, ``model.distribute_reduction_method`` and a bar of a custom
loop (``tf.keras.utils.Progbar``) are scaled differently. See ``ConsoleParser``.
"""

import math
import re
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Sequence, Set, Tuple

from . import log_shapes, loop_bars
from .gpus import device_nodes
from .log_shapes import CONTROLS, ESCAPES
from .progress_records import Progress

#: Bytes of a line to keep; the rest is ignored.
_MAX_LINE = 16384
_MAX_LAST_LINE = 200

_BREAKS = re.compile(rb"([\x08\r\n]+)")
_EPOCH = re.compile(log_shapes.EPOCH, re.ASCII)
_BAR = re.compile(log_shapes.KERAS_BAR)
_PER_STEP = re.compile(r"([0-9]{1,9})(us|ms|s)/(\w+)")
_NUMBER = re.compile(r"-?(?:[0-9]+\.[0-9]{4}(?:e[+-][0-9][0-9])?|inf|nan)")
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}

#: A line of TensorFlow's C++ code, or a part of one that has several.
_FRAMEWORK = re.compile(
    log_shapes.logged("([IWEF])")
    + "|WARNING: All log messages before absl|%s|%s|" % (log_shapes.ADVICE, log_shapes.GLOO)
    + r"/job:\w+/replica:\d+/task:\d+\s*$"
)

#: An ``evaluate`` takes at most this part of the time of ``fit`` per step: it has no gradients.
_FASTER = 0.6

#: Remaining seconds from which Keras 2's estimate, in whole seconds, is exact enough for a rate.
_GOOD_ETA = 10


def is_of_framework(line: str, errors: bool = True) -> bool:
    """Return whether TensorFlow's C++ code logged a line; without ``errors``, ignore its errors."""
    match = _FRAMEWORK.match(line)
    return match is not None and (errors or not {"E", "F"} & set(match.groups()))


def is_unfinished_bar(line: str) -> bool:
    """Return whether a line is a bar of Keras 2 during an epoch, whose values may be sums."""
    bar = _BAR.match(line.strip("\b "))
    return bar is not None and _is_within_epoch(bar)


def last_line(log: bytes) -> str:
    """Return the last line that a script itself printed, up to 200 characters.

    Lines of TensorFlow, unfinished bars and empty lines are skipped, and escape sequences removed.
    """
    for line in reversed(_BREAKS.split(log)[::2]):  # without the breaks
        text = ESCAPES.sub(b"", line[:_MAX_LINE]).strip().decode("utf-8", "replace")
        if text and not is_of_framework(text) and not is_unfinished_bar(text):
            return CONTROLS.sub("", text).strip()[:_MAX_LAST_LINE]
    return ""


def may_sum_replicas(tf_config: Optional[Mapping[str, Any]], gpus: Optional[Sequence[str]]) -> bool:
    """Return whether Keras 2 may show sums over several replicas in the output of a rank.

    Args:
        tf_config: the rank's TF_CONFIG.
        gpus: the rank's GPUs; None if it sees all of the machine.
    """
    config = tf_config or {}
    cluster, task = config.get("cluster", {}), config.get("task", {})
    training = sum(len(cluster.get(name, ())) for name in ("chief", "worker"))
    if training > 1 and task.get("type") != "evaluator":
        return True
    if gpus is None:
        gpus = device_nodes()
    return len(gpus) > 1


class _Bar:
    """One progress bar of Keras, with its updates."""

    def __init__(self, hidden: bool) -> None:
        self.hidden = hidden  # a bar that counts the bytes of a download
        self.batch = 0  # the last batch that it showed
        self.total: Optional[int] = None  # number of batches, None while unknown to Keras
        self.done = False  # all batches and a newline seem to be written
        #: The first number of batches and the names of metrics, once it has any.
        self.kind: Optional[Tuple[Optional[int], FrozenSet[str]]] = None
        self.follows_fit = False  # the last bar before it was that of ``fit``
        #: The time of a step, which Keras rounds to a whole number of s, ms or us.
        self.min_step_time, self.max_step_time = 0.0, math.inf
        self.within: Dict[str, float] = {}  # the last values during its epoch
        self.within_at = 0  # and their batch

    def note_step_time(self, seconds: float) -> None:
        """Note the time of a step as it was printed."""
        error = 0.5 * (1.0 if seconds >= 1 else 1e-3 if seconds >= 1e-3 else 1e-6)
        self.min_step_time, self.max_step_time = seconds - error, seconds + error


class ConsoleParser:
    """Converts the log of an attempt to progress records (without ``t``) as its bytes arrive.

    ``step`` and ``steps`` count the batches of all epochs, and of all calls of ``fit``. While the
    length of an epoch is unknown, ``steps`` is absent, and ``step`` counts only the first epoch.
    The last record of an epoch has the ``val_`` metrics.

    Keras does not print phases. A bar after an ``Epoch`` line is training. Without such a line (a
    single epoch), the first bar with metrics and any bar with ``val_`` metrics are training. Other
    bars are evaluating if they have metrics, and predicting if not.

    A script may also call ``fit`` again and again, for one epoch each, without any ``Epoch`` line.
    A further bar with the same number of batches and the same metrics as the first one is then
    another ``fit``, if a bar of another kind was between them. If it follows a ``fit`` directly, it
    may be an ``evaluate`` of the same data, and the first such bar is shown as evaluating. The next
    equal bar is training in any case, as two such ``evaluate`` in sequence are rare. It tells what
    the bar before it was. That was an ``evaluate``, and so are all later ones at this place, if it
    had no ``val_`` metrics although ``fit`` had, if its length was another one, or if its steps
    were clearly faster than those of ``fit`` before and after it. Otherwise it was a ``fit``, whose
    steps are added then, and later ones at this place are training. This is wrong for a script that
    alternates both with the same data and speed: its ``evaluate`` counts as steps. The opposite
    choice would show most loops over ``fit`` as evaluating, without any further step.

    Bars of tqdm count as long as no bar of Keras is training. An ``Epoch`` line is then one of the
    script itself.

    If ``may_sum`` is true, Keras 2 may show sums over replicas during an epoch. A record then has
    ``loss`` and ``metrics`` only for the values of a whole epoch. Values during an epoch are
    ``approximate``: divided by a scale, or left out while the scale is unknown. The scale of a
    value is known once the bar of the last batch was shown twice, during the epoch and at its end.
    It is the only integer for which the two values agree in all digits. If the scale is 1 for all
    values of a bar, they are used like the values at the end of the epoch.
    """

    def __init__(self, may_sum: bool = False) -> None:
        self._may_sum = may_sum
        self._scales: Dict[str, Dict[str, int]] = {}  # of values during an epoch, by phase
        self._text = b""  # the current line, and the characters between it and the previous one
        self._breaks: Set[str] = set()
        self._epoch = 0
        self._epochs = 0  # 0: no training so far
        self._total: Optional[int] = None  # batches of an epoch
        self._base = 0  # steps of earlier calls of fit
        self._step: Optional[int] = None
        self._epoch_line = False  # the next bar is training
        self._fits = False  # a bar was training
        self._latest: Optional[_Bar] = None
        #: For calls of ``fit`` without ``Epoch`` lines: the kind of their bars, the bar after one
        #: that may be another one, whether it is (None: unknown), and whether they validate.
        self._kind: Optional[Tuple[Optional[int], FrozenSet[str]]] = None
        self._doubtful: Optional[_Bar] = None
        self._repeats: Optional[bool] = None
        self._validates = False
        self._download_line = False
        self._fit: Optional[_Bar] = None
        self._other: Optional[_Bar] = None
        self._full: Optional[_Bar] = None  # done, if a newline is next
        self._loops = loop_bars.LoopBars()

    def feed(self, data: bytes) -> List[Progress]:
        """Add the next bytes of the log, split anywhere; return the records that they complete."""
        records: List[Progress] = []
        parts = _BREAKS.split(data)  # text, break, text, ..., text
        self._text = (self._text + parts[0])[:_MAX_LINE]
        for breaks, text in zip(parts[1::2], parts[2::2]):
            if self._text:
                record = self._line(self._text)
                if record is not None:
                    records.append(record)
                self._breaks = set()
            self._breaks.update(breaks.decode())
            self._text = text[:_MAX_LINE]
        return records

    def _line(self, text: bytes) -> Optional[Progress]:
        """Return the progress record of a line, or None if it shows no progress."""
        if self._full is not None:
            self._full.done = "\n" in self._breaks
            self._full = None
        line = ESCAPES.sub(b"", text).strip().decode("utf-8", "replace")
        bar, epoch = _BAR.match(line), _EPOCH.fullmatch(line)
        if bar:
            return self._progress(bar, line[bar.end() :])
        record = self._loops.line(line) if not self._fits else None
        if record is not None:
            self._epoch_line = False  # the epoch is one of a loop, and not of ``fit``
            return record
        if epoch and (self._fits or not self._loops.count_from_0):
            self._kind = None
            self._begin_epoch(int(epoch.group("epoch")), int(epoch.group("epochs")))
            return self._record("training")
        self._download_line = self._download_line or line.startswith("Downloading data from ")
        return None

    def _begin_epoch(self, epoch: int, epochs: int) -> None:
        """Begin an epoch; the first one begins a new call of ``fit``."""
        if epoch == 1:
            self._base = self._step or 0
            self._total = None
        self._epoch, self._epochs = epoch, epochs
        self._epoch_line, self._fit, self._other = True, None, None

    def _progress(self, match: "re.Match[str]", rest: str) -> Optional[Progress]:
        """Return the record of a bar; ``rest`` is the text after the time."""
        batch = int(match.group("batch"))
        total = int(match.group("total")) if match.group("total") else None
        metrics, seconds_per_step = _fields(rest)
        bar = self._bar(batch, total, single=match.group("dash") is not None and total is not None)
        bar.batch, bar.total = batch, total
        self._full = bar if batch == total else None
        if bar.hidden:
            return None
        if seconds_per_step is not None:
            bar.note_step_time(seconds_per_step)
        if metrics and self._begins_fit(bar, metrics):
            self._begin_epoch(1, 1)
            self._epoch_line, self._fit = False, bar

        self._latest = bar
        if bar is self._fit:
            self._fits = True
            if batch == total and seconds_per_step is not None:
                self._settle(bar, is_next=True)
            if self._other is not None and self._other is self._doubtful:
                self._doubtful = None
            self._other = None  # a nested bar has ended when the outer one continues
            self._total = total or self._total
            if self._total is not None:
                self._step = self._base + (self._epoch - 1) * self._total + batch
            elif self._epoch == 1:
                self._step = self._base + batch
            record = self._record("training")
        else:
            record = self._record("evaluating" if metrics else "predicting")
        record["batch"] = batch
        if total is not None:
            record["batches"] = total
        if self._may_sum:
            if _is_within_epoch(match):
                bar.within, bar.within_at = metrics, batch
                metrics = self._within_epoch(record, metrics)
            elif bar.within_at == batch:
                self._learn_scales(record["phase"], bar.within, metrics)
        if "loss" in metrics:
            record["loss"] = metrics.pop("loss")
        if metrics:
            record["metrics"] = dict(metrics)
        rate = _rate(match, seconds_per_step, (total or 0) - batch)
        if rate is not None:
            record["steps_per_s"] = rate
        return record

    def _begins_fit(self, bar: _Bar, metrics: Mapping[str, float]) -> bool:
        """Return whether a bar with metrics begins a call of ``fit`` without an ``Epoch`` line."""
        is_first_time = bar.kind is None
        if bar.kind is None:
            bar.kind = bar.total, frozenset(metrics)
        validates = any(name.startswith("val_") for name in metrics)
        if self._kind is not None and validates:
            self._validates = True
            if bar is self._doubtful:
                self._doubtful, self._repeats = None, True
        if bar is self._fit or not is_first_time:
            return validates and bar is not self._fit
        if not self._epochs and not self._loops.train:
            self._kind = bar.kind
            self._validates = validates
            return True
        if validates:
            return True
        before = self._fit
        if bar.kind != self._kind or before is None or before.batch != before.total:
            return False
        if bar.follows_fit and not self._repeats:
            self._doubtful = bar
            return False
        self._settle(before, is_next=False)
        return True

    def _settle(self, fit: _Bar, is_next: bool) -> None:
        """Find out whether the doubtful bar was a ``fit``, from the one before it or the next."""
        other = self._doubtful
        if other is None or self._repeats is not None or other.batch != other.total:
            return
        if self._validates or other.total != fit.total:
            self._repeats = False
        elif other.max_step_time < _FASTER * fit.min_step_time:
            self._repeats = False if is_next else None
        else:
            self._repeats = True
            self._base += other.batch
            self._step = (self._step or 0) + other.batch

    def _within_epoch(self, record: Progress, shown: Dict[str, float]) -> Dict[str, float]:
        """Add values from within an epoch to ``record``, if their scales are known.

        They are added as ``approximate``, and the result is empty. If no value needs scaling,
        return all values instead.
        """
        scales = self._scales.get(record["phase"], {})
        if all(scales.get(name) == 1 for name in shown):
            return dict(shown)
        approximate = {}
        for name, value in shown.items():
            if not math.isfinite(value):
                approximate[name] = value
            elif name in scales:
                approximate[name] = float("%.4g" % (value / scales[name]))
        if approximate:
            record["approximate"] = dict(approximate)
        return {}

    def _learn_scales(self, phase: str, within: Dict[str, float], final: Dict[str, float]) -> None:
        """Learn scales from values of the same batches, shown during an epoch and at its end."""
        scales = self._scales.setdefault(phase, {})
        for name in within.keys() & final.keys():
            if not (math.isfinite(within[name]) and math.isfinite(final[name])):
                continue
            scale = _scale(within[name], final[name])
            if scale is not None:
                scales[name] = scale
            elif name in scales and not _agree(within[name], final[name], scales[name]):
                del scales[name]

    def _bar(self, batch: int, total: Optional[int], single: bool) -> _Bar:
        """Return the bar that a line updates, or a new one; ``single`` means ``verbose=2``."""
        plain = self._breaks <= {"\n"}
        if not single and ("\b" in self._breaks or plain):
            bars = [bar for bar in (self._other, self._fit) if bar is not None]
            fitting = [bar for bar in bars if bar.total in (None, total) and batch >= bar.batch]
            for bar in fitting:
                if not bar.done:
                    return bar
            # A newline of other output made it seem done. After a nested bar, which has its own
            # newline, the training bar continues with backspaces.
            for bar in fitting if plain else reversed(fitting):
                if batch == bar.batch:
                    return bar
        bar = _Bar(hidden=self._download_line and not self._epoch_line)
        bar.follows_fit = self._latest is not None and self._latest is self._fit
        self._download_line = False
        if self._epoch_line:
            self._epoch_line, self._fit = False, bar
        else:
            self._other = bar
        return bar

    def _record(self, phase: str) -> Progress:
        """Return a record with the current step and epoch."""
        record: Progress = {"source": "console", "phase": phase}
        if self._step is not None:
            record["step"] = self._step
        if self._epochs:
            record["epoch"], record["epochs"] = self._epoch, self._epochs
            if self._total is not None:
                record["steps"] = self._base + self._epochs * self._total
        return record


def _is_within_epoch(bar: "re.Match[str]") -> bool:
    """Return whether a bar is from Keras 2 during an epoch; Keras 3 shows means over replicas."""
    return bool(bar.group("eta") or (bar.group("total") is None and bar.group("dash")))


def _fields(rest: str) -> Tuple[Dict[str, float], Optional[float]]:
    """Return the metrics and the seconds per step in ``rest``, the text after a progress bar.

    Stop at the first text that is neither.
    """
    metrics: Dict[str, float] = {}
    seconds_per_step: Optional[float] = None
    for field in rest.split(" - "):
        name, colon, value = field.partition(": ")
        number = _NUMBER.match(value) if colon else None
        if number:
            metrics[name] = float(number.group())
            if value[number.end() :].strip():
                break
        elif field.strip():
            per_step = _PER_STEP.match(field.strip())
            if per_step is None:
                break
            if per_step.group(3).startswith("step"):
                seconds_per_step = int(per_step.group(1)) * _UNITS[per_step.group(2)]
    return metrics, seconds_per_step


def _error(printed: float) -> float:
    """Return the maximum rounding error of a printed number."""
    if abs(printed) > 1e-3 or not printed:
        return 0.5e-4
    return 0.5e-4 * 10.0 ** math.floor(math.log10(abs(printed)))


def _agree(shown: float, final: float, scale: int) -> bool:
    """Return whether ``shown`` is ``scale`` times ``final``, in all printed digits."""
    error = 1.001 * (_error(shown) + scale * _error(final))
    return abs(shown - scale * final) <= error


def _scale(shown: float, final: float) -> Optional[int]:
    """Return the only integer by which ``final`` can be multiplied to get ``shown``, or None."""
    if not final:
        return None
    scale = round(shown / final)
    is_only_one = 2.002 * (_error(shown) + scale * _error(final)) < abs(final)
    return scale if scale > 0 and is_only_one and _agree(shown, final, scale) else None


def _rate(
    match: "re.Match[str]", seconds_per_step: Optional[float], steps_to_go: int
) -> Optional[float]:
    """Return the steps per second that a bar shows, to four significant digits, or None."""
    if seconds_per_step:
        return float("%.4g" % (1 / seconds_per_step))
    if match.group("eta") and steps_to_go > 0:
        hours, minutes, seconds = (int(match.group(name) or 0) for name in ("h", "m", "s"))
        to_go = 3600 * hours + 60 * minutes + seconds + int(match.group("seconds") or 0)
        if to_go >= _GOOD_ETA:
            return float("%.4g" % (steps_to_go / to_go))
    return None
