"""Records how this program was called, for the commands that train/gang/suggestions.py suggests."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from train.cli import ansible_options, inventories
from train.cli.ansible_options import AnsibleOptions, HostSource, Variables
from train.gang import suggestions
from train.gang.errors import UserError
from train.gang.suggestions import Call

#: Options that apply to one command.
_OF_ONE_COMMAND = ("--verbose",)


def note_typed(words: Sequence[str]) -> None:
    """Record the options of the command line, without the command and the script's arguments.

    Mistakes are ignored here, because the parser, or the code that reads a file, reports them.
    """
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    ansible_options.add_options(parser)
    parser.add_argument("--framework", default="")
    args = parser.parse_args([])
    with contextlib.suppress(argparse.ArgumentError):
        args, _ = parser.parse_known_args(list(words))
    options = [word for word in args.ansible if word not in _OF_ONE_COMMAND]
    options += [
        f"--{name.replace('_', '-')}" for name in inventories.QUESTIONS.values() if vars(args)[name]
    ]
    options += suggestions.carried(args.variables)
    # As a variable, because a playbook may be suggested.
    options += suggestions.variable_words({"train_job_framework": args.framework or None})
    typed = (*_typed(args.inventory or ()), *options)
    reaching = (*_sources(args.inventory or ()), *options)
    default = ansible_options.default_origin() == "TRAIN_INVENTORY" and not args.inventory
    found: list[str] = []
    if default:
        with contextlib.suppress(UserError):
            found = _sources(ansible_options.default_inventory())
    suggestions.note(
        Call(
            suggestions.train_program(),
            suggestions.playbook_program(),
            typed=typed,
            reaching=(*found, *reaching),
        )
    )


def note_kept(job: str, connection: Mapping[str, Any]) -> None:
    """Record the inventory and options of a job's start, for a command line without ``-i``."""
    call = suggestions.current()
    kept = inventories.options_words(connection)
    kept += suggestions.variable_words(connection["variables"])
    suggestions.note(replace(call, job=job, reaching=(*kept, *call.typed)))


def call_of(options: AnsibleOptions, variables: Variables) -> Call:
    """Return how the command line was called; for the Python API, a call that reaches the hosts."""
    if suggestions.is_noted():
        return suggestions.current()
    is_default = options.inventory == ansible_options.default_inventory()
    words = (*_sources(() if is_default else options.inventory), *options.words)
    words += tuple(suggestions.variable_words(variables))
    return Call(suggestions.train_program(), suggestions.playbook_program(), words, words)


def _typed(inventory: Sequence[str]) -> list[str]:
    """Return the options that a user types for an inventory, such as ``-i`` or ``--hostfile``."""
    words: list[str] = []
    for source in inventory:
        if isinstance(source, HostSource):
            option, *paths = source.typed
            words += [option, *(paths if suggestions.is_here() else map(suggestions.shown, paths))]
        else:
            words += _sources([source])
    return words


def _sources(inventory: Sequence[str]) -> list[str]:
    """Return the ``-i`` options for an inventory, as they have to be typed in this folder."""
    shown = inventory if suggestions.is_here() else [suggestions.shown(one) for one in inventory]
    return [word for source in shown for word in ("-i", source)]
