"""How the commands that this call suggests reach the same hosts; see train/gang/suggestions.py."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from train.cli import ansible_options, inventories
from train.cli.ansible_options import AnsibleOptions, Variables
from train.gang import suggestions
from train.gang.suggestions import Call

#: Options that concern one command.
_OF_ONE_COMMAND = ("--verbose",)


def note_typed(words: Sequence[str]) -> None:
    """Take the options of the command line, without its own name and the script's arguments.
    Mistakes in it are reported by its parser.
    """
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    ansible_options.add_options(parser)
    args = parser.parse_args([])
    with contextlib.suppress(argparse.ArgumentError):
        args, _ = parser.parse_known_args(list(words))
    options = [word for word in args.ansible if word not in _OF_ONE_COMMAND]
    options += [
        f"--{name.replace('_', '-')}" for name in inventories.QUESTIONS.values() if vars(args)[name]
    ]
    options += suggestions.carried(args.variables)
    typed = (*_sources(args.inventory or ()), *options)
    default = ansible_options.default_origin() == "TRAIN_INVENTORY" and not args.inventory
    found = _sources(ansible_options.default_inventory()) if default else []
    suggestions.note(
        Call(
            suggestions.train_program(),
            suggestions.playbook_program(),
            typed=typed,
            reaching=(*found, *typed),
        )
    )


def note_kept(job: str, connection: Mapping[str, Any]) -> None:
    """Take the inventory and the options that a job was started with: the command line has no
    inventory.
    """
    call = suggestions.current()
    kept = inventories.options_words(connection)
    kept += suggestions.variable_words(connection["variables"])
    suggestions.note(replace(call, job=job, reaching=(*kept, *call.typed)))


def call_of(options: AnsibleOptions, variables: Variables) -> Call:
    """Return the call of the command line; from Python, one that reaches the hosts of a job."""
    if suggestions.is_noted():
        return suggestions.current()
    is_default = options.inventory == ansible_options.default_inventory()
    words = (*_sources(() if is_default else options.inventory), *options.words)
    words += tuple(suggestions.variable_words(variables))
    return Call(suggestions.train_program(), suggestions.playbook_program(), words, words)


def _sources(inventory: Sequence[str]) -> list[str]:
    """Return the options for an inventory: as it was given if the commands are typed here."""
    shown = inventory if suggestions.is_here() else [suggestions.shown(one) for one in inventory]
    return [word for source in shown for word in ("-i", source)]
