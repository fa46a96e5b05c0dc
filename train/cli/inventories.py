"""The inventory of a command without ``-i``: the job's, the user's, or the clone's default.

When a job starts, its inventory and connection options are saved as ``runs/JOB/connection.json``,
so that later commands need only the job's name. Passwords are never saved, only that they were
asked for.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from train.cli.ansible_options import AnsibleOptions, Inventory, Variables, absolute, options_of
from train.gang import suggestions
from train.gang.job_records import MANIFEST_FILE, read_manifest
from train.gang.suggestions import CONNECTION_VARIABLES
from train.host import json_files

CONNECTION_FILE = "connection.json"
#: Options that apply to one command, not to the job.
_OF_ONE_COMMAND = ("--verbose", "--extra-vars=")
#: The option that asks for each kind of password, by the option that reads it from a file.
QUESTIONS = {
    "--connection-password-file=": "ask_pass",
    "--become-password-file=": "ask_become_pass",
    "--vault-password-file=": "ask_vault_pass",
}


def keep(
    run_dir: Path, options: AnsibleOptions, variables: Variables, controller: str = ""
) -> None:
    """Save in a job's folder how its hosts are reached, in a file that only its owner can read.

    ``controller`` is the inventory host that watches the job (``--on``), or empty.
    """
    words = [word for word in options.words if not word.startswith(_OF_ONE_COMMAND)]
    asked = [option for option, _ in options.passwords]
    kept: dict[str, Any] = {
        "inventory": [absolute(source) for source in options.inventory],
        "options": words,
        "asked": asked,
        "variables": {n: v for n, v in variables.items() if n in CONNECTION_VARIABLES},
    }
    if controller:
        kept["controller"] = controller
    json_files.write_json(str(run_dir / CONNECTION_FILE), kept, mode=0o600)


def controller_of(run_dir: Path) -> str:
    """Return the inventory host that watches a job, as ``keep`` saved it, or an empty string."""
    return str((kept(run_dir) or {}).get("controller") or "")


def forget_controller(run_dir: Path) -> None:
    """Record that no host watches a job, because this control node starts its next attempt."""
    connection = kept(run_dir)
    if connection is not None and connection.pop("controller", None):
        json_files.write_json(str(run_dir / CONNECTION_FILE), connection, mode=0o600)


def kept(run_dir: Path) -> dict[str, Any] | None:
    """Return the connection that ``keep`` saved, or None if it is missing or unusable."""
    try:
        connection = json_files.read_json(str(run_dir / CONNECTION_FILE))
    except ValueError:
        return None
    if not isinstance(connection, dict) or not isinstance(connection.get("variables"), dict):
        return None
    lists = [connection.get(name) for name in ("inventory", "options", "asked")]
    if not all(
        isinstance(values, list) and all(isinstance(x, str) for x in values) for values in lists
    ):
        return None
    return connection if connection["inventory"] else None


def options_words(connection: Mapping[str, Any]) -> list[str]:
    """Return a saved connection as command-line words: ``-i`` and the other options."""
    return [
        *(word for source in connection["inventory"] for word in ("-i", suggestions.shown(source))),
        *connection["options"],
        *(
            "--" + QUESTIONS[one].replace("_", "-")
            for one in connection["asked"]
            if one in QUESTIONS
        ),
    ]


def described(connection: Mapping[str, Any]) -> str:
    """Return the options of a saved connection as a user would type them."""
    return shlex.join(options_words(connection))


def apply(args: argparse.Namespace, connection: Mapping[str, Any]) -> None:
    """Apply a saved connection to a parsed command line that names no inventory.

    Options of the command line take precedence because they come last.
    """
    args.inventory = list(connection["inventory"])
    args.ansible = [*connection["options"], *args.ansible]
    given = " ".join(args.ansible)
    for option in connection["asked"]:
        question = QUESTIONS.get(option)
        if question is None:  # --vault-id=NAME@
            args.ansible.append(f"{option}prompt")
        elif option not in given:
            setattr(args, question, True)


def newest(runs_dir: Path, inventory: list[str] | None = None) -> str:
    """Return the id of the newest job in a folder of results, or '' if there is none.

    Args:
        runs_dir: the folder of results.
        inventory: as given with ``-i``. Jobs that were started with another inventory are ignored.
    """
    found = []
    for path in runs_dir.glob(f"*/{MANIFEST_FILE}"):
        try:
            manifest = read_manifest(path.parent)
        except (OSError, ValueError):
            continue
        connection = kept(path.parent)
        of_another = (
            inventory is not None
            and connection is not None
            and [absolute(source) for source in inventory] != connection["inventory"]
        )
        if manifest is not None and not of_another:
            found.append((manifest["created_at"], path.parent.name))
    return max(found, default=(0.0, ""))[1]


def options_for(run_dir: Path, inventory: Inventory) -> AnsibleOptions:
    """Return the options that reach a job's hosts, for the Python API.

    These are ``inventory`` or, if it is not given, the options that the job was started with. Raise
    ValueError if the latter include password prompts.
    """
    connection = None if inventory else kept(run_dir)
    if connection is None:
        return options_of(inventory)
    if connection["asked"]:
        raise ValueError(
            f"job {run_dir.name} was started with passwords typed at a prompt, which are "
            "not stored: pass an inventory, or AnsibleOptions that include the passwords"
        )
    return AnsibleOptions(tuple(connection["inventory"]), words=tuple(connection["options"]))
