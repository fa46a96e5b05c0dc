"""Runs the module of the same name with the launcher's programs; see train/host/calls.py.

Results from hosts are untrusted input, of which only harmless parts are passed on.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase

# For the repository's package: Ansible imports plugins without the project on sys.path.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from train.gang import (
    archives,
    connections,
    launcher,
    login_check,
    login_failures,
    reports,
    suggestions,
    suitability_check,
)
from train.gang.connections import Args, Returned
from train.gang.login_failures import LoginFailure
from train.gang.plan import withdrawal
from train.gang.plan.ranks import PlanError

#: Folder in the job's folder for files fetched from working directories, one subfolder per rank.
COLLECTED = "collected"
#: First calls of plays: they log in before they work, so that a login that fails or hangs is
#: explained in time.
FIRST_CALLS = ("check_host", "check_up", "list_jobs", "state", "stop", "suitability")


def _with_commands(said: Any) -> Any:
    """Return a host's message, or its list of warnings, with suggested commands filled in."""
    if isinstance(said, list):
        return [_with_commands(line) for line in said]
    return suggestions.filled(said) if isinstance(said, str) else said


def _unreachable(failed: LoginFailure) -> Returned:
    return {"unreachable": True, "msg": failed.text}


class ActionModule(ActionBase):  # type: ignore[misc]
    """Runs one command on the host, and the call's part on the control node."""

    def run(self, tmp: str | None = None, task_vars: Args | None = None) -> Returned:
        """Run the action; its arguments are those of the call."""
        connections.end_with_ansible()
        result: Returned = super().run(tmp, task_vars)
        args, variables = self._task.args, task_vars or {}
        if args["call"] in FIRST_CALLS:
            failed = login_check.failure_of(self, str(variables["inventory_hostname"]))
            if failed is not None:
                return {**result, **_unreachable(failed), "call": args["call"]}
        try:
            result.update(self._do(args, variables))
        except AnsibleConnectionFailure as error:
            result.update(_unreachable(login_check.explain(str(error), self._connection)))
        except PlanError as error:
            result.update(failed=True, msg=str(error))
        result["call"] = args["call"]
        return result

    def _do(self, args: Args, variables: Args) -> Returned:
        if args["call"] == "suitability":
            return {"changed": False, **suitability_check.ask(self, variables)}
        if args["call"] == "check_up":
            play = connections.Play(self, variables)
            needs = suitability_check.needs(play, str(variables["inventory_hostname"]))
            return self._call(variables, suitability=needs.request)
        if args["call"] == "stage":
            return self._stage(args, variables)
        if args["call"] == "collect":
            folder, names = Path(args["run_dir"]), args["folders"]
            return self._collect(args, variables, folder, names)
        if args["call"] == "collect_files":
            folder, names = Path(args["run_dir"], COLLECTED), [reports.task(args["task"])]
            return self._collect(args, variables, folder, names)
        if args["call"] == "unstage" and "run_dir" in args:
            withdrawal.withdraw(Path(args["run_dir"]), int(args["attempt"]))
        return self._call(variables)

    def _call(self, task_vars: Args, **more: Any) -> Returned:
        """Run the module; replace Ansible's long error message if the host has no Python."""
        try:
            archive = launcher.archive()
            done = connections.run_module(self, task_vars, launcher=archive, **more)
        except AnsibleConnectionFailure:
            raise
        except AnsibleError as error:
            done = {"failed": True, "msg": str(error)}
        if done.get("failed") and not done.get("unreachable") and self._lacks_python(done):
            host_vars = login_check.variables_of(self._connection)
            return _unreachable(login_failures.failure("no-python", host_vars))
        said = " ".join(str(done.get("module_stderr") or "").split())
        if done.get("failed") and said:
            done["msg"] = f"{str(done.get('msg', '')).rstrip('.')}: {said[:300]}"
        for name in ("msg", "warnings"):
            if name in done:
                done[name] = _with_commands(done[name])
        return done

    def _lacks_python(self, done: Returned) -> bool:
        if done.get("rc") != 127 and "interpreter" not in str(done.get("msg")):
            return False
        found = self._low_level_execute_command(
            "command -v python3 || ls /usr/bin/python3.* /usr/local/bin/python3.* 2>/dev/null"
        )
        return not str(found["stdout"]).strip()

    def _stage(self, args: Args, task_vars: Args) -> Returned:
        """Send the job's archive along, so that a rank needs only one transfer.

        The script's environment is added here, so that it is in no argument or result that could be
        printed.
        """
        try:
            play = connections.Play(self, task_vars)
            environment = play.environment(str(task_vars["inventory_hostname"]))
        except PlanError as error:
            return {"failed": True, "msg": str(error)}
        spec = args["spec"]
        spec = json.loads(spec) if isinstance(spec, str) else spec
        spec = json.dumps({**spec, "environment": environment})
        folder = self._make_tmp_path()
        try:
            archive = self._connection._shell.join_path(folder, "job.tgz")
            self._transfer_file(args["archive"], archive)
            self._fixup_perms2((folder, archive))
            return self._call(task_vars, archive=archive, spec=spec)
        finally:
            self._remove_tmp_path(folder, force=True)

    def _collect(self, args: Args, task_vars: Args, target: Path, names: Sequence[str]) -> Returned:
        """Fetch folders with certain ``names`` and unpack them into ``target``.

        ``trouble`` does not fail the task, because they can be fetched again.
        """
        run_dir, limit = Path(args["run_dir"]), int(float(args["limit_mb"]) * 2**20)
        try:
            packed = self._call(task_vars)
            if packed.get("failed") or packed.get("unreachable"):
                return {"trouble": str(packed.get("msg") or "it cannot be packed")}
            if packed.get("archive") is None:
                return {"changed": False, "trouble": ""}
            with tempfile.TemporaryDirectory(prefix=".fetching-", dir=run_dir) as folder:
                archive = Path(folder, "results.tar.gz")
                connections.fetch(self, reports.path(packed["archive"]), archive, limit)
                target.mkdir(exist_ok=True)
                archives.unpack(archive, target, names, limit, int(args["limit_files"]))
        except (archives.ArchiveError, *connections.FETCH_ERRORS) as error:
            return {"trouble": reports.bounded(str(error) or type(error).__name__)}
        return {"changed": True, "trouble": ""}
