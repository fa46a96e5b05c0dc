"""Starts the supervisor of a rank that ``stage`` has prepared, with one command on the host.

``ansible.builtin.command`` with ``async`` and ``poll: 0`` would take 0.2 to 1 s more, and would not
report a supervisor that did not start.
"""

from __future__ import annotations

import shlex
from typing import Any

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):  # type: ignore[misc]
    """Returns as soon as the supervisor works; fails if it does not."""

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run the action; its arguments are those in roles/train_job/tasks/start.yml."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        rank = self._task.args["rank"]
        options = ["-S", "-E", "-m", "train.host.supervisor"]
        supervisor = [rank["host_python"], *options, rank["rank_dir"]]
        done = self._low_level_execute_command(
            f"{self._compute_environment_string()} {shlex.join(supervisor)} 2>&1",
            chdir=shlex.quote(f"{rank['rank_dir']}/launcher"),
        )
        result["started"] = result["changed"] = done["rc"] == 0
        if done["rc"]:
            said = str(done["stdout"] or done["stderr"]).strip()
            result.update(failed=True, msg=f"the supervisor did not start: {said}")
        return result
