"""Checks the role's variables before anything starts.

Names, types and limits are checked. A variable for the whole job must have the same value on all
hosts.

A message names the variable, its host, the file and line where it is set, the value and its type,
the expected value, and the remedy. Values of the script's environment are never shown.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from train.gang import REPOSITORY, local_command
from train.gang.errors import UserError
from train.gang.variables import script_arguments
from train.gang.variables.typed_values import (
    LONGEST,
    Option,
    Written,
    at,
    converted,
    kind_of,
    shown,
)
from train.host import metadata

ENVIRONMENT = "train_job_environment"
ARGUMENTS = "train_job_args"
PREEMPTION = "train_job_preemption"
REPLACE = "train_job_replace"
#: The place of a value that is the role's default. Defaults are valid, and their templates are not
#: rendered.
DEFAULT = "the default"
_URL = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+(?:/[!-~]*)?")
_ROLE = REPOSITORY / "roles/train_job"


@dataclass(frozen=True)
class Given:
    """Settings of a job from the variables of one host."""

    names: list[str]  # names of all variables of the host
    values: Mapping[str, Any]  # values of the role's variables
    places: Mapping[str, str]  # where each of these is set
    environment: tuple[dict[str, str], list[str]]  # the script's environment, and its problems
    problems: list[str]  # problems of templates


def _read(name: str) -> Any:
    """Return the content of one of the role's YAML files."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster
    return yaml.load((_ROLE / name).read_text(encoding="utf-8"), loader)


def default_of(name: str) -> Any:
    """Return the role's default of a variable, without rendering a template in it."""
    return _read("defaults/main.yml")[name]


def default_python(framework: str) -> str:
    """Return the role's default of ``train_job_python`` for a framework."""
    pythons: dict[str, str] = _read("vars/main.yml")["__train_job_pythons"]
    return pythons.get(framework, pythons["tensorflow"])


@functools.cache
def options() -> tuple[dict[str, Option], set[str]]:
    """Return the options of the entry point ``main``, and the option names of all entry points."""
    entries = _read("meta/argument_specs.yml")["argument_specs"]
    internal = _read("vars/main.yml")
    for_rank = set(internal["__train_job_rank_variables"])
    minimums = internal["__train_job_minimums"]
    known: dict[str, Option] = {}
    for name, spec in entries["main"]["options"].items():
        known[name] = Option(
            spec["type"],
            tuple(spec.get("choices", ())),
            minimums.get(name),
            bool(spec.get("no_log")),
            name in for_rank,
        )
    return known, {name for entry in entries.values() for name in entry["options"]}


def check_names(names: Collection[Any], known: Collection[str]) -> Iterator[str]:
    """Yield a problem for each variable that begins with ``train_job_`` but is not in ``known``."""
    for name in names:
        if isinstance(name, str) and name.startswith("train_job_") and name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=2)
            meant = f"did you mean {' or '.join(near)}?" if near else "see docs/variables.md"
            yield f"unknown variable {name}: {meant}"


def problem_of(name: str, value: Any, option: Option, place: str, default: Any) -> str:
    """Return the problem with a variable's value, or an empty string.

    ``{hosts}`` in the problem is a placeholder for the names of the variable's hosts.
    """
    try:
        converted(value, option)
    except ValueError as error:
        given = kind_of(value) if option.secret else shown(value)
        such = "" if default in (None, "", [], {}) else f" (the default is {json.dumps(default)})"
        return (
            f"{name} of {{hosts}} is {given}{at(place)}, expected {error}: correct the "
            f"value{such}, or remove the variable"
        )
    return ""


def _problem_of_preemption(value: Any, place: str) -> str:
    """Return the problem with ``train_job_preemption``, or an empty string."""
    words = (metadata.AUTO, *metadata.CLOUDS, metadata.OFF)
    if value is False or value in words:  # YAML reads ``off`` as false
        return ""
    if isinstance(value, str) and _URL.fullmatch(value):
        return ""
    return (
        f"{PREEMPTION} of {{hosts}} is {shown(value)}{at(place)}, expected one of "
        f"{', '.join(words)}, or a URL that begins with http:// or https:// and contains no "
        "password: correct the value, or remove the variable"
    )


