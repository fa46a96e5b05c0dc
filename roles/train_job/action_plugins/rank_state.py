"""Runs the module of the task on its host and lets through what is harmless of what it says.

Other modules of the launcher that need nothing else have the same action: this file is theirs, too.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

# The repository's own package: Ansible imports plugins without their surroundings.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from train.gang import connections


class ActionModule(ActionBase):  # type: ignore[misc]
    """A module's answer is input from a host."""

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run the action; see the module's documentation for the arguments."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        result.update(connections.run_module(self, task_vars))
        return result
