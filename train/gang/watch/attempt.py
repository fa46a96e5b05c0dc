"""Follows all ranks of an attempt from one task that runs once, and writes the job's result.

With a task for each host, Ansible would hold one fork a rank, and with fewer forks than ranks the
rest would not be watched. Here one worker process asks all hosts, over connections of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from train.gang import connections, notify, reports
from train.gang.plan import ranks as plan
from train.gang.watch import diagnosis, follow, listen, outcome, restarts, views
from train.host import probe, records, updates

#: Seconds that a host has to connect to all ranks.
PROBE_TIMEOUT = 3.0


def follow_gang(play: connections.Play, args: Mapping[str, Any]) -> dict[str, Any]:
    """Follow all ranks until the gang has come to an end, and return its ``verdict``.

    Args:
        args: those of roles/train_job/tasks/watch.yml; ``ranks`` where attach found them.
    """
    run_dir = Path(args["run_dir"]).expanduser()
    gang = _gang(
        play,
        args,
        connections.say,
        end_timeout=float(args["end_timeout"]),
        straggler_factor=float(args["straggler_factor"]),
        peers=_peers(run_dir),
        disconnected_timeout=float(args["disconnected_timeout"]),
    )
    if not args["ranks"]:  # attach knows it from the hosts
        manifest, _ = plan.read_manifest(run_dir.name, run_dir.parent)
        records.write_json(str(run_dir / plan.MANIFEST_FILE), plan.staged(manifest))
    return {"verdict": asdict(gang.follow()), "running": _running(gang)}


def report(play: connections.Play, args: Mapping[str, Any]) -> dict[str, Any]:
    """Fetch the rest of logs and progress, write ``result.json`` and notify.

    Args:
        args: those of roles/train_job/tasks/watch.yml.
    """
    run_dir = Path(args["run_dir"]).expanduser()
    gang = _gang(play, args, lambda line: None)
    verdict = gang.drain(outcome.Verdict(**args["verdict"]))
    if args["trouble"]:
        reason = f"its results were not fetched: {args['trouble']}: attach to it again"
        verdict = replace(verdict, message=f"{verdict.message}; {reason}")
    result = outcome.result_of(args["job"], verdict, gang.views, attempts=int(args["attempt"]))
    result |= asdict(restarts.decide(result, run_dir, bool(args["supervised"])))
    path = run_dir / restarts.RESULT_FILE
    known = records.read_json(str(path))
    records.write_json(str(path), result)
    warnings = []
    if known is None:  # a look at a job that is over notifies nobody
        failure = ["failure"] if result["state"] == "failed" else []
        warnings = _notify(play, result, run_dir, failure + ["end"] * (not result["restart"]))
    return {
        "verdict": asdict(verdict),
        "running": _running(gang),
        "result": result,
        "warnings": warnings,
    }


def over(play: connections.Play, args: Mapping[str, Any]) -> dict[str, Any]:
    """Notify that a job is over which nobody starts again."""
    run_dir = Path(args["run_dir"]).expanduser()
    ended = records.read_json(str(run_dir / restarts.RESULT_FILE))
    return {"warnings": _notify(play, ended, run_dir, ["end"]) if ended else []}


def _gang(
    play: connections.Play, args: Mapping[str, Any], say: Callable[[str], None], **more: Any
) -> follow.Gang:
    """Return the gang as it is to be followed."""
    run_dir, inquiry = Path(args["run_dir"]).expanduser(), Inquiry(play)
    return follow.Gang(
        _targets(play, args["hosts"], args["ranks"], _planned(run_dir)),
        run_dir,
        inquiry.look,
        say,
        start_timeout=float(args["start_timeout"]),
        unreachable_timeout=float(args["unreachable_timeout"]),
        interval=float(args["interval"]),
        probe=inquiry.probe,
        log_limit=int(float(args["log_limit_mb"]) * 2**20),
        **{"end_timeout": 0.0, **more},
    )


def _running(gang: follow.Gang) -> bool:
    return any(not view.final for view in gang.views)


def fetch_logs(play: connections.Play, args: Mapping[str, Any]) -> dict[str, Any]:
    """Fetch logs and progress records; its arguments: roles/train_job/tasks/logs.yml."""
    targets: list[views.Target] = []
    for rank in args["ranks"]:
        host = rank["seen_by"][0]  # not all ranks of a machine need have an inventory host
        targets += _targets(play, [host], {host: rank}, {})
    heard = listen.listen(
        targets,
        Path(args["run_dir"]).expanduser(),
        Inquiry(play).look,
        log_from={str(rank["task"]): int(rank["log_from"]) for rank in args["ranks"]},
        follow=bool(args["follow"]),
        start_timeout=float(args["start_timeout"]),
        unreachable_timeout=float(args["unreachable_timeout"]),
        interval=float(args["interval"]),
        log_limit=int(float(args["log_limit_mb"]) * 2**20),
    )
    return asdict(heard)


def _notify(
    play: connections.Play, result: dict[str, Any], run_dir: Path, events: list[str]
) -> list[str]:
    """Tell of the job's result, and return what went wrong with that."""
    hosts = [rank["host"] for rank in result["ranks"]]
    environments, command, webhook = play.notification(hosts)
    told = []
    for event in events:
        payload = notify.payload_of(
            event,
            job=result["job"],
            attempt=result["attempts"],
            state=result["state"],
            message=result["message"],
            culprit=result["culprit"],
            metrics=result["metrics"],
            hosts=hosts,
            run_dir=run_dir,
            environments=environments,
        )
        tell = notify.notify if event == "end" else notify.notify_soon
        told.append(tell(event, command, webhook, payload))
    return [line for line in told if line]


