"""Does on the control node what concerns the gang as a whole; see train/gang/calls.py.

Its task runs once and names the ``call``; the other arguments are the call's.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ansible.plugins.action import ActionBase

# The repository's own package: Ansible imports plugins without their surroundings.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from train.gang import calls, connections
from train.gang.connections import Args, Returned


class ActionModule(ActionBase):  # type: ignore[misc]
    """Nothing of it runs on the host of its task."""

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: Args | None = None) -> Returned:
        """Run the action; its arguments are those of roles/train_job/tasks."""
        connections.end_with_ansible()
        result: Returned = super().run(tmp, task_vars)
        args = self._task.args
        result.update(calls.run(connections.Play(self, task_vars or {}), args["call"], args))
        result["call"] = args["call"]
        return result
