"""Converts values of variables to their expected types, to text, and to words for messages."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

#: Names of the specifications' types in messages.
_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a string",
    "path": "a path",
    "list": "a list",
    "dict": "a dictionary",
}
_TRUE, _FALSE = ("yes", "on", "1", "true", "y", "t"), ("no", "off", "0", "false", "n", "f")
#: Maximum characters of a value in a message.
LONGEST = 60

#: Returns how a value was written in its file, or None if unknown.
Written = Callable[[Any], str | None]


@dataclass(frozen=True)
class Option:
    """A variable, from the role's specification."""

    kind: str
    choices: tuple[Any, ...]
    least: float | None
    secret: bool
    for_rank: bool  # may differ between the ranks of a job


def kind_of(value: Any) -> str:
    """Return the name of a value's type for a message."""
    names = (
        (type(None), "null"),
        (bool, "a boolean"),
        (int, "a whole number"),
        (float, "a number"),
        (str, "a string"),
        ((datetime.date, datetime.time), "a date"),
        (bytes, "binary data"),
        (Mapping, "a dictionary"),
        ((list, tuple), "a list"),
        ((set, frozenset), "a set"),
    )
    return next((name for kind, name in names if isinstance(value, kind)), type(value).__name__)


def shown(value: Any) -> str:
    """Return a value and its type for a message."""
    if value is None:
        return "null"
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError):
        text = str(value)
    return f"{kind_of(value)}, {text if len(text) <= LONGEST else text[:LONGEST] + '...'}"


def at(place: str) -> str:
    """Return a place in parentheses for a message, or an empty string if the place is unknown."""
    return f" ({place})" if place else ""


def text_of(value: Any, written: Written) -> str:
    """Return a value as text for the script. Numbers and dates appear as they were written.

    Raise ValueError if a value cannot be text for the script. Its message names the value's type.
    """
    if isinstance(value, str):
        if "\0" in value:
            raise ValueError("a string with a NUL character")
        return str(value)
    if isinstance(value, (int, float, datetime.date)) and not isinstance(value, bool):
        return written(value) or str(value)
    raise ValueError(kind_of(value))


def converted(value: Any, option: Option) -> Any:
    """Return a value converted to its variable's type.

    Raise ValueError if that is impossible or the value is not allowed. Its message names the
    expected type.
    """
    expected = _EXPECTED.get(option.kind, "")
    if option.choices:
        expected = f"one of {', '.join(map(str, option.choices))}"
    elif option.least is not None:
        expected += f" of {option.least:g} or more"
    found = _as_type(value, option.kind)
    if found is None or (option.choices and found not in option.choices):
        raise ValueError(expected)
    if option.least is not None and found < option.least:
        raise ValueError(expected)
    return found


def _as_type(value: Any, kind: str) -> Any:
    """Return a value converted to the type ``kind``, or None if that is impossible."""
    if kind == "raw":
        return value
    if kind in ("int", "float"):
        return _number(value, kind)
    if kind == "bool":
        text = str(value).strip().lower()
        return True if text in _TRUE else False if text in _FALSE else None
    if kind in ("str", "path"):
        is_text = isinstance(value, (str, int, float, datetime.date))
        return str(value) if is_text and not isinstance(value, bool) else None
    if kind == "list":
        items = [value] if isinstance(value, str) else value
        is_list = isinstance(items, (list, tuple))
        return list(items) if is_list and all(isinstance(i, str) for i in items) else None
    return value if isinstance(value, Mapping) else None


def _number(value: Any, kind: str) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        if kind == "int" and isinstance(value, (int, str)) and "." not in str(value):
            return int(value)
        number = float(value)
    except (ValueError, OverflowError):
        return None
    if kind == "int":
        return int(number) if number.is_integer() else None
    return number if math.isfinite(number) else None
