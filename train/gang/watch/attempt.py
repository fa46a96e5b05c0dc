"""Follows all ranks of an attempt from one task that runs once, and writes the job's result.

With a task for each host, Ansible would hold one fork a rank, and with fewer forks than ranks the
rest would not be watched. Here one worker process asks all hosts, over connections of their own.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from train.gang import connections, notify, reports
from train.gang.plan import ranks as plan
from train.gang.records import MANIFEST_FILE, RESULT_FILE, Result, read_manifest, read_result
from train.gang.watch import causes, diagnosis, follow, metrics, outcome, views
from train.gang.watch.fetched import FetchedFile
from train.host import probe, records, updates
from train.host import ranks as host_ranks
from train.host.records import Cursor, Update

#: Seconds that a host has to connect to all ranks.
PROBE_TIMEOUT = 3.0
#: The longest pause in seconds between two tries to reach a host whose logs are fetched.
LOGS_BACKOFF = 1.0

Args = connections.Args


def follow_gang(play: connections.Play, args: Args) -> dict[str, object]:
    """Follow all ranks until the gang has come to an end, and return its ``outcome``."""
    run_dir = Path(args["run_dir"]).expanduser()
    gang = _gang(play, args, connections.say)
    if not args["ranks"]:  # attach knows it from the hosts
        manifest = plan.read_manifest(run_dir.name, run_dir.parent)
        records.write_json(str(run_dir / MANIFEST_FILE), plan.staged(manifest))
    ended = gang.follow()
    return {"outcome": asdict(ended), "running": not all(view.final for view in gang.views)}


def report(play: connections.Play, args: Args) -> dict[str, object]:
    """Fetch the rest of logs and progress, write ``result.json`` and notify."""
    run_dir = Path(args["run_dir"]).expanduser()
    gang = _gang(play, args, lambda line: None)
    ended = gang.drain(outcome.Outcome(**args["outcome"]))
    if args["trouble"]:
        reason = f"its results were not fetched: {args['trouble']}: attach to it again"
        ended = replace(ended, message=f"{ended.message}; {reason}")
    result = outcome.result_of(args["job"], ended, gang.views, attempts=int(args["attempt"]))
    result |= causes.next_attempt(result, run_dir, bool(args["supervised"]))
    known = read_result(run_dir)
    records.write_json(str(run_dir / RESULT_FILE), result)
    state = "restarting" if result["restart"] else result["state"]
    metrics.write(args["metrics_dir"], run_dir.name, state, result["attempts"], gang.views)
    warnings = []
    if known is None:  # to attach to a job that is over notifies nobody
        failure = ["failure"] if result["state"] == "failed" else []
        warnings = _notify(play, result, run_dir, failure + ["end"] * (not result["restart"]))
    return {"result": result, "warnings": warnings}


def over(play: connections.Play, args: Args) -> dict[str, object]:
    """Report that a job is over which nobody starts again."""
    run_dir = Path(args["run_dir"]).expanduser()
    ended = read_result(run_dir)
    if ended:
        metrics.write(args["metrics_dir"], run_dir.name, ended["state"], ended["attempts"], ())
    return {"warnings": _notify(play, ended, run_dir, ["end"]) if ended else []}


def _gang(play: connections.Play, args: Args, say: Callable[[str], None]) -> follow.Gang:
    """Return the gang as it is to be followed."""
    run_dir, hosts = Path(args["run_dir"]).expanduser(), Hosts(play)
    manifest: Any = read_manifest(run_dir) or {}
    planned = {rank["host"]: rank for rank in manifest.get("ranks", ())}
    targets = []
    for host in args["hosts"]:  # attach knows where they are; else they have registered it
        found = args["ranks"] or {host: play.registered(host, "__train_job_rank")["rank"]}
        targets.append(_target(play, host, found[host], planned.get(host, {})))
    configs = list(manifest.get("tf_config", {}).values())
    peers = diagnosis.peers_of(configs[0]["cluster"]) if configs else {}
    limits, folder = _limits(args), args["metrics_dir"]
    return follow.Gang(targets, run_dir, hosts.poll, say, limits, peers, hosts.probe, folder)


def _limits(args: Args) -> follow.Limits:
    names = [field.name for field in fields(follow.Limits) if field.name in args]
    log_limit = int(float(args["log_limit_mb"]) * 2**20)
    return follow.Limits(log_limit=log_limit, **{name: float(args[name]) for name in names})


def fetch_logs(play: connections.Play, args: Args) -> dict[str, object]:
    """Fetch logs and progress records, as they are or as they grow, and judge nothing; its
    arguments: roles/train_job/tasks/logs.yml.

    Returns:
        The last ``phases`` of the ranks, and why some are ``lost``: not heard to their end.
    """
    folder, limits = Path(args["run_dir"]).expanduser(), _limits(args)
    # Not all ranks of a machine need have an inventory host.
    targets = [_target(play, rank["seen_by"][0], rank, {}) for rank in args["ranks"]]
    log_from = {str(rank["task"]): int(rank["log_from"]) for rank in args["ranks"]}
    poll, growing = Hosts(play).poll, bool(args["follow"])
    phases: dict[str, str] = {}
    lost: dict[str, str] = {}

    def fetch(members: Sequence[views.Target]) -> None:
        """Fetch those of one machine."""
        ranks = {target.rank_dir: target for target in members}
        cursors = {t.rank_dir: follow.start_at(log=log_from[t.task]) for t in members}
        began = answered = time.monotonic()
        wait, over = views.WAIT if growing else 0.0, threading.Event()
        for answer in follow.answers(
            members[0], cursors, poll, wait, limits.interval, over, longest_backoff=LOGS_BACKOFF
        ):
            try:
                if isinstance(answer, Exception):
                    raise answer
                for rank_dir, update in answer.items():
                    if ranks[rank_dir].is_of_attempt(update["state"]):
                        _save(update, files[ranks[rank_dir].task], cursors[rank_dir])
            except Exception as error:
                if not growing or time.monotonic() - answered > limits.unreachable_timeout:
                    reason = str(error) or type(error).__name__
                    for target in (ranks[rank_dir] for rank_dir in cursors):
                        where = f"{target.task} on {target.host}"
                        lost[target.task] = f"{where} is unreachable: {reason}"
                    return
                if error is not answer:
                    time.sleep(LOGS_BACKOFF)
                continue
            answered = time.monotonic()
            for rank_dir, update in answer.items():
                target, phase = ranks[rank_dir], update["state"]["phase"]
                another = not target.is_of_attempt(update["state"])  # started again meanwhile
                phases[target.task] = records.FAILED if another else phase
                cursors[rank_dir] = update["cursor"]
                late = phase == host_ranks.ABSENT and answered - began > limits.start_timeout
                ended = not growing or late or phase in records.FINAL_PHASES
                if another or (ended and not update["more"]):
                    del cursors[rank_dir]

    folder.mkdir(parents=True, exist_ok=True)
    busy = f"another process follows a job into {folder}: give another folder (train_job_logs_dir)"
    lock = follow.lock(folder, busy)
    try:
        files = {t.task: follow.fetched_files(folder, t.task, limits.log_limit) for t in targets}
        for file in (file for own in files.values() for file in own.values()):
            file.path.parent.mkdir(exist_ok=True)
            file.clear()
        threads = [
            threading.Thread(target=fetch, args=(members,), daemon=True)
            for members in follow.by_place(targets)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        os.close(lock)
    return {"phases": phases, "lost": lost}


def _save(update: Update, files: Mapping[reports.FileName, FetchedFile], cursor: Cursor) -> None:
    for name, file in files.items():
        if update[name]:
            file.append(update[name].encode("utf-8", "surrogateescape"), update["cursor"][name])
            cursor[name] = update["cursor"][name]


def _notify(
    play: connections.Play, result: Result, run_dir: Path, events: Sequence[str]
) -> list[str]:
    """Notify of the job's result, and return what went wrong with that."""
    hosts = [rank["host"] for rank in result["ranks"]]
    troubles = []
    for event in events:
        troubles += notify.send(
            play.notification(hosts),
            event,
            wait=event == "end",
            job=result["job"],
            attempt=result["attempts"],
            state=result["state"],
            message=result["message"],
            root_cause=result["root_cause"],
            metrics=result["metrics"],
            hosts=hosts,
            run_dir=run_dir,
        )
    return troubles


