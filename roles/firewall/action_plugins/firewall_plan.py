"""Ansible action plugin: who the members of the cluster are, and which ports each machine has.

Runs once for a play, on the control node: on every host, it would cost the square of their number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase


def plan(
    hosts: list[str], variables: Mapping[str, Mapping[str, Any]], default_port: int
) -> dict[str, Any]:
    """Return ``members``, a list of each member's names, and ``ports`` by inventory host.

    Inventory hosts that Ansible reaches at one address and port are ranks of one machine: each of
    them is given the ports of all.

    Raises:
        AnsibleActionFail: a variable of a host cannot be read.
    """
    members: dict[tuple[str, ...], None] = {}
    machines: dict[tuple[str, str], set[str]] = {}
    place: dict[str, tuple[str, str]] = {}
    for host in hosts:
        try:
            own = variables[host]
            reached = str(own.get("ansible_host") or host)
            address = str(own.get("train_job_address") or reached)
            port = str(own.get("train_job_port", default_port))
            ssh_port = str(own.get("ansible_port") or 22)
            local = own.get("ansible_connection") == "local"
        except AnsibleError as error:
            raise AnsibleActionFail(f"{host}: {error}") from error
        if not local or address != reached:
            # What Ansible calls a host may be known to the control node only.
            members[tuple(sorted({address, reached}))] = None
        place[host] = (reached, ssh_port)
        machines.setdefault(place[host], set()).add(port)
    return {
        "members": [list(names) for names in members],
        "ports": {host: sorted(machines[place[host]]) for host in hosts},
    }


class ActionModule(ActionBase):  # type: ignore[misc]
    """Return the plan; nothing runs on a host."""

    _supports_check_mode = True
    _requires_connection = False
    _VALID_ARGS = frozenset(("hosts", "default_port"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> Any:
        """The plan."""
        super().run(tmp, task_vars)
        variables = (task_vars or {})["hostvars"]
        args = self._task.args
        return {"changed": False, **plan(args["hosts"], variables, args["default_port"])}
