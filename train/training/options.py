"""Turns a dataclass of settings into command-line options and environment variables.

Standard library only: options are checked where TensorFlow is not installed.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

SettingsT = TypeVar("SettingsT")


def option(
    default: Any,
    convert: Callable[[str], Any] | None,
    help: str,
    *,
    group: str,
    variable: str | None = None,
) -> Any:
    """Return a dataclass field that is also an option: ``batch_size`` is ``--batch-size``.

    Args:
        default: the value where neither the option nor the variable is given. True or False makes
            a switch, ``--xla`` and ``--no-xla``.
        convert: makes the value of its text, or raises argparse.ArgumentTypeError; None for a
            switch.
        help: one phrase for ``--help``, which adds the default.
        group: the heading in ``--help`` under which it stands.
        variable: an environment variable that replaces the default, if it is set and not empty.
    """
    metadata = {"convert": convert, "help": help, "group": group, "variable": variable}
    return dataclasses.field(default=default, metadata=metadata)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def parse(
    kind: type[SettingsT],
    description: str,
    arguments: Sequence[str] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> tuple[SettingsT, bool]:
    """Return the settings, and whether ``--check`` was given.

    Exits with code 2 and one line on standard error that names the wrong option or variable.

    Args:
        kind: a dataclass all of whose fields were made by ``option``.
        description: the program, in a sentence.
        arguments: the command line without the program; by default this process's.
        environ: where the variables are looked up.
    """
    parser = _Parser(description=description, allow_abbrev=False)
    groups: dict[str, Any] = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        title, variable = field.metadata["group"], field.metadata["variable"]
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        convert, default = field.metadata["convert"], field.default
        name = "--" + field.name.replace("_", "-")
        if isinstance(default, bool):
            groups[title].add_argument(
                name,
                action=argparse.BooleanOptionalAction,
                default=default,
                help=f"{field.metadata['help']} (default: {'on' if default else 'off'})",
            )
            continue
        source = f"; from {variable} if set" if variable else ""
        if variable and environ.get(variable):
            try:
                default = convert(environ[variable])
            except argparse.ArgumentTypeError as error:
                parser.error(f"environment variable {variable}: {error}")
        # An empty default says nothing that the help does not.
        stated = f" (default: {default}{source})" if str(default) else ""
        groups[title].add_argument(
            name,
            type=convert,
            default=default,
            metavar=field.name.rpartition("_")[2].upper(),
            help=field.metadata["help"] + stated.replace("%", "%%"),
        )
    parser.add_argument(
        "--check",
        action="store_true",
        help="only check the options against TF_CONFIG: print nothing if they are right",
    )
    values = vars(parser.parse_args(arguments))
    only_check = values.pop("check")
    return kind(**values), only_check


def whole(low: int, high: int) -> Callable[[str], int]:
    """Return the conversion to a whole number from ``low`` to ``high``, both included."""

    def convert(text: str) -> int:
        if text.isascii() and text.isdigit() and low <= int(text) <= high:
            return int(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")

    return convert


def number(low: float, high: float) -> Callable[[str], float]:
    """Return the conversion to a number from ``low`` to ``high``, both included."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if low <= value <= high:
            return value
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low:g} to {high:g}")

    return convert


def one_of(*names: str) -> Callable[[str], str]:
    """Return the conversion to one of ``names``."""

    def convert(text: str) -> str:
        if text in names:
            return text
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(names)}")

    return convert


def steps(text: str) -> tuple[int, ...]:
    """Return the step numbers of a list such as ``32000,48000``, which must rise; none for ''.

    Raises:
        argparse.ArgumentTypeError: it is no such list.
    """
    parts = text.split(",") if text else []
    if all(part.isascii() and part.isdigit() and len(part) < 13 for part in parts):
        numbers = tuple(int(part) for part in parts)
        if list(numbers) == sorted(set(numbers)):
            return numbers
    raise argparse.ArgumentTypeError(f"{text!r} is not a rising list such as 32000,48000")


def weights(text: str) -> tuple[float, ...]:
    """Return the weights of a list such as ``1,0.5,2``; none for ''.

    Raises:
        argparse.ArgumentTypeError: it is no such list.
    """
    convert = number(0, 1e6)
    return tuple(map(convert, text.split(","))) if text else ()


def devices(text: str) -> tuple[str, ...]:
    """Return the devices of a list such as ``gpu:0,gpu:1``, all of one kind; none for ''.

    Raises:
        argparse.ArgumentTypeError: it is no such list.
    """
    parts = tuple(text.lower().split(",")) if text else ()
    kinds = {part.partition(":")[0] for part in parts}
    numbers = [part.partition(":")[2] for part in parts]
    right = kinds <= {"gpu", "cpu"} and all(n.isascii() and n.isdigit() for n in numbers)
    if right and len(kinds) < 2 and len(set(parts)) == len(parts):
        return parts
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a list such as gpu:0,gpu:1 of different devices of one kind"
    )


def folder(text: str) -> Path:
    """Return the path of a folder, which may be missing still.

    Raises:
        argparse.ArgumentTypeError: the text is empty, or something else than a folder is there.
    """
    path = Path(text)
    if text and (path.is_dir() or not (path.is_symlink() or path.exists())):
        return path
    raise argparse.ArgumentTypeError(f"{text!r} is not a folder, present or to be made")
