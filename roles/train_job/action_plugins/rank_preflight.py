"""Runs the module of the same name, and says it plainly where the host has no Python."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase

# The repository's own package: Ansible imports plugins without their surroundings.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from train.gang import connections, host_modules


class ActionModule(ActionBase):  # type: ignore[misc]
    """Without Python no module runs, and Ansible's own words for it are many."""

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run the action; see the module's documentation for the arguments."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            done = connections.run_module(self, task_vars, launcher=host_modules.launcher())
        except AnsibleConnectionFailure:
            raise
        except AnsibleError as error:
            done = {"failed": True, "msg": str(error)}
        if done.get("failed") and not done.get("unreachable") and self._lacks_python(done):
            done = {
                "failed": True,
                "msg": "there is no Python on this host: install python3 (3.8 or newer), or set "
                "ansible_python_interpreter to where it is",
            }
        result.update(done)
        return result

    def _lacks_python(self, done: dict[str, Any]) -> bool:
        if done.get("rc") != 127 and "interpreter" not in str(done.get("msg")):
            return False
        found = self._low_level_execute_command(
            "command -v python3 || ls /usr/bin/python3.* /usr/local/bin/python3.* 2>/dev/null"
        )
        return not str(found["stdout"]).strip()
