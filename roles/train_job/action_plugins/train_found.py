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

from train.control import plan, play
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
        except (plan.PlanError, OSError) as error:
            result.update(failed=True, msg=str(error))
        return result

    def _find(self, args: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        play.check(self, variables)
        job = str(args["job"])
        if not job:
            raise plan.PlanError("which job? name it: -e train_job_id=JOB")
        names = [host for hosts in args["groups"].values() for host in hosts]
        told = {name: variables["hostvars"][name].get("__train_job_rank") or {} for name in names}
        manifests = [looked["manifest"] for looked in told.values() if looked.get("manifest")]
        path = Path(args["run_dir"]).expanduser() / plan.MANIFEST_FILE if args["run_dir"] else None
        own = records.read_json(str(path)) if path else None
        newest = max([*manifests, *filter(None, [own])], key=_attempt, default=None)
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
        ranks = {
            rank["host"]: self._rank(newest, rank, told.get(rank["host"], {}))
            for rank in newest["ranks"]
        }
        if path is not None and (own is None or _attempt(own) < _attempt(newest)):
            path.parent.mkdir(parents=True, exist_ok=True)
            if own is not None:
                plan.set_aside(path.parent, _attempt(own))
            records.write_json(str(path), newest)
        # Of those that take part: one that was replaced may be back, with the job's files.
        holders = [name for name in ranks if told.get(name, {}).get("manifest")]
        return {
            "manifest": newest,
            "attempt": _attempt(newest),
            "hosts": list(ranks),
            "ranks": ranks,
            "holder": holders[0] if holders else None,
        }

    def _rank(
        self, manifest: dict[str, Any], planned: dict[str, Any], looked: dict[str, Any]
    ) -> dict[str, Any]:
        """Return a rank as ``rank_stage`` returns it, from its host or else from the manifest."""
        found = looked.get("rank")
        if found and found["attempt"] == manifest["attempt"] and found["task"] == planned["task"]:
            return dict(found)
        facts = manifest["hosts"][planned["host"]]
        job_dir = f"{facts['root']}/jobs/{manifest['job']}"
        error = "whoever started the job ended before its turn came"
        return {
            "job": manifest["job"],
            "task": planned["task"],
            "attempt": manifest["attempt"],
            "rank_dir": f"{job_dir}/{planned['task']}",
            "home": f"{job_dir}/{planned['home']}",
            "port": planned["port"],
            "service": planned["service"],
            "host_python": facts["host_python"],
            "place": f"{planned['host']} alone",
            "start_error": "" if looked.get("unreachable") else error,
        }


def _attempt(manifest: dict[str, Any]) -> int:
    return int(manifest["attempt"])
