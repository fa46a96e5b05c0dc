"""The command ``playbook``: runs ansible-playbook with a playbook of this project.

The other commands run playbooks as well, but show their own output. This command replaces its
process with ansible-playbook, which gets all further arguments.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NoReturn

from train.cli import ansible_options, playbooks
from train.gang import REPOSITORY
from train.gang.errors import UserError


def names() -> list[str]:
    """Return the names of the playbooks, without ``.yml``."""
    return sorted(path.stem for path in (REPOSITORY / "playbooks").glob("*.yml"))


def execute(name: str, words: Sequence[str]) -> NoReturn:
    """Replace this process with ansible-playbook.

    Args:
        name: one of ``names()``.
        words: options of ansible-playbook. TRAIN_INVENTORY is used if they name no inventory.

    Raises:
        UserError: there is no such playbook.
    """
    if name not in names():
        raise UserError(f"no playbook {name}: choose one of {', '.join(names())}")
    given = list(words)
    if ansible_options.default_origin() == "TRAIN_INVENTORY" and not any(
        word.startswith(("-i", "--inv")) for word in words
    ):
        given += [part for one in ansible_options.default_inventory() for part in ("-i", one)]
    program = playbooks.ansible_playbook()
    settings = {**playbooks.usable_locale(), **playbooks.own_settings()}
    if os.environ.get("ANSIBLE_CONFIG"):
        settings.pop("ANSIBLE_CONFIG")
    environment = {**os.environ, **settings, "PATH": playbooks.own_path()}
    path = str(REPOSITORY / "playbooks" / f"{name}.yml")
    os.execve(program, [program, path, *given], environment)
