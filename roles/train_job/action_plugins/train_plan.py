"""Settles on the control node what the gang will be; the task that uses it runs once."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from ansible.plugins.action import ActionBase
from ansible.release import __version__ as ansible_version

# The repository's own package: Ansible imports plugins without their surroundings.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from train.control import gpus, plan, staging

SPECS = Path(__file__).resolve().parents[1] / "meta" / "argument_specs.yml"


class ActionModule(ActionBase):  # type: ignore[misc]
    """Checks the gang as a whole, packs the code and writes the manifest."""

    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run the action; its arguments are those of roles/train_job/tasks/plan.yml."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            result.update(self._plan(self._task.args, task_vars or {}))
        except plan.PlanError as error:
            result.update(failed=True, msg=str(error))
        return result

    def _plan(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        groups = {kind: list(hosts) for kind, hosts in args["groups"].items()}
        names = [host for members in groups.values() for host in members]
        missing = [name for name in names if name not in task_vars["ansible_play_hosts"]]
        if missing:
            raise plan.PlanError(
                f"{', '.join(missing)} cannot take part: a gang needs all hosts of its inventory "
                "(a --limit leaves no smaller gang)"
            )
        specs = yaml.safe_load(SPECS.read_text(encoding="utf-8"))["argument_specs"]
        known = {name for entry in specs.values() for name in entry["options"]}
        for name in names:
            plan.check_variables({**task_vars["hostvars"][name]}, known)
        plan.check_variables({name: args["numbers"].get(name) for name in plan.LEAST}, known)
        hosts = {
            name: dict(task_vars["hostvars"][name]["__train_job_preflight"]["host"])
            for name in names
        }
        ranks = gpus.share(plan.plan_ranks(groups, hosts), hosts)
        folder, entry = staging.find_script(args["script"])
        include = staging.find_includes(args["include"])
        code = staging.code_files(
            folder, include, exclude=args["exclude"], limit_mb=args["code_limit_mb"]
        )
        cluster = plan.cluster_of(args["cluster"])
        first = plan.tf_config(cluster, ranks[0])
        arguments = [str(argument) for argument in args["arguments"]]
        staging.check_arguments(folder / entry, code, arguments, json.dumps(first))
        planned: dict[str, Any] = {
            "entry": entry,
            "cluster": args["cluster"],
            "ranks": {rank.host: asdict(rank) for rank in ranks},
        }
        if self._task.check_mode:
            return dict(planned, job=args["job"], changed=False)

        runs_dir = Path(args["runs_dir"]).expanduser().resolve()
        job, run_dir = plan.choose_job(args["job"], folder / entry, runs_dir)
        archive = run_dir / "code.tar.gz"
        digest = staging.pack(code, archive)
        plan.write_manifest(
            run_dir,
            job=job,
            script=folder / entry,
            include=include,
            arguments=arguments,
            cluster=cluster,
            ranks=ranks,
            hosts=hosts,
            settings=args["settings"],
            code_sha256=digest,
            ansible_version=ansible_version,
        )
        return dict(planned, job=job, run_dir=str(run_dir), archive=str(archive), changed=True)
