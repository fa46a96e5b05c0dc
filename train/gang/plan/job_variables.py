"""The role's variables as users write them, checked by name before anything starts: types and
limits, the script's environment and arguments as text, and what must be the same for all hosts.

A message names the variable, its host, the file and line where it is set, the value and its type,
what is expected, and what to do. Values of the script's environment are in none of them.
"""

from __future__ import annotations

import contextlib
import datetime
import difflib
import functools
import json
import math
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from train.gang import REPOSITORY
from train.gang.plan.ranks import PlanError

ENVIRONMENT = "train_job_environment"
ARGUMENTS = "train_job_args"
#: The place of a role's default, which is right: its templates are not filled in.
DEFAULT = "the default"
_ROLE = REPOSITORY / "roles/train_job"
#: How a description gives the limit of a number.
_LEAST = re.compile(r"At least ([\d.]+)\.")
#: What the types of the specifications are called.
_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "path": "a path",
    "list": "a list",
    "dict": "a dictionary",
}
_TRUE, _FALSE = ("yes", "on", "1", "true", "y", "t"), ("no", "off", "0", "false", "n", "f")
#: The longest value that a message repeats.
_LONGEST = 60

#: Returns how a value was written in its file, None if that is not known.
Written = Callable[[Any], str | None]
#: Returns where a value is set, such as ``hosts.yml:4``; empty if that is not known.
Where = Callable[[Any], str]


@dataclass(frozen=True)
class Option:
    """A variable, from the role's specification."""

    kind: str
    choices: tuple[Any, ...]
    least: float | None
    secret: bool
    for_rank: bool  # it may differ between the ranks of a gang


@dataclass(frozen=True)
class Sources:
    """How values of one host's variables are read."""

    template: Callable[[Any], Any]
    written: Written
    where: Where


