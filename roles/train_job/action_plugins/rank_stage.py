"""Sends the job's archive to the host and has the module of the same name unpack it there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

# The repository's own package: Ansible imports plugins without their surroundings.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from train.gang import connections, host_modules


class ActionModule(ActionBase):  # type: ignore[misc]
    """One transfer and one module for all that a rank needs on its host."""

    TRANSFERS_FILES = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run the action; see the module's documentation for the arguments."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        folder = self._connection._shell.tmpdir
        try:
            archive = self._connection._shell.join_path(folder, "job.tgz")
            self._transfer_file(self._task.args["archive"], archive)
            self._fixup_perms2((folder, archive))
            launcher = host_modules.launcher()
            result.update(
                connections.run_module(self, task_vars, archive=archive, launcher=launcher)
            )
        finally:
            self._remove_tmp_path(folder)
        return result