def _target(
    play: connections.Play, host: str, found: Mapping[str, Any], planned: Mapping[str, Any]
) -> views.Target:
    """Return a rank to follow, from what its host reports of it and what was planned."""
    start = play.registered(host, "__train_job_start") or {"started": True}
    error = "" if start.get("started") else str(start.get("msg"))
    error = str(found.get("start_error") or error)
    rank = {**reports.rank(found), **planned}
    return views.Target(
        host=str(host),
        task=rank["task"],
        rank_dir=rank["rank_dir"],
        host_python=rank["host_python"],
        # A host speaks for itself alone, whatever place it reports.
        place=" ".join([*play.connection(host), rank["place"]]),
        non_training=rank["non_training"],
        start_error=reports.bounded(error),
        attempt=int(rank.get("attempt", 1)),
    )


class Hosts:
    """Asks the hosts of ranks, over connections of the play."""

    def __init__(self, play: connections.Play) -> None:
        self._play = play

    def poll(
        self, target: views.Target, cursors: dict[str, Any], wait: float, interval: float
    ) -> Mapping[str, object]:
        """Return what is new of the ranks there; see train/host/updates.py."""
        if self._play.is_here(target.host, "updates"):
            # This machine trains, too: a process for each request would cost it a step in fifty.
            return updates.wait_for_updates(cursors, wait, interval)
        return self._run(target, "updates", json.dumps(cursors), str(wait), str(interval))

    def probe(self, target: views.Target, peers: diagnosis.Peers) -> Mapping[str, object]:
        """Return how a rank's host reaches the others; see train/host/probe.py."""
        if self._play.is_here(target.host, "probe"):
            return probe.check(target.rank_dir, dict(peers), PROBE_TIMEOUT)
        return self._run(target, "probe", target.rank_dir, json.dumps(peers), str(PROBE_TIMEOUT))

    def _run(self, target: views.Target, program: str, *arguments: str) -> Mapping[str, object]:
        """Run one of the launcher's programs on a rank's host and return what it prints."""
        words = [target.host_python, "-S", "-E", "-m", f"train.host.{program}", *arguments]
        launcher = f"{target.rank_dir}/{records.LAUNCHER_DIR}"
        return self._play.run(target.host, program, words, launcher)
