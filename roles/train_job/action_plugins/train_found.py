"""Puts together what the hosts keep of a job, for a control node that may know nothing of it.

It runs once, after ``rank_state`` has looked at every host. What is not known of one that did not
answer is in the description of the job that the others keep.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

# The repository's own package: Ansible imports plugins without their surroundings.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from train.control import manifests, plan, play, reports
from train.host import records


class ActionModule(ActionBase):  # type: ignore[misc]
    """Returns ``manifest``, ``hosts`` (chief first) and ``ranks`` by host."""

    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run the action; its arguments are those of roles/train_job/tasks/find.yml."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            result.update(self._find(self._task.args, task_vars or {}))
        except (plan.PlanError, OSError, ValueError) as error:
            result.update(failed=True, msg=str(error))
        return result

    def _find(self, args: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        play.check(self, variables)
        job = str(args["job"])
        if not job:
            raise plan.PlanError("which job? name it: -e train_job_id=JOB")
        plan.check_id(job)
        names = [host for hosts in args["groups"].values() for host in hosts]
        told = {name: variables["hostvars"][name].get("__train_job_rank") or {} for name in names}
        path = Path(args["run_dir"]).expanduser() / plan.MANIFEST_FILE if args["run_dir"] else None
        own = records.read_json(str(path)) if path else None
        kept = {name: looked["manifest"] for name, looked in told.items() if looked.get("manifest")}
        newest, warnings = manifests.choose(kept, own, job, names)
        if newest is None:
            silent = [name for name, looked in told.items() if looked.get("unreachable")]
            raise plan.PlanError(
                f"no host has anything of job {job} in {args['root']}"
                + (f", and {', '.join(silent)} did not answer" if silent else "")
                + ": is this the inventory that the job was started with?"
            )
        absent = [rank["host"] for rank in newest["ranks"]]
        absent = [host for host in absent if host not in variables["ansible_play_hosts_all"]]
        if absent and variables.get("ansible_limit"):
            raise plan.PlanError(
                f"{', '.join(absent)} of job {job} are not in this play: run it without --limit"
            )
        facts = (own or {}).get("hosts", {})
        ranks = {
            rank["host"]: self._rank(newest, rank, told.get(rank["host"], {}), facts, args["root"])
            for rank in newest["ranks"]
        }
        if path is not None and newest is not own:
            path.parent.mkdir(parents=True, exist_ok=True)
            if own is not None and _attempt(own) < _attempt(newest):
                plan.set_aside(path.parent, _attempt(own))
            records.write_json(str(path), newest)
        # Of those that take part: one that was replaced may be back, with the job's files.
        holders = [name for name in ranks if name in kept]
        return {
            "warnings": warnings,
            "manifest": newest,
            "attempt": _attempt(newest),
            "hosts": list(ranks),
            "ranks": ranks,
            "holder": holders[0] if holders else None,
        }

    def _rank(
        self,
        manifest: dict[str, Any],
        planned: dict[str, Any],
        looked: dict[str, Any],
        facts: dict[str, Any],
        root: str,
    ) -> dict[str, Any]:
        """Return a rank as ``rank_stage`` returns it, from its host or else as far as it is known.

        Args:
            facts: what this control node knows of the hosts: what another host says of one is not
                asked.
            root: where the jobs lie on a host that this control node does not know.
        """
        if looked.get("rank"):
            found = reports.rank(looked["rank"])
            same = (found["attempt"], found["task"]) == (manifest["attempt"], planned["task"])
            if same and found["job"] == manifest["job"]:
                return found
        known = facts.get(planned["host"], {"root": root, "host_python": "python3"})
        job_dir = f"{known['root']}/jobs/{manifest['job']}"
        error = "whoever started the job ended before its turn came"
        return {
            "job": manifest["job"],
            "task": planned["task"],
            "attempt": manifest["attempt"],
            "rank_dir": f"{job_dir}/{planned['task']}",
            "home": f"{job_dir}/{planned['home']}",
            "port": planned["port"],
            "service": planned["service"],
            "host_python": known["host_python"],
            "place": f"{planned['host']} alone",
            "start_error": "" if looked.get("unreachable") else error,
        }


def _attempt(manifest: dict[str, Any]) -> int:
    return int(manifest["attempt"])
