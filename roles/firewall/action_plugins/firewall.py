"""Ansible action plugin: applies the rules of the module ``firewall`` and confirms them.

Both in one task, so that a host never waits for the others while its rules wait to be confirmed.
"""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase

#: Seconds that the host is given to take the rules back and to answer again.
GRACE = 30.0


class ActionModule(ActionBase):  # type: ignore[misc]
    """Run the module; after new rules, come back over a new connection."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> Any:
        """The module's result."""
        super().run(tmp, task_vars)
        args = dict(self._task.args)
        if args.get("state", "present") != "present":
            return self._call(args, task_vars)
        result = self._call({**args, "state": "applied"}, task_vars)
        if result.get("failed") or not result["changed"] or self._task.check_mode:
            return result
        confirmed = self._confirm({**args, "state": "confirmed"}, task_vars)
        return {**result, **confirmed}

    def _confirm(self, args: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        """Confirm over a new connection; with a host that was locked, wait until it is open again.

        Raises:
            AnsibleConnectionFailure: the host does not answer again.
        """
        deadline = time.monotonic() + float(args.get("confirm_timeout", 30)) + GRACE
        refusal = ""
        while True:
            self._connection.reset()
            try:
                result = self._call(args, task_vars)
            except AnsibleConnectionFailure as error:
                refusal = str(error)
                if time.monotonic() > deadline:
                    raise
                time.sleep(1)
                continue
            if result.get("failed") and refusal:
                result["msg"] = (
                    f"{result['msg']}. Ansible was told: {refusal}. Take the port of SSH out of"
                    " firewall_protected_ports, or name the control node's address in"
                    " firewall_extra_sources."
                )
            return result

    def _call(self, args: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        result: dict[str, Any] = self._execute_module(
            module_name="ansible.legacy.firewall", module_args=args, task_vars=task_vars
        )
        return result
