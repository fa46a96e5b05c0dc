"""Runs the module of the same name, and forgets on the control node a job that never started."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

# The repository's own package: Ansible imports plugins without their surroundings.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from train.gang import connections, leasing


class ActionModule(ActionBase):  # type: ignore[misc]
    """Its id can then be used again."""

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run the action; see the module's documentation for the arguments."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        if int(self._task.args["attempt"]) == 1:
            leasing.forget(Path(self._task.args["run_dir"]))
        result.update(connections.run_module(self, task_vars))
        return result
