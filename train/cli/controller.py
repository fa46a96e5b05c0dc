"""Lets a host of the cluster watch a job (``--on``).

The host becomes one more control node. It starts the job and its watch as ``--detach`` does on this
machine. All commands for the job still contact the hosts directly, and any of them may be lost.
"""

from __future__ import annotations

import contextlib
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from train.cli import commands, inventories, playbooks
from train.cli.ansible_options import AnsibleOptions, Variables
from train.cli.job import Job, run_dir_of, with_kept
from train.cli.output import Exit, announce, complain, noted_interrupts
from train.gang import reports, run_folders, suggestions
from train.gang.errors import UserError

#: Stands for the first host of the gang.
FIRST = "chief"
#: The answer of a host to the request to end a start.
_NOTHING, _STOPPED = "none", "stopped"
#: Maximum characters of a line of a host's output.
_LINE = 2000
_HELP = (
    "{host} must be able to log in to all other hosts by SSH: "
    "run `{setup}` with --tags ssh_keys, or choose another host with --on"
)


def start(args: Namespace, variables: Variables) -> int:
    """Run a command on a host of the cluster, which then watches the job. Return the exit code.

    Without ``--detach``, follow the job from here.
    """
    if args.mlflow:
        raise UserError(
            "--mlflow and --on exclude each other: the host that watches the job does not log it. "
            "Omit one of them"
        )
    if args.command == "run":
        job = _created(args, variables)
        try:
            code = _start(args, job.name, job.inventory, job.variables)
        except BaseException:
            job.forget()
            raise
        if code is not None:
            job.forget()
            job.close()
            return code
        job.close()
    else:
        code = _start(args, args.job, args.inventory, with_kept(args.job, variables))
        if code is not None:
            return code
    if args.detach:
        return Exit.DETACHED
    args.job = args.job or job.name
    return commands.attach(args, variables)


def _created(args: Namespace, variables: Variables) -> Job:
    chosen = {**variables, "train_job_strict": True} if args.strict else variables
    return Job.create(
        args.script,
        args.arguments,
        module=args.module,
        include=args.include,
        requirements=args.requirements,
        framework=args.framework,
        inventory=args.inventory,
        job=args.job,
        variables=chosen,
    )


def _start(
    args: Namespace, job: str, options: AnsibleOptions, variables: Mapping[str, Any]
) -> int | None:
    """Start the watch on the host; return the exit code if that failed or was interrupted."""
    given = {
        **variables,
        "train_job_id": job,
        "train_job_controller": args.on,
        "train_job_controller_command": args.command,
    }
    announce(args.command, f"preparing {args.on} to watch job {job}, which takes longer at first")
    with (
        noted_interrupts() as interrupts,
        contextlib.closing(playbooks.Playbook("controller.yml", options, given)) as playbook,
    ):
        outcome = playbook.outcome
        while not playbook.wait(0.25) and not interrupts:
            for line in outcome.take_waiting():
                complain(args.command, line)
    files = outcome.result("gang_controller")
    host, root = str(files.get("host") or args.on), str(files.get("root") or "")
    if interrupts:
        return _cancel(args.command, job, host, root, options, given)
    started = outcome.results.get("command", {}).get(host)
    if started is None or "rc" not in started:
        for line in outcome.messages:
            complain(args.command, line)
        if root and outcome.unreachable:
            status, stop = (suggestions.command(n, job=job) for n in ("status", "stop"))
            text = f"if {host} has begun to start job {job}, it continues: check with "
            complain(args.command, f"{text}`{status}`, or stop the job with `{stop}`")
        return Exit.UNREACHABLE if outcome.unreachable else Exit.REFUSED
    code = int(started["rc"])
    for line in outcome.messages if code == 0 else ():
        complain(args.command, line)
    for line in _lines(started, ("stderr",) if code == 0 else ("stderr", "stdout")):
        complain(args.command, f"{host}: {line}")
    if code == Exit.UNREACHABLE:
        setup = suggestions.command("setup")
        complain(args.command, _HELP.format(host=host, setup=setup))
    if code:
        return code
    run_dir = run_dir_of(job, variables)
    run_folders.create(run_dir, exist_ok=True)
    inventories.keep(run_dir, options, variables, controller=host)
    lines = [f"host {host} watches job {job} and restarts it"]
    if args.detach:
        for name, what in (("attach", "follow"), ("stop", "stop")):
            lines.append(f"  {what} it with `{suggestions.command(name, job=job)}`")
    complain(args.command, "\n".join(lines))
    return None


def _lines(started: Mapping[str, Any], names: tuple[str, ...]) -> list[str]:
    """Return the host's output, without control characters."""
    text = "\n".join(str(started.get(name) or "") for name in names)
    return [str(reports.bounded(line))[:_LINE] for line in text.splitlines() if line.strip()]


def _cancel(
    command: str,
    job: str,
    host: str,
    root: str,
    options: AnsibleOptions,
    variables: Mapping[str, Any],
) -> int:
    """End a start that was interrupted, and report what it left."""
    if not root:
        complain(command, "nothing was started")
        return Exit.LEFT
    announce(command, f"ending the start on {host}")
    given = {**variables, "train_job_controller": host, "train_job_root": root}
    outcome = playbooks.run_playbook("controller_cancel.yml", options, given)
    said = str(outcome.results.get("shell", {}).get(host, {}).get("stdout") or "").strip()
    said = said or str(outcome.results.get("command", {}).get(host, {}).get("stdout") or "").strip()
    for line in outcome.messages:
        complain(command, line)
    if said in (_NOTHING, _STOPPED):
        complain(command, "nothing was started" if said == _NOTHING else f"job {job} was stopped")
        return Exit.LEFT
    stop = suggestions.command("stop", job=job)
    complain(command, f"job {job} may have started on its hosts: stop it with `{stop}`")
    return Exit.LEFT