def _read(name: str) -> Any:
    """Return what a YAML file of the role holds."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast
    return yaml.load((_ROLE / name).read_text(encoding="utf-8"), loader)


@functools.cache
def options() -> tuple[dict[str, Option], set[str]]:
    """Return the variables of the role's entry point ``main``, and the names of all entry points'
    variables.
    """
    entries = _read("meta/argument_specs.yml")["argument_specs"]
    for_rank = set(_read("vars/main.yml")["__train_job_rank_variables"])
    known: dict[str, Option] = {}
    for name, spec in entries["main"]["options"].items():
        found = _LEAST.search(str(spec["description"]))
        known[name] = Option(
            spec["type"],
            tuple(spec.get("choices", ())),
            float(found[1]) if found else None,
            bool(spec.get("no_log")),
            name in for_rank,
        )
    return known, {name for entry in entries.values() for name in entry["options"]}


def kind_of(value: Any) -> str:
    """Return what a value is called in a message."""
    names = (
        (type(None), "null"),
        (bool, "a boolean"),
        (int, "a whole number"),
        (float, "a number"),
        (str, "a text"),
        ((datetime.date, datetime.time), "a date"),
        (bytes, "binary data"),
        (Mapping, "a dictionary"),
        ((list, tuple), "a list"),
        ((set, frozenset), "a set"),
    )
    return next((name for kind, name in names if isinstance(value, kind)), type(value).__name__)


def _shown(value: Any) -> str:
    """Return a value for a message, with its type."""
    if value is None:
        return "null"
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError):
        text = str(value)
    return f"{kind_of(value)}, {text if len(text) <= _LONGEST else text[:_LONGEST] + '...'}"


def text_of(value: Any, written: Written) -> str:
    """Return the text of a value for the script: numbers and dates as they were written. ValueError
    names the type of a value that has no such text.
    """
    if isinstance(value, str):
        if "\0" in value:
            raise ValueError("a text with a NUL character")
        return str(value)
    if isinstance(value, (int, float, datetime.date)) and not isinstance(value, bool):
        return written(value) or str(value)
    raise ValueError(kind_of(value))


@dataclass(frozen=True)
class Given:
    """What the variables of one host give to a job."""

    names: list[str]  # of all its variables
    values: Mapping[str, Any]  # of the role
    places: Mapping[str, str]  # where each is set
    environment: tuple[dict[str, str], list[str]]  # and what is wrong with it
    problems: list[str]  # with templates


# --- the script's environment


def environment(levels: Sequence[Any], sources: Sources) -> tuple[dict[str, str], list[str]]:
    """Return the script's environment on a host, merged over all ``levels`` at which it is set, the
    lowest first, and what is wrong with it.
    """
    found: dict[str, str] = {}
    problems: list[str] = []
    for level in levels:
        values = sources.template(level) if isinstance(level, str) else level
        if values is None:  # all of its lines are comments
            continue
        if not isinstance(values, Mapping):
            problems.append(
                f"is {kind_of(values)}{_at(sources.where(level))}, expected a dictionary of "
                "NAME: VALUE"
            )
            continue
        for name, raw in values.items():
            place = sources.where(raw) or sources.where(name) or sources.where(level)
            wrong_name = _wrong_name(name)
            if wrong_name:
                problems.append(f"{wrong_name}{_at(place)}")
                continue
            value = raw if isinstance(raw, (bool, int, float)) else sources.template(raw)
            try:
                found[str(name)] = text_of(value, sources.written)
            except ValueError as error:
                found.pop(str(name), None)
                problems.append(f"sets {name} to {error}{_at(place)}, {_remedy(name, value)}")
    return found, list(dict.fromkeys(problems))


def _wrong_name(name: Any) -> str:
    if not isinstance(name, str):
        return (
            f"has a name that YAML reads as {json.dumps(name, default=str)}, {kind_of(name)}; "
            "expected the name of an environment variable: quote it"
        )
    if not name or "=" in name or "\0" in name:
        return f"has the name {str(name)!r}: the name of an environment variable has no '=' or NUL"
    return ""


def _remedy(name: Any, value: Any) -> str:
    if isinstance(value, str):
        return "which no environment variable can hold: remove it"
    if isinstance(value, bool):
        return f'expected text or a number: quote it as the script expects it, {name}: "1"'
    if value is None:
        return f'expected text or a number: leave it out, or set {name}: ""'
    if isinstance(value, (Mapping, list, tuple)):
        return f"expected text or a number: quote it, such as {name}: '{{\"a\": 1}}'"
    return f'expected text or a number: quote it, {name}: "..."'


def _at(place: str) -> str:
    return f" ({place})" if place else ""


def differing(environments: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the names of variables that are not the same in all environments."""
    names = sorted({name for environment in environments for name in environment})
    return [name for name in names if len({one.get(name) for one in environments}) > 1]


# --- the script's arguments


def arguments(value: Any, written: Written) -> list[str]:
    """Return the script's arguments from a list, or from a string, which is split as a shell splits
    it. ValueError says what is wrong.
    """
    if value is None:
        return []
    if isinstance(value, str):
        return _split(value)
    if not isinstance(value, (list, tuple)):
        raise ValueError(
            f"is {_shown(value)}, expected a list or a string: "
            'give it as [--steps, "3"] or as "--steps 3"'
        )
    found = []
    for number, item in enumerate(value, 1):
        try:
            found.append(text_of(item, written))
        except ValueError as error:
            raise ValueError(
                f"has {error} as item {number}, {_shown(item)}; expected text or a number: quote it"
            ) from None
    return found


def _split(text: str) -> list[str]:
    if "\0" in text:
        raise ValueError("is a text with a NUL character, which no argument can hold")
    if text.lstrip()[:1] == "[":  # as -e train_job_args='[--steps, 3]' arrives
        try:
            loaded = yaml.load(text, yaml.BaseLoader)
        except yaml.YAMLError:
            loaded = None
        if isinstance(loaded, list) and all(isinstance(item, str) for item in loaded):
            return loaded
    try:
        return shlex.split(text.replace("\\\n", ""))
    except ValueError as error:
        raise ValueError(
            f"is {_shown(text)}, which cannot be split as a shell does ({error}): close the "
            "quotation, or give a list"
        ) from None


# --- types, limits and names


def converted(value: Any, option: Option) -> Any:
    """Return a value in the type of its variable. ValueError says what is expected."""
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
    """Return a value in a type, None if it has no such value."""
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


