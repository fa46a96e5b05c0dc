"""Follows all ranks of an attempt in one task that runs once, and writes the job's result.

With a task for each host, each rank would occupy one of Ansible's forks. With too few forks, some
ranks would not be watched. Therefore one worker process asks all hosts over separate connections.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, cast

from train.gang import cause_names, connections, events, notify, reports, run_folders, suggestions
from train.gang.connections import Args
from train.gang.job_records import (
    MANIFEST_FILE,
    RESULT_FILE,
    PlannedRank,
    RankResult,
    ResultRecord,
    read_manifest,
    read_result,
    staged,
)
from train.gang.watch import (
    causes,
    diagnosis,
    follow,
    metrics,
    missing_hosts,
    outcome,
    polling,
    views,
)
from train.gang.watch.rank_hosts import RankHosts
from train.host import frameworks, json_files, records
from train.host.records import ABSENT, Update

#: The outcome and the ended ranks, in the job's folder until ``result.json`` is written.
OUTCOME_FILE = ".outcome.json"


def follow_gang(play: connections.Play, args: Args) -> dict[str, object]:
    """Follow all ranks until the gang has ended, and keep the outcome for ``report``."""
    connections.allow_many_connections()
    run_dir = Path(args["run_dir"]).expanduser()
    hosts = RankHosts(play)
    gang = _gang(play, args, connections.say, hosts)
    manifest = run_folders.read_manifest(run_dir.name, run_dir.parent)
    if not args["ranks"]:  # attach has stored the hosts' manifest, which is staged
        json_files.write_json(str(run_dir / MANIFEST_FILE), staged(manifest))
    growth = missing_hosts.growth_of(play, args, manifest, views.views_in_training(gang.views))
    try:
        ended = gang.follow(growth)
    finally:
        hosts.close()
    about = {"outcome": asdict(ended), "ended_ranks": gang.ended_ranks()}
    json_files.write_json(str(run_dir / OUTCOME_FILE), about)
    late = [view for view in gang.views if view.target.host in ended.unreachable]
    gone = sorted({view.target.host for view in late if view.is_gone(time.monotonic())})
    return {
        "state": ended.state,
        "message": ended.message,
        "lost_hosts": ended.unreachable,  # Ansible has a meaning for "unreachable"
        "gone_hosts": gone,
        "leaving": outcome.leaving(gang.views),
        "running": not all(view.final for view in gang.views),
        "grace": ended.grace,
    }


def report(play: connections.Play, args: Args) -> dict[str, object]:
    """Fetch the rest of logs and progress, write ``result.json`` and send notifications."""
    run_dir = Path(args["run_dir"]).expanduser()
    gang = _gang(play, args, lambda line: None, RankHosts(play))
    known_end = json_files.read_json(str(run_dir / OUTCOME_FILE)) or {}
    gang.drain(connections.say, known_end["ended_ranks"])
    ended = outcome.GangOutcome(**known_end["outcome"])
    if args["fetch_error"]:
        attach = suggestions.command("attach", job=args["job"])
        reason = (
            f"the job's results were not fetched: {args['fetch_error']}; try again with `{attach}`"
        )
        ended = replace(ended, message=f"{ended.message}; {reason}")
    result = outcome.result_of(args["job"], ended, gang.views, attempts=int(args["attempt"]))
    result["strict"] = bool(args["strict"])
    for rank in result["ranks"]:
        if error := _fetch_error_of(play, args, rank):
            about = f"the files of {rank['task']} ({rank['host']}) were not fetched"
            result["notes"].append(f"{about}: {reports.bounded(str(error))}")
    known = read_result(run_dir)
    result |= _next_attempt(known, result, run_dir)
    if result["state"] == "failed" and not result["restart"]:
        earlier = causes.earlier_attempts(run_dir, result["attempts"])
        result["message"] = "\n".join([result["message"], *earlier])
    result["doubts"] = _all_doubts(known, result)
    json_files.write_json(str(run_dir / RESULT_FILE), result)
    (run_dir / OUTCOME_FILE).unlink(missing_ok=True)
    state = "restarting" if result["restart"] else result["state"]
    metrics.write(args["metrics_dir"], run_dir.name, state, result["attempts"], gang.views)
    warnings = []
    if known is None:  # attaching to a job that is over sends no notifications
        failure = ["failure"] if result["state"] == "failed" else []
        warnings = _notify(play, result, run_dir, failure + ["end"] * (not result["restart"]))
    if result["restart"]:
        _announce_restart(run_dir, result)
    follows = {"job": run_dir.name, "overtaken": bool(args["overtaken"])}
    then = "restart.yml" if result["restart"] else "end.yml"
    return {**follows, "then": then, "result": result, "warnings": warnings}


def _next_attempt(known: ResultRecord | None, result: ResultRecord, run_dir: Path) -> ResultRecord:
    """Return the fields of ``result.json`` about the next attempt, if any.

    The reported end of a job does not change when a user attaches to the job again. Only the
    control node's earlier result shows whether the job was stopped between two attempts.
    """
    following = causes.next_attempt(result, run_dir)
    if known is None or known["restart"] or known["attempts"] != result["attempts"]:
        return following
    ended = {name: value for name, value in known.items() if name.startswith("restart")}
    if known["state"] == "stopped" and result["state"] == "failed":
        names = ("state", "message", "root_cause", "cause")
        ended |= {name: value for name, value in known.items() if name in names}
    return cast("ResultRecord", {**following, **ended})


def _announce_restart(run_dir: Path, result: ResultRecord) -> None:
    """Show that another attempt follows, and record it in ``events.jsonl``."""
    number, delay = result["attempts"] + 1, result["restart_delay"]
    names = ("root_cause", "cause", "message")
    about = {name: value for name, value in result.items() if name in names}
    events.write(run_dir, restart={"attempt": number, "delay": delay, **about})
    first = result["message"].partition("\n")[0]
    how = "ended" if result.get("cause") in cause_names.PLANNED else "failed"
    connections.say(f"attempt {number - 1} {how}: {first}; attempt {number} starts in {delay:g} s")


def _fetch_error_of(play: connections.Play, args: Args, rank: RankResult) -> str:
    """Return the error of fetching a rank's files; empty if that worked or was not needed."""
    for fetched in play.registered(rank["host"], args["files"]).get("results", ()):
        if fetched["item"]["task"] == rank["task"]:
            return str(
                fetched.get("error") or (fetched.get("unreachable") and fetched["msg"]) or ""
            )
    return ""


