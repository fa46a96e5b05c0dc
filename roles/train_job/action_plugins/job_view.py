"""Puts together what the hosts know of jobs; train/gang/listing.py does the work.

It runs once, after ``job_list`` on every host, whose results are registered as
``__train_job_listing``. Hosts that did not answer are in none of them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

# The repository's own package: Ansible imports plugins without their surroundings.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from train.gang import connections, listing, reports
from train.gang.plan.ranks import PlanError


class ActionModule(ActionBase):  # type: ignore[misc]
    """Lists the jobs (``mode: list``), chooses those to remove (``clean``), or finds the ranks of
    one (``ranks``).
    """

    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run the action; its arguments are those of list.yml, clean.yml and logs.yml."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        args, variables = self._task.args, task_vars or {}
        names = [str(host) for members in args["groups"].values() for host in members]
        told, warnings = {}, []
        for name in names:
            looked = variables["hostvars"][name].get("__train_job_listing") or {}
            if "jobs" in looked:
                try:
                    told[name], wrong = reports.listing(looked["jobs"])
                    warnings += [f"{name}: {reason} is passed over" for reason in wrong[:3]]
                except reports.ReportError as error:
                    warnings.append(f"the job list of {name} is passed over: {error}")
        result["warnings"] = warnings
        jobs = listing.merge(told)
        try:
            connections.check(self, variables)
            if args["mode"] == "clean":
                silent = [name for name in names if name not in told]
                result.update(self._choose(args, jobs, silent))
            elif args["mode"] == "ranks":
                result.update(self._ranks(args, jobs))
            else:
                result.update(jobs=jobs, lines=[listing.line_of(job) for job in jobs])
        except (PlanError, ValueError) as error:
            result.update(failed=True, msg=str(error))
        return result

    def _choose(
        self, args: dict[str, Any], jobs: list[dict[str, Any]], silent: list[str]
    ) -> dict[str, Any]:
        age, keep = args.get("older_than"), args.get("keep")
        old, kept = listing.choose_old(
            jobs,
            silent,
            older_than=listing.seconds_of(str(age)) if age else None,
            keep=None if keep in (None, "") else int(keep),
        )
        return {"remove": listing.where(old), "kept": kept}

    def _ranks(self, args: dict[str, Any], jobs: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the ranks of the one job that was asked for, of a later attempt than ``after``."""
        if not jobs:
            raise PlanError(
                f"no host of this inventory has a rank of job {args['job']}: "
                "`python -m train list` tells the jobs that there are"
            )
        job, after = jobs[0], int(args.get("after") or 0)
        ranks = job["ranks"] if job["attempt"] > after else []
        return {"attempt": job["attempt"], "restarts": job["restarts"], "ranks": ranks}
