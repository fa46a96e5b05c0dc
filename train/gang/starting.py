"""Leases the ports and GPUs of a gang, and requires that all of its ranks are ready to start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from train.gang import connections, leasing, login_failures, reports
from train.gang.connections import Args
from train.gang.errors import UserError
from train.gang.job_records import Manifest
from train.gang.plan import placement, withdrawal
from train.gang.watch import journal


def lease(play: connections.Play, args: Args) -> dict[str, object]:
    """Wait for the job's ports and GPUs, and lease them. Hosts need no files of the job yet.

    If that fails, withdraw the attempt. Then raise UserError or, if the job was stopped, return a
    failed result with ``stopped``.
    """
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
    except leasing.JobStoppedError as error:
        withdrawal.withdraw(run_dir, int(manifest["attempt"]))
        message = f"nothing was started: the job {error}"
        return {"failed": True, "msg": message, "stopped": str(error)}
    except (leasing.LeasingError, OSError) as error:
        withdrawal.withdraw(run_dir, int(manifest["attempt"]))
        raise UserError(f"nothing was started: {error}") from error
    return {}


def require_staged(play: connections.Play, args: Args) -> dict[str, object]:
    """Return a failed result unless all ranks of an attempt are staged and can start together."""
    lost: dict[str, login_failures.LoginFailure] = {}
    lacking: dict[str, str] = {}
    flags: dict[str, object] = {}
    for host in args["hosts"]:
        staged = play.registered(host, args["registered"])
        if staged.get("unreachable"):
            lost[host] = login_failures.of_result(staged)
        elif (staged.get("rank") or {}).get("attempt") != int(args["attempt"]):
            lacking[host] = reports.bounded(str(staged.get("msg") or "did not receive the code"))
            flags |= {name: staged[name] for name in ("overtaken", "stopped") if name in staged}
    if not (lost or lacking):
        return {}
    if not lacking:
        flags["nothing_answered"] = True  # the hosts' failed tasks show the reasons
    named = [
        f"{login_failures.names_of(hosts)}: {reason}"
        for reason, hosts in placement.by_reason(lacking).items()
    ]
    return {**flags, "failed": True, "msg": "\n".join([*login_failures.merged(lost), *named])}