def check_names(names: Collection[Any], known: Collection[str]) -> Iterator[str]:
    """Yield what is wrong with variables that the role does not have."""
    for name in names:
        if isinstance(name, str) and name.startswith("train_job_") and name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=2)
            meant = f"did you mean {' or '.join(near)}?" if near else "docs/variables.md has all"
            yield f"there is no variable {name}: {meant}"


def problem_of(name: str, value: Any, option: Option, place: str, default: Any) -> str:
    """Return what is wrong with the value of a variable, empty if nothing is; ``{hosts}`` stands
    for the names of its hosts.
    """
    try:
        converted(value, option)
    except ValueError as error:
        given = kind_of(value) if option.secret else _shown(value)
        such = "" if default in (None, "", [], {}) else f", such as {json.dumps(default)}"
        return (
            f"{name} of {{hosts}} is {given}{_at(place)}, expected {error}: change it{such}, or "
            "leave it out"
        )
    return ""


def differences(
    by_host: Mapping[str, Mapping[str, tuple[Any, str]]], known: Mapping[str, Option]
) -> Iterator[str]:
    """Yield what is wrong with variables that hold for a whole gang and differ between its hosts.

    Args:
        by_host: value and place of each variable, by host and name.
    """
    names = dict.fromkeys(name for values in by_host.values() for name in values)
    for name in names:
        option = known[name]
        values: dict[str, list[str]] = {}
        places: dict[str, str] = {}
        for host, found in by_host.items():
            value, place = found.get(name, (None, ""))
            with contextlib.suppress(ValueError):  # which is reported by itself
                value = converted(value, option)
            key = json.dumps(value, sort_keys=True, default=str)
            values.setdefault(key, []).append(host)
            places.setdefault(key, place)
        if len(values) > 1:
            each = [
                f"{'a value' if option.secret else key[:_LONGEST]} on {_some(hosts)}"
                f"{_at(places[key])}"
                for key, hosts in values.items()
            ]
            yield (
                f"{name} holds for the whole gang, and differs between its hosts: "
                f"{'; '.join(each)}. Give all hosts the same"
            )


def _some(hosts: Sequence[str], most: int = 8) -> str:
    shown = ", ".join(hosts[:most])
    return shown if len(hosts) <= most else f"{shown} and {len(hosts) - most} more"


def shared(problems: Sequence[tuple[str, str]]) -> list[str]:
    """Return each problem once, with the names of all hosts that have it for ``{hosts}``.

    Args:
        problems: host and problem.
    """
    hosts: dict[str, list[str]] = {}
    for host, problem in problems:
        hosts.setdefault(problem, []).append(host)
    return [text.replace("{hosts}", _some(names)) for text, names in hosts.items()]


def refuse(problems: Sequence[str]) -> None:
    """Raise PlanError with all problems, if there are any."""
    if problems:
        raise PlanError("\n".join(problems))


def check(given: Mapping[str, Given], written: Written) -> dict[str, list[str]]:
    """Refuse (PlanError) variables that the role does not have, values of a wrong type, and what
    differs between hosts and holds for all of them. Return the script's arguments, by host.

    Args:
        given: by inventory host.
    """
    main, names = options()
    defaults = _read("defaults/main.yml")
    found: dict[str, list[str]] = {}
    problems: list[tuple[str, str]] = []
    for host, one in given.items():
        problems += [(host, problem) for problem in check_names(one.names, names)]
        problems += [(host, problem) for problem in one.problems]
        problems += [(host, f"{ENVIRONMENT} of {{hosts}} {text}") for text in one.environment[1]]
        for name, value in one.values.items():
            place = one.places[name]
            if name == ARGUMENTS:
                try:
                    found[host] = arguments(value, written)
                except ValueError as error:
                    problems.append((host, f"{name} of {{hosts}}{_at(place)} {error}"))
            elif place != DEFAULT:
                problem = problem_of(name, value, main[name], place, defaults.get(name))
                problems.append((host, problem))
    of_gang = {
        host: {
            name: (value, one.places[name])
            for name, value in one.values.items()
            if not main[name].for_rank
        }
        for host, one in given.items()
    }
    refuse([*shared([pair for pair in problems if pair[1]]), *differences(of_gang, main)])
    return found
