"""Merges the script's environment on a host from all precedence levels at which it is set."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from train.gang.variables.typed_values import Written, at, kind_of, text_of

#: Returns where a value is set, such as ``hosts.yml:4``, or an empty string if unknown.
Where = Callable[[Any], str]


@dataclass(frozen=True)
class Sources:
    """Functions that read the values of one host's variables."""

    template: Callable[[Any], Any]
    written: Written
    where: Where


def merge(levels: Sequence[Any], sources: Sources) -> tuple[dict[str, str], list[str]]:
    """Return the script's environment on a host, and problems with its values.

    The environment is merged from the values at all ``levels``. A later level overrides earlier
    ones.
    """
    found: dict[str, str] = {}
    problems: list[str] = []
    for level in levels:
        values = sources.template(level) if isinstance(level, str) else level
        if values is None:  # all lines are commented out
            continue
        if not isinstance(values, Mapping):
            problems.append(
                f"is {kind_of(values)}{at(sources.where(level))}, expected a dictionary of "
                "NAME: VALUE"
            )
            continue
        for name, raw in values.items():
            place = sources.where(raw) or sources.where(name) or sources.where(level)
            wrong_name = _wrong_name(name)
            if wrong_name:
                problems.append(f"{wrong_name}{at(place)}")
                continue
            value = raw if isinstance(raw, (bool, int, float)) else sources.template(raw)
            try:
                found[str(name)] = text_of(value, sources.written)
            except ValueError as error:
                found.pop(str(name), None)
                problems.append(f"sets {name} to {error}{at(place)}, {_remedy(name, value)}")
    return found, list(dict.fromkeys(problems))


def _wrong_name(name: Any) -> str:
    if not isinstance(name, str):
        return (
            f"has a key that YAML reads as {json.dumps(name, default=str)}, {kind_of(name)}; "
            "expected the name of an environment variable: quote the key"
        )
    if not name or "=" in name or "\0" in name:
        return (
            f"has the key {str(name)!r}: the name of an environment variable cannot contain '=' "
            "or NUL"
        )
    return ""


def _remedy(name: Any, value: Any) -> str:
    if isinstance(value, str):
        return "which environment variables cannot contain: remove the character"
    if isinstance(value, bool):
        return (
            "expected a string or a number: write the value that the script expects in quotes, "
            f'such as {name}: "1"'
        )
    if value is None:
        return f'expected a string or a number: remove the line, or set {name}: ""'
    if isinstance(value, (Mapping, list, tuple)):
        return f"expected a string or a number: quote the value, such as {name}: '{{\"a\": 1}}'"
    return f'expected a string or a number: quote the value, such as {name}: "..."'


def differing(environments: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the names of variables that differ between environments."""
    names = sorted({name for environment in environments for name in environment})
    return [name for name in names if len({one.get(name) for one in environments}) > 1]
