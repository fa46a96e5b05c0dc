"""Has the module of the same name pack a rank's results, fetches them and unpacks them here.

What goes wrong is reported as ``trouble`` and fails no task: the job has ended well, and its
results can be fetched again.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase

# The repository's own package: Ansible imports plugins without their surroundings.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from train.control import archives, reports

#: The limit of the archive's own size over that of its files: small files hardly get smaller.
_OVERHEAD = 1.1


class ActionModule(ActionBase):  # type: ignore[misc]
    """One task for all that comes home at a job's end."""

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run the action; see the module's documentation for the arguments."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            result.update(self._collect(dict(self._task.args), task_vars or {}))
        except (archives.ArchiveError, reports.ReportError, AnsibleError, OSError) as error:
            result["trouble"] = reports.bounded(str(error))
        return result

    def _collect(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        run_dir, limit = Path(args["run_dir"]), int(float(args.pop("limit_mb")) * 2**20)
        files = int(args.pop("limit_files"))
        packed = self._execute_module("rank_collect", module_args=args, task_vars=task_vars)
        if packed.get("failed") or packed.get("unreachable"):
            return {"trouble": reports.bounded(str(packed.get("msg") or "it cannot be packed"))}
        if packed.get("archive") is None:
            return {"changed": False, "trouble": ""}
        source = reports.path(packed["archive"])
        size = reports.integer()(packed.get("size"))
        if size > limit * _OVERHEAD:
            raise archives.ArchiveError(
                f"the archive has {size / 2**20:.0f} MiB, the limit is {limit / 2**20:g} MiB "
                "(train_job_results_limit_mb)"
            )
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=run_dir) as folder:
            archive = Path(folder, "results.tar.gz")
            self._fetch(source, archive, task_vars)
            archives.unpack(archive, run_dir, args["folders"], limit, files)
        return {"changed": True, "trouble": ""}

    def _fetch(self, source: str, target: Path, task_vars: dict[str, Any]) -> None:
        task = self._task.copy()
        task.args = {"src": source, "dest": str(target), "flat": True}
        fetch = self._shared_loader_obj.action_loader.get(
            "ansible.builtin.fetch",
            task=task,
            connection=self._connection,
            play_context=self._play_context,
            loader=self._loader,
            templar=self._templar,
            shared_loader_obj=self._shared_loader_obj,
        )
        fetched: dict[str, Any] = fetch.run(task_vars=task_vars)
        if fetched.get("failed"):
            raise archives.ArchiveError(str(fetched.get("msg")))
        with contextlib.suppress(OSError):
            target.chmod(0o600)
