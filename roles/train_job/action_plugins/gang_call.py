"""Runs a call for the whole gang on the control node; see train/gang/calls.py.

The task runs once and names the ``call``. All other arguments are for the call.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ansible.plugins.action import ActionBase

# For the repository's package: Ansible imports plugins without the project on sys.path.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from train.gang import calls, connections
from train.gang.connections import Args, Returned


class ActionModule(ActionBase):  # type: ignore[misc]
    """An action that runs nothing on its task's host."""

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: Args | None = None) -> Returned:
        """Run the action; its arguments are those in roles/train_job/tasks."""
        connections.end_with_ansible()
        result: Returned = super().run(tmp, task_vars)
        args = self._task.args
        result.update(calls.run(connections.Play(self, task_vars or {}), args["call"], args))
        result["call"] = args["call"]
        return result
