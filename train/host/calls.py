"""The calls that the launcher makes on a host: functions that take and return records.

``root`` is the folder that contains ``jobs/``. With ``check``, nothing is changed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time
from typing import Callable, List, Optional

from . import (
    json_files,
    leases,
    ports,
    progress_records,
    rank_files,
    ranks,
    records,
    tail,
)
from .call_types import CallError, CallResult, Params, for_each_rank


def state(params: Params, known: Optional[ranks.Known] = None) -> CallResult:
    """Return the state of a rank on this host.

    The result has ``rank`` (records.RankInfo or None), ``state`` (see ranks.observe), the last
    ``progress`` record and ``last_line`` of the log. ``more`` has the same for further ranks that
    the inventory host answers for.

    Args:
        params: ``root``; ``host``, the rank's inventory host, and ``beside`` and ``names``, see
            ranks.find; ``job``, empty for the newest with a rank of this host; ``manifest``,
            whether to return the job's manifest on this host.
    """
    root, job = rank_files.expand(params["root"]), str(params.get("job") or "")
    manifest = None
    if params.get("manifest"):
        manifest = json_files.read_whole(os.path.join(root, "jobs", job, rank_files.JOB_FILE))
    seen = [_state_of(rank_dir) for rank_dir in _find(params, known)]
    nothing = {"rank": None, "state": {"phase": records.ABSENT}, "progress": {}, "last_line": ""}
    return {**(seen[0] if seen else nothing), "more": seen[1:], "manifest": manifest}


def states(params: Params) -> CallResult:
    """Return the states of the ranks of several inventory hosts, see ``state``.

    ``params`` and the result are those of ``for_each_rank``.
    """
    known = ranks.Known()
    return for_each_rank(params, lambda given: state(given, known))


def _find(params: Params, known: Optional[ranks.Known]) -> List[str]:
    root, job = rank_files.expand(params["root"]), str(params.get("job") or "")
    beside, names = params.get("beside") or (), params.get("names") or ()
    return ranks.find(root, params["host"], job, beside, names, known)


def _state_of(rank_dir: str) -> CallResult:
    """Return the state of the rank in a folder, see ``state``."""
    from . import console, masking  # slow to import

    progress: progress_records.Progress = {}
    for record in ranks.progress(rank_dir):
        progress = progress_records.with_earlier(record, progress)
    log = tail.read_last(os.path.join(rank_dir, rank_files.LOG_FILE), ranks.TAIL)
    spec = ranks.specification(rank_dir)
    return {
        "rank": ranks.identify(rank_dir, spec),
        "state": ranks.reported(rank_dir),
        "progress": progress,
        "last_line": console.last_line(masking.Mask([spec.get("environment", {})]).log(log)),
    }


def stop(params: Params, known: Optional[ranks.Known] = None) -> CallResult:
    """End every process of a rank (SIGTERM, grace period, SIGKILL) and return a ``stop_report``.

    See ranks.stop. Raise CallError if any part of the rank is left. ``more`` has the reports of
    further ranks that the inventory host answers for.

    Args:
        params: ``root`` and ``job``; ``host``, ``beside`` and ``names``, as for ``state``;
            ``grace`` in seconds; ``reason``, for the rank's state; ``permanent``, whether to
            prevent later attempts (between two attempts, the job has no rank to stop);
            ``lease_dir``, to release the leases of ranks that have not started; ``attempt``, to
            leave ranks of later attempts running.
    """
    check, permanent = bool(params["check"]), bool(params.get("permanent"))
    found = _find(params, known)
    if "attempt" in params:  # another control node may have started a later one
        found = [
            rank_dir
            for rank_dir in found
            if ranks.specification(rank_dir).get("attempt", 0) <= int(params["attempt"])
        ]
    for job_dir in {os.path.dirname(rank_dir) for rank_dir in found if permanent and not check}:
        with contextlib.suppress(OSError):  # a full disk is a reason to stop a job
            request_path = os.path.join(job_dir, rank_files.STOP_REQUEST_FILE)
            about = {"at": round(time.time(), 3), "reason": params["reason"]}
            json_files.write_json(request_path, about)
    # A supervisor that starts after this point ends at once.
    stopped = _stop_ranks(found, params, known or ranks.Known())
    first = stopped[0] if stopped else _no_report()
    if permanent and params.get("lease_dir") and not check:
        lease_dir = rank_files.expand(params["lease_dir"])
        first["given_back"] += leases.stop_job(lease_dir, params["job"], params["reason"])
    result = {
        "changed": any(_has_changed(report, check) for report in stopped or [first]),
        "stop_report": first,
        "more": stopped[1:],
    }
    tasks = map(os.path.basename, found)
    problems = [_problem(task, report) for task, report in zip(tasks, stopped)]
    if any(problems) and not check:
        raise CallError("; ".join(filter(None, problems)), **result)
    return result


def stop_all(params: Params) -> CallResult:
    """Stop the ranks of several inventory hosts at the same time, see ``stop``.

    ``params`` and the result are those of ``for_each_rank``.
    """
    known = ranks.Known()
    return for_each_rank(params, lambda given: stop(given, known), at_once=True)


def stop_request(params: Params) -> CallResult:
    """Return why a job on this host was stopped permanently.

    ``stopped`` is a phrase that follows the job's name, or an empty string if the job was not
    stopped.

    Args:
        params: ``root`` and ``job``.
    """
    job_dir = os.path.join(rank_files.expand(params["root"]), "jobs", params["job"])
    path = os.path.join(job_dir, rank_files.STOP_REQUEST_FILE)
    if not os.path.exists(path):
        return {"stopped": ""}
    request = json_files.read_json(path) or {}
    return {"stopped": request.get("reason") or "was stopped"}


def has_checkpoint(params: Params) -> CallResult:
    """Return whether ``found`` any file in the checkpoint folder of the rank in ``rank_dir``."""
    spec = ranks.specification(params["rank_dir"])
    return {"found": bool(spec) and ranks.holds_file(ranks.checkpoint_dir(spec))}


def _stop_ranks(found: List[str], params: Params, known: ranks.Known) -> List[records.StopReport]:
    """Stop the ranks in several folders in parallel, because each may take its grace period."""
    if len(found) < 2:
        return [_stop_rank(rank_dir, params, known) for rank_dir in found]
    from concurrent.futures import ThreadPoolExecutor  # slow to import

    with ThreadPoolExecutor(len(found)) as pool:
        return list(pool.map(lambda path: _stop_rank(path, params, known), found))


def _has_changed(report: records.StopReport, check: bool) -> bool:
    """Return whether a stop has changed anything, or would change it in check mode."""
    left = bool(report["remaining"]) if check else bool(report["ended"])
    return report["was"] in records.ALIVE_PHASES or left or bool(report["given_back"])


def _no_report() -> records.StopReport:
    return {
        "was": records.ABSENT,
        "phase": records.ABSENT,
        "ended": 0,
        "remaining": [],
        "port": None,
        "port_free": None,
        "gpu_memory_free": None,
        "given_back": 0,
    }


def _stop_rank(rank_dir: str, params: Params, known: ranks.Known) -> records.StopReport:
    """Stop the rank in a folder and return the report."""
    report = _no_report()
    seen, reported = ranks.observe(rank_dir), ranks.reported(rank_dir)
    report["was"] = report["phase"] = reported["phase"]
    if params["check"]:
        report["remaining"] = sorted(ranks.processes_of(rank_dir, known))
    elif seen["phase"] != records.ABSENT:
        return ranks.stop(rank_dir, float(params["grace"]), params["reason"], known)
    else:  # staged, but not started
        spec = ranks.specification(rank_dir)
        if params.get("permanent") and spec:
            ranks.write_unstarted(rank_dir, spec, params["reason"])
            report["phase"] = records.STOPPED
        leases.release_rank(spec)
    return report


def _problem(task: str, report: records.StopReport) -> str:
    """Return a message about what remains of a stopped rank, or an empty string."""
    port = report["port"]
    if report["remaining"]:
        return "processes %s of %s could not be killed" % (
            ", ".join(map(str, report["remaining"])),
            task,
        )
    if port is not None and report["port_free"] is False:
        return "port %s is still held by %s" % (port, ports.listener(port))
    if report["gpu_memory_free"] is False:
        return "processes of %s are still on its GPUs (nvidia-smi)" % task
    return ""


#: The module and function of each action on a host, and of each call that an action for a gang
#: makes. Only the module of the call is imported, because the host has to compile it.
CALLS = {
    "environment_info": "environments.describe",
    "has_checkpoint": "calls.has_checkpoint",
    "host_checks": "preflight.check_all",
    "host_examine": "checkup.check",
    "job_lists": "jobs.list_for_all",
    "job_remove": "jobs.remove",
    "lease": "leases.answer",
    "measure_links": "links.measure",
    "rank_fault": "faults.inject_fault",
    "rank_fetch": "packing.pack",
    "rank_stages": "staging.stage_all",
    "rank_states": "calls.states",
    "rank_stops": "calls.stop_all",
    "rank_unstage": "staging.unstage",
    "stop_request": "calls.stop_request",
    "tensorboard_info": "tensorboard.find_events",
    "tensorboard_serve": "tensorboard.serve",
    "usage": "usage.report",
}


def find(call: str) -> Callable[[Params], CallResult]:
    """Return the function of a call. Raise KeyError if there is no such call."""
    module, _, name = CALLS[call].partition(".")
    found: Callable[[Params], CallResult]
    found = getattr(importlib.import_module("." + module, __package__), name)
    return found


def main(params: Params) -> None:
    """Run the call in ``params``, print its result as JSON, and exit (with 1 if it failed)."""
    result: CallResult = {"changed": False}
    try:
        result.update(find(params["call"])(params))
    except CallError as error:
        result.update(error.more, failed=True, msg=str(error))
    print(json.dumps(result))
    sys.exit(1 if result.get("failed") else 0)
