"""Parses the script's arguments: a list, or a string that is split like a shell command."""

from __future__ import annotations

import shlex
from typing import Any

import yaml

from train.gang.variables.typed_values import Written, shown, text_of


def words(value: Any, written: Written) -> list[str]:
    """Return the script's arguments from a list, or from a string split like a shell command.

    Raise ValueError if that fails. Its message follows the variable's name.
    """
    if value is None:
        return []
    if isinstance(value, str):
        return _split(value)
    if not isinstance(value, (list, tuple)):
        raise ValueError(
            f"is {shown(value)}, expected a list or a string: "
            'write [--steps, "3"] or as "--steps 3"'
        )
    found = []
    for number, item in enumerate(value, 1):
        try:
            found.append(text_of(item, written))
        except ValueError as error:
            raise ValueError(
                f"has {error} as item {number}, {shown(item)}; expected a string or a "
                "number: quote the item"
            ) from None
    return found


def _split(text: str) -> list[str]:
    if "\0" in text:
        raise ValueError("contains a NUL character, which arguments cannot contain")
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
            f"is {shown(text)}, which cannot be split like a shell command ({error}): close "
            "the quotes, or use a list"
        ) from None
