"""Actions of the plugin ``gang_call``: one function per call, each for all hosts of the job.

Each function takes the surrounding play and the arguments of its task in roles/train_job/tasks,
and returns the task's result. It runs once, on the control node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from train.gang import (
    connections,
    leasing,
    listing,
    login_failures,
    reports,
    restarting,
    suggestions,
    suitability_check,
    tensorboard,
)
from train.gang.doctor import examine
from train.gang.packages import of_gang
from train.gang.plan import attempt as planning
from train.gang.plan import placement, ranks, reattach, renaming, withdrawal
from train.gang.plan.ranks import NothingAnsweredError, PlanError
from train.gang.records import MANIFEST_FILE, Job, Manifest
from train.gang.watch import attempt as watching
from train.gang.watch import journal, polling, reachability
from train.host import records

Args = connections.Args
Result = dict[str, object]


def choose_hosts(play: connections.Play, args: Args) -> Result:
    """Choose the hosts of an attempt from the results of ``check_host``, and warn about others."""
    groups = {kind: list(hosts) for kind, hosts in args["groups"].items()}
    first, earlier = int(args["attempt"]) == 1, []
    if not first:
        manifest = _known_manifest(play, groups, args)
        earlier = [rank["host"] for rank in manifest["ranks"]]
    missing, machines, unreachable = _machines(play, groups, first)
    if unreachable and len(unreachable) == len({host for part in groups.values() for host in part}):
        raise NothingAnsweredError("no host answered, and nothing was started")
    # The host's own failed task shows why it is unreachable.
    brief = {**missing, **dict.fromkeys(unreachable, "unreachable")}
    chosen = placement.choose(groups, brief, least=int(args["min_workers"]), earlier=earlier)
    chosen["left_out"] = {host: missing[host] for host in chosen["left_out"]}
    reached = {}  # machines are distinguished as in playbooks/machines.yml
    for host in machines:
        plugin, address, port, _ = play.connection(host)
        reached[host] = "local" if plugin == "local" else f"{address} port {port or 22}"
    warnings = placement.aliases(machines, reached)
    warnings += _left_out(chosen["left_out"])
    return {**chosen, "warnings": warnings}


def _known_manifest(
    play: connections.Play, groups: Mapping[str, Sequence[str]], args: Args
) -> Manifest:
    """Return the manifest of the previous attempt, stored with the host names of this play."""
    runs_dir = Path(args["runs_dir"]).expanduser()
    manifest = ranks.read_manifest(args["job"], runs_dir)
    names = [host for members in groups.values() for host in members]
    checked = {host: play.registered(host, "__train_job_preflight") for host in names}
    reported = {host: result.get("ranks") or () for host, result in checked.items()}
    named = renaming.in_names_of(manifest, renaming.inventory_of(play, names, reported))
    if named is not manifest and not play.check_mode:
        records.write_json(str(runs_dir / args["job"] / MANIFEST_FILE), named)
    return named


def _left_out(reasons: Mapping[str, str]) -> list[str]:
    """Return a warning for each reason to leave hosts out."""
    return [
        f"{login_failures.names_of(names)} {'is' if len(names) == 1 else 'are'} left out: {why}"
        for why, names in placement.by_reason(reasons).items()
    ]


def _machines(
    play: connections.Play, groups: Mapping[str, Sequence[str]], first: bool
) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Return excluded hosts with reasons, the machines of the others, and the unreachable hosts.

    In the first attempt, a reachable host that is unsuitable raises PlanError.
    """
    missing, lacking, machines = {}, {}, {}
    for host in (host for members in groups.values() for host in members):
        if host not in play.hosts:
            lacking[host] = (
                "is not in this play, and a gang needs all hosts of its inventory: run it "
                "without --limit, and with `hosts:` that has all of the groups"
            )
            continue
        checked = play.registered(host, "__train_job_preflight")
        reason = reports.bounded(str(checked.get("msg") or "was not checked").strip())
        if checked.get("unreachable"):
            missing[host] = f"unreachable: {login_failures.of_result(checked).sentence}"
        elif "host" not in checked:
            lacking[host] = reason
        else:
            try:
                machines[host] = reports.facts(checked["host"])["machine"]
            except reports.ReportError as error:
                lacking[host] = f"what it reports of itself is malformed: {error}"
    if first and lacking:
        shared = placement.by_reason(lacking).items()
        named = (f"{login_failures.names_of(hosts)}: {reason}" for reason, hosts in shared)
        raise PlanError("\n".join(named))
    return {**missing, **lacking}, machines, list(missing)


