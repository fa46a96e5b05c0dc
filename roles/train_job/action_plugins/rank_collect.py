"""Has the module of the same name pack a rank's results, fetches them and unpacks them here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

# The repository's own package: Ansible imports plugins without their surroundings.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from train.control import play, watch


class ActionModule(ActionBase):  # type: ignore[misc]
    """One task for all that comes home at a job's end."""

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run the action; see the module's documentation for the arguments."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        result.update(
            self._execute_module("rank_collect", module_args=self._task.args, task_vars=task_vars)
        )
        if result.get("failed") or not result.get("archive"):
            return result
        archive = Path(self._task.args["run_dir"]) / "results.tar.gz"
        try:
            play.fetch(self, result["archive"], archive)
        except (watch.UnreachableError, OSError) as error:
            result.update(failed=True, msg=f"{result['archive']} could not be fetched: {error}")
            return result
        # GNU tar and busybox leave out what would lead out of the folder.
        done = subprocess.run(
            ["tar", "-xzf", archive.name, "--no-same-owner"],
            cwd=archive.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            result.update(failed=True, msg=f"{archive} cannot be unpacked: {done.stdout.strip()}")
        else:
            archive.unlink()
        return result