@functools.cache  # it is the same for all hosts
def _problem_of_command(command: str, place: str) -> str:
    """Return the problem with ``train_job_replace``, or an empty string."""
    program = local_command.missing_program(command)
    if not program:
        return ""
    return (
        f"{REPLACE} of {{hosts}} begins with {program}{at(place)}, which is not a program in "
        f"{REPOSITORY} or in PATH of this machine: install it, or correct the command"
    )


def differences(
    by_host: Mapping[str, Mapping[str, tuple[Any, str]]], known: Mapping[str, Option]
) -> Iterator[str]:
    """Yield a problem for each job-wide variable that differs between hosts.

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
            with contextlib.suppress(ValueError):  # reported separately
                value = converted(value, option)
            key = json.dumps(value, sort_keys=True, default=str)
            values.setdefault(key, []).append(host)
            places.setdefault(key, place)
        if len(values) > 1:
            each = [
                f"{'a value' if option.secret else key[:LONGEST]} on {_some(hosts)}"
                f"{at(places[key])}"
                for key, hosts in values.items()
            ]
            yield (
                f"{name} must be the same for the whole gang, but differs between hosts: "
                f"{'; '.join(each)}. Set the same value for all hosts"
            )


def _some(hosts: Sequence[str], most: int = 8) -> str:
    shown = ", ".join(hosts[:most])
    return shown if len(hosts) <= most else f"{shown} and {len(hosts) - most} more"


def shared(problems: Sequence[tuple[str, str]]) -> list[str]:
    """Return each problem once, with ``{hosts}`` replaced by the names of all its hosts.

    Args:
        problems: pairs of host and problem.
    """
    hosts: dict[str, list[str]] = {}
    for host, problem in problems:
        hosts.setdefault(problem, []).append(host)
    return [text.replace("{hosts}", _some(names)) for text, names in hosts.items()]


def refuse(problems: Sequence[str]) -> None:
    """Raise UserError with all problems if there are any."""
    if problems:
        raise UserError("\n".join(problems))


def check(by_host: Mapping[str, Given], written: Written) -> dict[str, list[str]]:
    """Check the variables of all hosts and return the script's arguments by host.

    Raise UserError for unknown variables, values of a wrong type, and job-wide variables that
    differ between hosts.

    Args:
        by_host: the settings of each inventory host.
        written: returns how a value was written in its file.
    """
    main, names = options()
    defaults = _read("defaults/main.yml")
    arguments: dict[str, list[str]] = {}
    problems: list[tuple[str, str]] = []
    for host, host_variables in by_host.items():
        problems += [(host, problem) for problem in check_names(host_variables.names, names)]
        problems += [(host, problem) for problem in host_variables.problems]
        problems += [
            (host, f"{ENVIRONMENT} of {{hosts}} {text}") for text in host_variables.environment[1]
        ]
        for name, value in host_variables.values.items():
            place = host_variables.places[name]
            if name == ARGUMENTS:
                try:
                    arguments[host] = script_arguments.words(value, written)
                except ValueError as error:
                    problems.append((host, f"{name} of {{hosts}}{at(place)} {error}"))
            elif place != DEFAULT:
                problem = problem_of(name, value, main[name], place, defaults.get(name))
                if name == PREEMPTION:
                    problem = _problem_of_preemption(value, place)
                if name == REPLACE and not problem:
                    problem = _problem_of_command(str(value), place)
                problems.append((host, problem))
    of_gang = {
        host: {
            name: (value, host_variables.places[name])
            for name, value in host_variables.values.items()
            if not main[name].for_rank
        }
        for host, host_variables in by_host.items()
    }
    refuse([*shared([pair for pair in problems if pair[1]]), *differences(of_gang, main)])
    return arguments
