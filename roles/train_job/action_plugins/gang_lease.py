"""Waits for other jobs until the gang's ports and GPUs are free on all hosts, and takes them.

It runs once, where ``train_job_wait`` asks for it; train/gang/leasing.py does the work. Nothing
of the job need be on the hosts yet: the program that is run there is sent with each request.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

# The repository's own package: Ansible imports plugins without their surroundings.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from train.gang import connections, host_modules, leasing
from train.host import leases

_PROGRAM = """\
import base64, json, os, sys
archive = os.memfd_create("launcher")
os.write(archive, base64.b64decode({launcher!r}))
sys.path.insert(0, "/proc/self/fd/%d" % archive)
from host import leases
print(json.dumps(leases.answer(json.loads({request!r}))))
"""


class ActionModule(ActionBase):  # type: ignore[misc]
    """One task for all hosts."""

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run the action; its arguments are those of roles/train_job/tasks/wait.yml."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        self._hosts = connections.Hosts(self, task_vars or {})
        args = self._task.args
        manifest, run_dir = args["manifest"], Path(args["run_dir"])
        self._pythons = {h: str(facts["host_python"]) for h, facts in manifest["hosts"].items()}
        tasks = {rank["host"]: rank["task"] for rank in manifest["ranks"]}
        waiting = leasing.Waiting(
            leasing.requests_of(manifest),
            self._request,
            connections.say,
            lambda host, text: leasing.note_waiting(run_dir, tasks[host], host, text),
            float(args["unreachable_timeout"]),
        )
        try:
            waiting.take(float(args["wait"]))
        except (leasing.LeasingError, OSError) as error:
            if int(manifest["attempt"]) == 1:
                leasing.forget(run_dir)
            result.update(failed=True, msg=f"nothing was started: {error}")
        return result

    def _request(self, host: str, request: dict[str, Any]) -> dict[str, Any]:
        if self._hosts.is_here(host, "leases"):
            return leases.answer(request)
        sent = {"launcher": host_modules.launcher(), "request": json.dumps(request)}
        words = [self._pythons[host], "-S", "-E", "-"]
        return self._hosts.run(host, "leases", words, program=_PROGRAM.format(**sent).encode())