def _all_doubts(known: ResultRecord | None, result: ResultRecord) -> list[str]:
    """Return a result's doubts, and those of an earlier watch: they cannot be observed again."""
    same = known is not None and known["state"] == result["state"]
    earlier = known.get("doubts", []) if known is not None and same else []
    return list(dict.fromkeys([*earlier, *result["doubts"]]))


def notify_end(play: connections.Play, run_dir: Path, metrics_dir: str) -> list[str]:
    """Send notifications about a job that ended before its next attempt. Return any errors."""
    ended = read_result(run_dir)
    if ended is None:
        return []
    metrics.write(metrics_dir, run_dir.name, ended["state"], ended["attempts"], ())
    # Other failures were reported when they happened.
    fails_now = ended["state"] == "failed" and ended.get("cause") in cause_names.PLANNED
    return _notify(play, ended, run_dir, ["failure"] * fails_now + ["end"])


def _gang(
    play: connections.Play, args: Args, say: Callable[[str], None], hosts: RankHosts
) -> follow.FollowedGang:
    """Return the ranks of the job, ready to be followed."""
    run_dir = Path(args["run_dir"]).expanduser()
    manifest: Any = read_manifest(run_dir) or {}
    targets = []
    for host, found, planned in _ranks(play, args, manifest.get("ranks", ())):
        start = play.registered(host, args["started"])
        target = _target(play, host, found, planned, start)
        script = str(manifest.get("script", ""))
        framework = str(manifest.get("framework", frameworks.TENSORFLOW))
        targets.append(replace(target, script=script, framework=framework))
    peers = diagnosis.peers_of(manifest.get("cluster", {}))
    limits, folder = _limits(args), args["metrics_dir"]
    return follow.FollowedGang(
        targets, run_dir, hosts.poll, say, limits, peers, hosts.probe, folder, hosts.leave
    )


