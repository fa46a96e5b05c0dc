"""Gives playbooks the commands that their messages suggest: ``{{ 'run' | suggested_command }}``.

The commands are called as this playbook was; see train/host/suggested.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

# The repository's own package: Ansible imports plugins without their surroundings.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from train.gang import suggestions


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., str]]:
        """Return the filters by their names."""
        return {"suggested_command": suggested_command}


def suggested_command(name: str, **fields: str) -> str:
    """Return a suggested command; the fields are those of its usage."""
    return suggestions.command(str(name), None, **{field: str(v) for field, v in fields.items()})
