"""Has the module of the same name pack a rank's results, fetches them and unpacks them here.

What goes wrong is reported as ``trouble`` and fails no task: the job has ended well, and its
results can be fetched again.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

# The repository's own package: Ansible imports plugins without their surroundings.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from train.gang import archives, connections, reports


class ActionModule(ActionBase):  # type: ignore[misc]
    """One task for all that comes home at a job's end."""

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run the action; see the module's documentation for the arguments."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            result.update(self._collect(self._task.args, task_vars or {}))
        except (archives.ArchiveError, *connections.FETCH_ERRORS) as error:
            result["trouble"] = reports.bounded(str(error) or type(error).__name__)
        return result

    def _collect(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        run_dir, limit = Path(args["run_dir"]), int(float(args["limit_mb"]) * 2**20)
        packed = connections.run_module(self, task_vars)
        if packed.get("failed") or packed.get("unreachable"):
            return {"trouble": reports.bounded(str(packed.get("msg") or "it cannot be packed"))}
        if packed.get("archive") is None:
            return {"changed": False, "trouble": ""}
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=run_dir) as folder:
            archive = Path(folder, "results.tar.gz")
            connections.fetch(self, reports.path(packed["archive"]), archive, limit)
            archives.unpack(archive, run_dir, args["folders"], limit, int(args["limit_files"]))
        return {"changed": True, "trouble": ""}