def _planned(run_dir: Path) -> dict[str, dict[str, Any]]:
    """Return the ranks of the attempt as they were planned, by inventory host."""
    manifest = records.read_json(str(run_dir / plan.MANIFEST_FILE)) or {"ranks": []}
    return {rank["host"]: rank for rank in manifest["ranks"]}


def _targets(
    play: connections.Play,
    hosts: list[str],
    ranks: dict[str, Any],
    planned: dict[str, dict[str, Any]],
) -> list[views.Target]:
    """Return the ranks to follow: what was planned, and where each lies, which its host says.

    Raises:
        ReportError: a host said something malformed.
    """
    targets = []
    for host in hosts:
        rank = ranks[host] if ranks else play.registered(host, "__train_job_rank")["rank"]
        start = play.registered(host, "__train_job_start") or {"started": True}
        error = "" if start.get("started") else str(start.get("msg"))
        error = str(rank.get("start_error") or error)
        rank = {**reports.rank(rank), **planned.get(host, {})}
        # A host speaks for itself alone, whatever place it says that it is.
        targets.append(
            views.Target(
                host=str(host),
                task=rank["task"],
                rank_dir=rank["rank_dir"],
                host_python=rank["host_python"],
                place=" ".join([*play.connection(host), rank["place"]]),
                service=rank["service"],
                start_error=reports.bounded(error),
                attempt=int(rank.get("attempt", 1)),
            )
        )
    return targets


def _peers(run_dir: Path) -> diagnosis.Peers:
    """Return where the ranks are for one another; none where a manifest does not say it."""
    manifest = records.read_json(str(run_dir / plan.MANIFEST_FILE)) or {}
    for tf_config in manifest.get("tf_config", {}).values():
        return diagnosis.peers_of(tf_config["cluster"])
    return {}


class Inquiry:
    """Asks the hosts of ranks, over connections of the play."""

    def __init__(self, play: connections.Play) -> None:
        self._play = play

    def look(
        self, target: views.Target, cursors: dict[str, Any], wait: float, interval: float
    ) -> dict[str, Any]:
        """Return what is new of a rank; see train/host/updates.py."""
        if self._play.is_here(target.host, "updates"):
            # This machine trains, too: a process for each look would cost it a step in fifty.
            return updates.wait_for_updates(cursors, wait, interval)
        return self._run(target, "updates", json.dumps(cursors), str(wait), str(interval))

    def probe(self, target: views.Target, peers: diagnosis.Peers) -> dict[str, Any]:
        """Return how a rank's host reaches the others; see train/host/probe.py."""
        if self._play.is_here(target.host, "probe"):
            return probe.look(target.rank_dir, dict(peers), PROBE_TIMEOUT)
        return self._run(target, "probe", target.rank_dir, json.dumps(peers), str(PROBE_TIMEOUT))

    def _run(self, target: views.Target, program: str, *arguments: str) -> dict[str, Any]:
        """Run one of the launcher's programs on a rank's host and return what it prints."""
        words = [target.host_python, "-S", "-E", "-m", f"train.host.{program}", *arguments]
        launcher = f"{target.rank_dir}/{records.LAUNCHER_DIR}"
        return self._play.run(target.host, program, words, launcher)
