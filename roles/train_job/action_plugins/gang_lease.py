"""Waits for other jobs until the gang's ports and GPUs are free on all hosts, and takes them.

It runs once, where ``train_job_wait`` asks for it; train/control/leasing.py does the work. Nothing
of the job need be on the hosts yet: the program that is run there is sent with each request.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.loader import action_loader

# The repository's own package: Ansible imports plugins without their surroundings.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from train.control import host_modules, leasing, watch
from train.host import leases

_PROGRAM = """\
import base64, json, os, sys
archive = os.memfd_create("launcher")
os.write(archive, base64.b64decode({launcher!r}))
sys.path.insert(0, "/proc/self/fd/%d" % archive)
from host import leases
print(json.dumps(leases.answer(json.loads({request!r}))))
"""

#: It has the connections to all hosts, and says lines.
_GangWatch: Any = action_loader.get("gang_watch", class_only=True)
_say: Any = sys.modules[_GangWatch.__module__]._say


class ActionModule(_GangWatch):  # type: ignore[misc]
    """One task for all hosts."""

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run the action; its arguments are those of roles/train_job/tasks/wait.yml."""
        result: dict[str, Any] = super(_GangWatch, self).run(tmp, task_vars)
        self._hostvars = (task_vars or {})["hostvars"]
        self._connections: dict[tuple[str, str], Any] = {}
        self._connecting = threading.Lock()
        args = self._task.args
        manifest, run_dir = args["manifest"], Path(args["run_dir"])
        self._pythons = {h: str(facts["host_python"]) for h, facts in manifest["hosts"].items()}
        tasks = {rank["host"]: rank["task"] for rank in manifest["ranks"]}
        waiting = leasing.Waiting(
            leasing.requests_of(manifest),
            self._request,
            _say,
            lambda host, text: leasing.note_waiting(run_dir, tasks[host], host, text),
            float(args["unreachable_timeout"]),
        )
        try:
            waiting.take(float(args["wait"]))
        except leasing.LeasingError as error:
            if int(manifest["attempt"]) == 1:
                leasing.forget(run_dir)
            result.update(failed=True, msg=f"nothing was started: {error}")
        return result

    def _request(self, host: str, request: dict[str, Any]) -> dict[str, Any]:
        try:
            connection = self._connection_of(host, "leases")
            if connection.transport == "local":
                return leases.answer(request)
            told = {"launcher": host_modules.launcher(), "request": json.dumps(request)}
            program = _PROGRAM.format(**told).encode()
            command = f"{self._pythons[host]} -S -E -"
            code, out, err = connection.exec_command(command, in_data=program, sudoable=False)
        except AnsibleConnectionFailure as error:
            raise watch.UnreachableError(str(error)) from error
        if code:
            raise OSError(bytes(err).decode(errors="replace").strip()[-500:])
        return dict(json.loads(bytes(out)))
