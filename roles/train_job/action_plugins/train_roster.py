"""Chooses the inventory hosts that take part in an attempt; see train/gang/plan/placement.py.

It runs once. What a host cannot do is known from the registered result of ``rank_preflight``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

# The repository's own package: Ansible imports plugins without their surroundings.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from train.gang import connections, reports
from train.gang.plan import placement, ranks


class ActionModule(ActionBase):  # type: ignore[misc]
    """Says who takes part, and warns of each host that does not."""

    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run the action; its arguments are those of roles/train_job/tasks/plan.yml."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        args, variables = self._task.args, task_vars or {}
        groups = {kind: list(hosts) for kind, hosts in args["groups"].items()}
        earlier: list[str] = []
        try:
            connections.check(self, variables)
            if int(args["attempt"]) > 1:
                runs_dir = Path(args["runs_dir"]).expanduser()
                manifest, _ = ranks.read_manifest(args["job"], runs_dir)
                earlier = [rank["host"] for rank in manifest["ranks"]]
            missing, machines = self._look(groups, variables, first=int(args["attempt"]) == 1)
            chosen = placement.choose(
                groups, missing, least=int(args["min_workers"]), earlier=earlier
            )
        except (ranks.PlanError, OSError) as error:
            result.update(failed=True, msg=str(error))
            return result
        reached = {host: _reached(host, variables["hostvars"][host]) for host in machines}
        result["warnings"] = placement.aliases(machines, reached) + [
            f"{host} is left out: {why}" for host, why in chosen.left_out.items()
        ]
        result.update(
            groups={kind: list(hosts) for kind, hosts in chosen.groups.items()},
            hosts=chosen.hosts,
            left_out=dict(chosen.left_out),
        )
        return result

    def _look(
        self, groups: dict[str, list[str]], variables: dict[str, Any], first: bool
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return the hosts that cannot take part, and why; and the machines of the others.

        Raises:
            PlanError: in the first attempt, hosts that answer lack something.
        """
        missing, lacking, machines = {}, {}, {}
        for host in (host for members in groups.values() for host in members):
            if host not in variables["ansible_play_hosts_all"]:
                lacking[host] = (
                    "is not in this play, and a gang needs all hosts of its inventory: run it "
                    "without --limit, and with `hosts:` that has all of the groups"
                )
                continue
            looked = variables["hostvars"][host].get("__train_job_preflight") or {}
            reason = reports.bounded(str(looked.get("msg") or "was not looked at").strip())
            if looked.get("unreachable"):
                missing[host] = f"does not answer: {reason}"
            elif "host" not in looked:
                lacking[host] = reason
            else:
                try:
                    machines[host] = str(reports.facts(looked["host"])["machine"])
                except reports.ReportError as error:
                    lacking[host] = f"what it says of itself is malformed: {error}"
        if first and lacking:
            shared: dict[str, list[str]] = {}
            for host, reason in lacking.items():
                shared.setdefault(reason, []).append(host)
            told = (f"{', '.join(hosts)}: {reason}" for reason, hosts in shared.items())
            raise ranks.PlanError("\n".join(told))
        return {**missing, **lacking}, machines


def _reached(host: str, variables: Any) -> str:
    """Return how Ansible connects to a host, as playbooks/machines.yml tells machines apart."""
    if variables.get("ansible_connection") == "local":
        return "local"
    name, port = variables.get("ansible_host") or host, variables.get("ansible_port") or 22
    return f"{name} port {port}"
