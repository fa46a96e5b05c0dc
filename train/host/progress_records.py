"""Progress records of a rank, described in docs/formats.md."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Dict, List, Optional, Tuple, TypedDict, Union

from .plain_text import clean, note
from .rank_environment import ENV_PROGRESS

#: Limits of one progress record: characters, metrics, and the size of a number.
MAX_LINE = 65_536
MAX_NAME = 100
MAX_TEXT = 500
MAX_METRICS = 200
MAX_NUMBER = 1e300
MAX_COUNT = 2**53

#: Texts for NaN and infinities, which strict JSON does not support.
NOT_FINITE = ("NaN", "Infinity", "-Infinity")


class Progress(TypedDict, total=False):
    """A progress record; see ``ProgressWriter``. Numbers may be one of NOT_FINITE."""

    t: float
    phase: str
    source: str
    step: int
    steps: int
    epoch: int
    epochs: int
    batch: int
    batches: int
    loss: Union[float, str]
    metrics: Dict[str, Union[float, str]]
    approximate: Dict[str, Union[float, str]]
    step_time: Dict[str, Union[float, str]]
    examples_per_s: Union[float, str]
    steps_per_s: Union[float, str]
    memory_mb: Union[float, str]
    weights_sha256: str
    checkpoints: str


def _number(name: str, value: Any) -> Any:
    if value in NOT_FINITE:
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("%s is not a number" % name)
    if value != value or abs(value) > MAX_NUMBER:
        raise ValueError("%s is out of range" % name)
    return value


def _numbers(name: str, value: Any) -> Dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("%s is not an object of numbers" % name)
    if len(value) > MAX_METRICS:
        raise ValueError("%s has %d entries; the limit is %d" % (name, len(value), MAX_METRICS))
    names = {clean(key, MAX_NAME): number for key, number in value.items() if number is not None}
    return {key: _number("%s.%s" % (name, key), number) for key, number in names.items()}


def _count(name: str, value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
        raise ValueError("%s is not a non-negative integer" % name)
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("%s is not a string" % name)
    return clean(value, MAX_TEXT)


_PROGRESS_FIELDS = {
    **dict.fromkeys(("t", "loss", "examples_per_s", "steps_per_s", "memory_mb"), _number),
    **dict.fromkeys(("step", "steps", "epoch", "epochs", "batch", "batches"), _count),
    **dict.fromkeys(("phase", "source", "weights_sha256", "checkpoints"), _text),
    **dict.fromkeys(("metrics", "approximate", "step_time"), _numbers),
}


def check_progress(value: Any) -> Progress:
    """Return the known fields of a progress record. Raise ValueError if it is invalid."""
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    found = Progress()
    for name, check in _PROGRESS_FIELDS.items():
        if value.get(name) is not None:
            found[name] = check(name, value[name])  # type: ignore[literal-required]
    return found


def read_progress(text: str) -> Tuple[List[Progress], List[Tuple[int, str]]]:
    """Return the progress records in ``text`` (JSON lines), and the errors in it.

    NaN and infinities are returned as one of NOT_FINITE. An error is the index of a line, from 0,
    and a message.
    """
    found, wrong = [], []
    for place, line in enumerate(text.split("\n")):
        if not line.strip():
            continue
        try:
            if len(line) > MAX_LINE:
                raise ValueError("it has %d characters; the limit is %d" % (len(line), MAX_LINE))
            found.append(check_progress(json.loads(line, parse_constant=str)))
        except json.JSONDecodeError:
            wrong.append((place, "it is not valid JSON"))
        except RecursionError:
            wrong.append((place, "it is nested too deeply"))
        except ValueError as error:
            wrong.append((place, str(error)))
    return found, wrong


def parse_progress(text: str) -> List[Progress]:
    """Return the progress records in ``text`` (JSON lines), without invalid lines."""
    return read_progress(text)[0]


def with_earlier(record: Progress, earlier: Progress) -> Progress:
    """Return a progress record with its missing fields filled in from an ``earlier`` one.

    Fields of records from the console and of records from the script are not mixed, and
    ``approximate`` is not carried over.
    """
    if record.get("source") != earlier.get("source"):
        return record
    both: Progress = {**earlier, **record}
    if "approximate" not in record:
        both.pop("approximate", None)
    return both


def is_whole(record: Progress) -> bool:
    """Return whether the metrics of a record are final.

    Those that a script writes always are, and so are those of bars of its own loops, which have no
    ``batch``. Those of Keras' bars are final at the end of an epoch.
    """
    if record.get("source") != "console" or "batch" not in record:
        return True
    return record["batch"] == record.get("batches")


class ProgressWriter:
    """Appends progress records to ``path``, by default the file in TRAIN_PROGRESS_FILE.

    If neither is set, nothing is written. Records that follow one of the same phase within
    ``min_interval`` seconds are dropped, unless ``force`` is given. Records that cannot be written,
    for example on a full disk, are dropped as well. Only the first such error is reported, as a
    warning, and later records are still tried.
    """

    def __init__(self, path: Optional[str] = None, min_interval: float = 0.5) -> None:
        self.path = path if path is not None else os.environ.get(ENV_PROGRESS)
        self.min_interval = min_interval
        self._last = float("-inf")
        self._phase: Optional[str] = None
        self._is_cut = False  # the last record may be incomplete
        self._has_warned = False

    def due(self, phase: Optional[str] = None) -> bool:
        """Return whether a record would be written now."""
        is_late = time.monotonic() - self._last >= self.min_interval
        return bool(self.path) and (phase != self._phase or is_late)

    def write(self, phase: str, force: bool = False, **fields: Any) -> None:
        """Append a record if it is ``due``, or with ``force``.

        Raise TypeError if a field cannot be converted to JSON.
        """
        if not self.path or not (force or self.due(phase)):
            return
        self._last, self._phase = time.monotonic(), phase
        record = dict(fields, t=round(time.time(), 3), phase=phase)
        line = json.dumps(record, sort_keys=True) + "\n"
        try:
            self._append(self.path, "\n" + line if self._is_cut else line)
            self._is_cut = False
        except OSError as error:
            self._is_cut = True
            if not self._has_warned:
                self._has_warned = True
                text = "warning: cannot write %s: %s; records are lost until that succeeds"
                note(text % (os.path.basename(self.path), error))

    @staticmethod
    def _append(path: str, text: str) -> None:
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(text)
