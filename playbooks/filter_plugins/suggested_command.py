"""A filter for commands that playbooks suggest: ``{{ 'run' | suggested_command }}``.

The commands match how this playbook was called; see train/host/suggested.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

# For the repository's package: Ansible imports plugins without the project on sys.path.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from train.gang import suggestions


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., str]]:
        """Return the filters by name."""
        return {"suggested_command": suggested_command}


def suggested_command(name: str, **fields: str) -> str:
    """Return a suggested command; the fields are those in its usage."""
    return suggestions.command(str(name), None, **{field: str(v) for field, v in fields.items()})
