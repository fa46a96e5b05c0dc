"""Runs the module of the same name, with the launcher's programs that it needs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

# The repository's own package: Ansible imports plugins without their surroundings.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from train.gang import connections, host_modules


class ActionModule(ActionBase):  # type: ignore[misc]
    """What is on the host of the job may be of another version, or incomplete."""

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run the action; see the module's documentation for the arguments."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        result.update(connections.run_module(self, task_vars, launcher=host_modules.launcher()))
        return result