def wait(play: connections.Play, args: Args) -> Result:
    """Wait for the job's ports and GPUs and lease them. No host needs files of the job yet."""
    manifest: Manifest = args["manifest"]
    run_dir = Path(args["run_dir"])
    tasks = {rank["host"]: rank["task"] for rank in manifest["ranks"]}

    def ask(host: str, request: leasing.Request) -> Mapping[str, object]:
        python = manifest["hosts"][host]["host_python"]
        return play.call(host, "leases", python, {"call": "lease", **request})

    def note(host: str, text: str) -> None:
        about = {"task": tasks[host], "host": host, "phase": "waiting" if text else "ready"}
        unknown: dict[str, object] = {"exit_code": None, "progress": {}, "age": None}
        journal.write_event(run_dir, **about, **unknown, reason=text, last_line=text)

    requests, limit = leasing.requests_of(manifest), float(args["unreachable_timeout"])
    waiting = leasing.Waiting(requests, ask, connections.say, note, limit)
    try:
        waiting.take(float(args["wait"]))
    except leasing.StoppedError as error:
        withdrawal.withdraw(run_dir, int(manifest["attempt"]))
        message = f"nothing was started: the job {error}"
        return {"failed": True, "msg": message, "stopped": str(error)}
    except (leasing.LeasingError, OSError) as error:
        withdrawal.withdraw(run_dir, int(manifest["attempt"]))
        raise PlanError(f"nothing was started: {error}") from error
    return {}


def require_staged(play: connections.Play, args: Args) -> Result:
    """Require that every rank of an attempt is staged, because all of them must start together."""
    lost: dict[str, login_failures.LoginFailure] = {}
    lacking: dict[str, str] = {}
    flags: Result = {}
    for host in args["hosts"]:
        staged = play.registered(host, "__train_job_rank")
        if staged.get("unreachable"):
            lost[host] = login_failures.of_result(staged)
        elif (staged.get("rank") or {}).get("attempt") != int(args["attempt"]):
            lacking[host] = reports.bounded(str(staged.get("msg") or "was not staged"))
            flags |= {name: staged[name] for name in ("overtaken", "stopped") if name in staged}
    if not (lost or lacking):
        return {}
    if not lacking:
        flags["nothing_answered"] = True  # the hosts' own failures have the reason
    named = [
        f"{login_failures.names_of(hosts)}: {reason}"
        for reason, hosts in placement.by_reason(lacking).items()
    ]
    return {**flags, "failed": True, "msg": "\n".join([*login_failures.merged(lost), *named])}


def neighbours(play: connections.Play, args: Args) -> Result:
    """Return ``beside``: for each host, all names of its machine in this play.

    The ranks that a job has there under names of another inventory belong to them.
    """
    return {"beside": play.neighbours()}


def _listed(play: connections.Play, args: Args) -> tuple[list[Job], list[str], list[str]]:
    """Return all jobs in the hosts' results, the hosts without an answer, and warnings."""
    names = [str(host) for members in args["groups"].values() for host in members]
    found, warnings = {}, []
    for name in names:
        listed = play.registered(name, "__train_job_listing")
        if "jobs" in listed:
            try:
                found[name], wrong = reports.listing(listed["jobs"])
                warnings += [f"{name}: {reason} is passed over" for reason in wrong[:3]]
            except reports.ReportError as error:
                warnings.append(f"the job list of {name} is passed over: {error}")
    return listing.merge(found), [name for name in names if name not in found], warnings


