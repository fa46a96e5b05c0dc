"""The calls that the launcher makes on a host: functions that take and return records.

``root`` is the folder that holds ``jobs/``, ``check`` whether to change nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time
from typing import Callable, Optional

from . import console, leases, processes, ranks, records, tail
from .errors import CallError, Params, Result
from .masking import Mask


def state(params: Params) -> Result:
    """Return what this host knows of a rank: ``rank`` (records.RankInfo or None), ``state`` (see
    ranks.observe), the last ``progress`` record and ``last_line`` of the log.

    Args:
        params: ``root``; ``host``, the rank's inventory host; ``job``, empty for the newest with a
            rank of this host; ``manifest``, whether to return what the host keeps of the job.
    """
    root, job = records.expand(params["root"]), str(params.get("job") or "")
    manifest = None
    if params.get("manifest"):
        manifest = records.read_whole(os.path.join(root, "jobs", job, records.JOB_FILE))
    rank_dir = ranks.find(root, params["host"], job)
    if rank_dir is None:
        nothing = {"state": {"phase": ranks.ABSENT}, "progress": {}, "last_line": ""}
        return {"rank": None, "manifest": manifest, **nothing}
    progress: records.Progress = {}
    for record in ranks.progress(rank_dir):
        progress = records.with_earlier(record, progress)
    log = tail.read_last(os.path.join(rank_dir, records.LOG_FILE), ranks.TAIL)
    spec = ranks.specification(rank_dir)
    return {
        "rank": ranks.identify(rank_dir, spec),
        "manifest": manifest,
        "state": ranks.reported(rank_dir),
        "progress": progress,
        "last_line": console.last_line(Mask([spec.get("environment", {})]).log(log)),
    }


def stop(params: Params) -> Result:
    """End every process of a rank (TERM, grace, KILL), and return the ``stop_report``, see
    ranks.stop; with CallError, if something of the rank is left.

    Args:
        params: ``root``, ``job`` and ``host``; ``grace`` in seconds; ``reason``, for the rank's
            state; ``for_good``, whether no later attempt may start: between two attempts the job
            has no rank that could be stopped; ``lease_dir``, to give back what the job has taken
            for ranks that have not started; ``attempt``, where a later one is to be left alone.
    """
    check, for_good = bool(params["check"]), bool(params.get("for_good"))
    rank_dir = ranks.find(records.expand(params["root"]), params["host"], params["job"])
    if rank_dir is not None and "attempt" in params:
        if ranks.specification(rank_dir).get("attempt", 0) > int(params["attempt"]):
            rank_dir = None  # another control node has started it
    if rank_dir is not None and for_good and not check:
        path = os.path.join(os.path.dirname(rank_dir), records.TOLD_TO_STOP_FILE)
        with contextlib.suppress(OSError):  # a full disk is a reason to stop a job
            records.write_json(path, {"at": round(time.time(), 3)})
    # A supervisor that starts from now on ends at once.
    report = _stop_rank(rank_dir, params, check, for_good)
    if for_good and params.get("lease_dir") and not check:
        lease_dir = records.expand(params["lease_dir"])
        report["given_back"] += leases.stop_job(lease_dir, params["job"], params["reason"])
    was_alive = report["was"] in records.ALIVE_PHASES
    left = bool(report["remaining"]) if check else bool(report["ended"])
    changed = was_alive or left or bool(report["given_back"])
    problem = _problem(os.path.basename(rank_dir or ""), report)
    if problem and not check:
        raise CallError(problem, changed=changed, stop_report=report)
    return {"changed": changed, "stop_report": report}


def _stop_rank(
    rank_dir: Optional[str], params: Params, check: bool, for_good: bool
) -> records.StopReport:
    """Stop the rank of a folder, unless there is none, and return the report."""
    report: records.StopReport = {
        "was": ranks.ABSENT,
        "phase": ranks.ABSENT,
        "ended": 0,
        "remaining": [],
        "port": None,
        "port_free": None,
        "gpu_memory_free": None,
        "given_back": 0,
    }
    if rank_dir is None:
        return report
    seen, reported = ranks.observe(rank_dir), ranks.reported(rank_dir)
    report["was"] = report["phase"] = reported["phase"]
    if check:
        report["remaining"] = sorted(ranks.processes_of(rank_dir))
    elif seen["phase"] != ranks.ABSENT:
        return ranks.stop(rank_dir, float(params["grace"]), params["reason"])
    else:  # made ready, and not started
        spec = ranks.specification(rank_dir)
        if for_good and spec:
            ranks.write_unstarted(rank_dir, spec, params["reason"])
            report["phase"] = records.STOPPED
        leases.release_rank(spec)
    return report


def _problem(task: str, report: records.StopReport) -> str:
    """Return what a stop has left of a rank; empty for nothing."""
    port = report["port"]
    if report["remaining"]:
        return "processes %s of %s do not end" % (", ".join(map(str, report["remaining"])), task)
    if port is not None and report["port_free"] is False:
        return "port %s is still held by %s" % (port, processes.listener(port))
    if report["gpu_memory_free"] is False:
        return "processes of %s are still on its GPUs (nvidia-smi)" % task
    return ""


#: The calls: modules of this package and their functions. The host compiles what it imports, so
#: that it imports the module of the one call.
CALLS = {
    "check_host": "preflight.check",
    "check_up": "checkup.check",
    "collect": "staging.collect",
    "collect_files": "staging.collect_files",
    "find_events": "tensorboard.find_events",
    "inject_fault": "faults.inject_fault",
    "lease": "leases.answer",
    "list_jobs": "jobs.list_here",
    "measure_links": "links.measure",
    "remove_jobs": "jobs.remove",
    "serve_events": "tensorboard.serve",
    "stage": "staging.stage",
    "state": "calls.state",
    "stop": "calls.stop",
    "unstage": "staging.unstage",
}


def find(call: str) -> Callable[[Params], Result]:
    """Return the function of a call; KeyError if there is no such call."""
    module, _, name = CALLS[call].partition(".")
    found: Callable[[Params], Result]
    found = getattr(importlib.import_module("." + module, __package__), name)
    return found


def main(params: Params) -> None:
    """Print what the call that ``params`` name returns, as JSON, and exit: with 1 if it failed."""
    result: Result = {"changed": False}
    try:
        result.update(find(params["call"])(params))
    except CallError as error:
        result.update(error.more, failed=True, msg=str(error))
    print(json.dumps(result))
    sys.exit(1 if result.get("failed") else 0)
