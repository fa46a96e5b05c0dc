"""Fetch results of a rank."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ansible_collections.tensorflow_ansible.cluster.plugins.plugin_utils.actions import HostAction

from train.gang import archives, connections, reports
from train.gang.connections import Args, Returned

#: Folder in the job's folder for files fetched from working directories, one subfolder per rank.
COLLECTED = "collected"


class ActionModule(HostAction):
    """Fetch results of a rank."""

    _supports_check_mode = False

    def act(self, options: Args, task_vars: Args) -> Returned:
        """Fetch the packed files and unpack them below the job's folder.

        Return an error as ``error``. It does not fail the task, because the files can be fetched
        again.
        """
        run_dir, limit = Path(options["run_dir"]), int(options["limit_mb"] * 2**20)
        target, names = run_dir, options["folders"] or []
        if options["globs"]:
            target, names = run_dir / COLLECTED, [reports.task(options["task"])]
        try:
            packed = self.call(options, task_vars)
            if packed.get("failed") or packed.get("unreachable"):
                return {"error": str(packed.get("msg") or "the files cannot be packed")}
            if packed.get("archive") is None:
                return {"changed": False, "error": ""}
            with tempfile.TemporaryDirectory(prefix=".fetching-", dir=run_dir) as folder:
                archive = Path(folder, "results.tar.gz")
                connections.fetch(self, reports.path(packed["archive"]), archive, limit)
                target.mkdir(exist_ok=True)
                archives.unpack(archive, target, names, limit, options["limit_files"])
        except (archives.ArchiveError, *connections.FETCH_ERRORS) as error:
            return {"error": reports.bounded(str(error) or type(error).__name__)}
        return {"changed": True, "error": ""}