def jobs(play: connections.Play, args: Args) -> Result:
    """Return all ``jobs`` and a line about each."""
    found, _, warnings = _listed(play, args)
    lines = [listing.line_of(job) for job in found]
    return {"jobs": found, "lines": lines, "warnings": warnings}


def old_jobs(play: connections.Play, args: Args) -> Result:
    """Return the jobs to ``remove`` by host, and why others are ``kept``."""
    found, unreachable, warnings = _listed(play, args)
    age, keep = args.get("older_than"), args.get("keep")
    old, kept = listing.choose_old(
        found,
        unreachable,
        names=[host for members in args["groups"].values() for host in members],
        older_than=listing.seconds_of(str(age)) if age else None,
        keep=None if keep in (None, "") else int(keep),
    )
    return {"warnings": warnings, "remove": listing.where(old), "kept": kept}


def job_ranks(play: connections.Play, args: Args) -> Result:
    """Return the ranks of a job if its attempt is later than ``after``."""
    found, _, warnings = _listed(play, args)
    if not found:
        raise PlanError(
            f"no host of this inventory has a rank of job {args['job']}: "
            f"`{suggestions.command('list')}` shows the jobs that there are"
        )
    job, after = found[0], int(args.get("after") or 0)
    return {
        "warnings": warnings,
        "attempt": job["attempt"],
        "restarts": job["restarts"],
        "ranks": job["ranks"] if job["attempt"] > after else [],
    }


def _attach_again(args: Args) -> str:
    """Explain how to follow the job again after the watch has ended."""
    job = str(args.get("job") or Path(str(args.get("run_dir", ""))).name)
    try:
        return f"attach again with `{suggestions.command('attach', job=job)}`"
    except ValueError:  # its logs are in a folder that is not named after a job
        return "attach to it again"


#: Calls that run once for all hosts. An error becomes the task's message.
CALLS: dict[str, Callable[[connections.Play, Args], Result]] = {
    "addresses": examine.addresses,
    "await_restart": restarting.await_restart,
    "check_variables": planning.check_variables,
    "choose_hosts": choose_hosts,
    "doctor": examine.doctor,
    "fetch_logs": watching.fetch_logs,
    "follow": watching.follow_gang,
    "job_ranks": job_ranks,
    "jobs": jobs,
    "judge_refusal": restarting.judge_refusal,
    "lock_packages": of_gang.lock_packages,
    "lock_packages_of_machines": of_gang.lock_packages_of_machines,
    "neighbours": neighbours,
    "old_jobs": old_jobs,
    "plan": planning.plan_attempt,
    "reattach": reattach.find,
    "report": watching.report,
    "require_staged": require_staged,
    "suitability": suitability_check.judge,
    "tensorboard": tensorboard.choose,
    "wait": wait,
}
#: An error in these ends the watch, but not the job.
OBSERVERS = ("await_restart", "fetch_logs", "follow", "judge_refusal", "report")
#: For these, the hosts of a play need not run the tasks together.
_FOR_EACH_HOST = ("neighbours",)


def run(play: connections.Play, name: str, args: Args) -> Result:
    """Run one call and return the task's result."""
    try:
        if name not in (*OBSERVERS, *_FOR_EACH_HOST):
            play.check()
        return CALLS[name](play, args)
    except polling.BusyError as error:
        return {"failed": True, "msg": str(error)}
    except NothingAnsweredError as error:
        return {"failed": True, "nothing_answered": True, "msg": str(error)}
    except Exception as error:
        if name in OBSERVERS:
            known = isinstance(error, (reachability.WatchEndedError, OSError))
            ended = f"the watch has ended: {error if known else repr(error)}"
            message = f"{ended}; the job is left as it is: {_attach_again(args)}"
            return {"failed": True, "left_running": name != "fetch_logs", "msg": message}
        if isinstance(error, (PlanError, OSError, ValueError)):
            return {"failed": True, "msg": str(error)}
        raise