def _ranks(
    play: connections.Play, args: Args, planned: Sequence[PlannedRank]
) -> list[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Return, for each rank, its host, the host's report and the planned rank."""
    if args["ranks"]:  # attach has found the ranks, possibly several on a host
        by_task = {rank["task"]: rank for rank in planned}
        return [(one["host"], one, by_task.get(one["task"], {})) for one in args["ranks"]]
    by_host = {rank["host"]: rank for rank in planned}
    return [
        (host, play.registered(host, args["staged"])["rank"], by_host.get(host, {}))
        for host in args["hosts"]
    ]


def _limits(args: Args) -> polling.Limits:
    names = [field.name for field in fields(polling.Limits) if field.name in args]
    log_limit = int(float(args["log_limit_mb"]) * 2**20)
    return polling.Limits(log_limit=log_limit, **{name: float(args[name]) for name in names})


def fetch_logs(play: connections.Play, args: Args) -> dict[str, object]:
    """Fetch logs and progress records, once or while they grow, without judging the ranks.

    Return the last ``phases`` of the ranks. ``lost`` has the reasons why some could not be followed
    to their end.
    """
    folder, growing = Path(args["run_dir"]).expanduser(), bool(args["follow"])
    # On a machine with several ranks, some may have no inventory host.
    targets = [_target(play, rank["seen_by"][0], rank, {}, {}) for rank in args["ranks"]]
    busy = (
        f"another process already writes the logs of a job to {folder}: choose another folder "
        "(train_job_logs_dir)"
    )
    hosts = RankHosts(play)
    logs = _Logs(targets, folder, hosts.poll, _limits(args), busy, hosts.leave)
    try:
        return logs.fetch([int(rank["log_from"]) for rank in args["ranks"]], growing)
    finally:
        hosts.close()


class _Logs(polling.Ranks):
    """Ranks whose files are fetched, without deciding how the job ended."""

    longest_backoff = 1.0

    def fetch(self, log_from: Sequence[int], growing: bool) -> dict[str, object]:
        """Fetch each log from its offset in ``log_from``; return the result of ``fetch_logs``."""
        for view, begin in zip(self.views, log_from, strict=True):
            for name, file in self._files[view].items():
                file.clear(begin if name == "log" else 0)

        limit = self._limits.unreachable_timeout if growing else 0.0

        def judge() -> dict[str, object] | None:
            now, phases, lost = time.monotonic(), {}, {}
            late = now - self._began > self._limits.start_timeout
            for view in self.views:
                target = view.target
                another = not target.is_of_attempt(view.state)  # another attempt has started
                phases[target.task] = records.FAILED if another else view.phase
                ended = not growing or view.final or (late and view.phase == ABSENT)
                if another or (ended and view.drained and not view.error):
                    continue
                if not view.error or view.unresponsive_for(now) < limit:
                    return None
                reason = f"is unreachable: {view.error}"
                lost[target.task] = f"{target.task} on {target.host} {reason}"
            return {"phases": phases, "lost": lost}

        try:
            return self._run(judge, views.WAIT if growing else 0.0)
        finally:
            self.close()

    def _take(self, view: views.View, update: Update | Exception, unsaved: str) -> None:
        super()._take(view, OSError(unsaved) if unsaved else update, "")


def _notify(
    play: connections.Play, result: ResultRecord, run_dir: Path, events: Sequence[str]
) -> list[str]:
    """Send notifications about the job's result. Return any errors."""
    hosts = [rank["host"] for rank in result["ranks"]]
    names = ("job", "state", "message", "root_cause", "doubts", "notes", "metrics")
    about: Any = {name: value for name, value in result.items() if name in names}
    about |= {"attempt": result["attempts"], "hosts": hosts, "run_dir": run_dir}
    recipients = play.notification(hosts)
    errors = []
    for event in events:
        errors += notify.send(recipients, event, wait=event == "end", **about)
    return errors


def _target(
    play: connections.Play,
    host: str,
    found: Mapping[str, Any],
    planned: Mapping[str, Any],
    start: Mapping[str, Any],
) -> views.Target:
    """Return a rank to follow, from its host's report, the plan and the result of its start."""
    error = "" if start.get("started", not start) else str(start.get("msg"))
    error = str(found.get("start_error", error))  # the host of a found rank knows more
    rank = {**reports.rank(found), **planned}
    return views.Target(
        host=str(host),
        task=rank["task"],
        rank_dir=rank["rank_dir"],
        host_python=rank["host_python"],
        # A host may only report for itself, whatever place it claims.
        place=" ".join([*play.connection(host), rank["place"]]),
        non_training=rank["non_training"],
        start_error=reports.bounded(error),
        attempt=rank["attempt"],
        job=rank["job"],
    )
