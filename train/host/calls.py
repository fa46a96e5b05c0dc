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
from typing import Callable

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
        "state": ranks.observe(rank_dir),
        "progress": progress,
        "last_line": console.last_line(Mask([spec.get("environment", {})]).log(log)),
    }


def stop(params: Params) -> Result:
    """End every process of a rank (TERM, grace, KILL), and return the ``stop_report``, see
    ranks.stop; with CallError, if something of the rank is left.

    Args:
        params: ``root``, ``job`` and ``host``; ``grace`` in seconds; ``reason``, for the rank's
            state; ``for_good``, whether no later attempt may start: between two attempts the job
            has no rank that could be stopped; ``attempt``, where a later one is to be left alone.
    """
    check, was, left = bool(params["check"]), ranks.ABSENT, []
    rank_dir = ranks.find(records.expand(params["root"]), params["host"], params["job"])
    if rank_dir is not None:
        spec = ranks.specification(rank_dir)
        if "attempt" in params and spec.get("attempt", 0) > int(params["attempt"]):
            rank_dir = None  # another control node has started it
    if rank_dir is not None:
        was, left = ranks.observe(rank_dir)["phase"], sorted(ranks.processes_of(rank_dir))
        if params.get("for_good") and not check:
            path = os.path.join(os.path.dirname(rank_dir), records.TOLD_TO_STOP_FILE)
            with contextlib.suppress(OSError):  # a full disk is a reason to stop a job
                records.write_json(path, {"at": round(time.time(), 3)})
    changed = was in records.ALIVE_PHASES or bool(left)
    if rank_dir is None or check or was == ranks.ABSENT:
        if rank_dir is not None and not check:  # made ready, and never started
            leases.release_rank(spec)
        nothing = dict.fromkeys(("port", "port_free", "gpu_memory_free"))
        seen = {**nothing, "was": was, "phase": was, "ended": 0, "remaining": left}
        return {"changed": changed, "stop_report": seen}
    report = ranks.stop(rank_dir, float(params["grace"]), params["reason"])
    task, port, problem = os.path.basename(rank_dir), report["port"], ""
    if report["remaining"]:
        pids = ", ".join(map(str, report["remaining"]))
        problem = "processes %s of %s do not end" % (pids, task)
    elif port is not None and report["port_free"] is False:
        problem = "port %s is still held by %s" % (port, processes.listener(port))
    elif report["gpu_memory_free"] is False:
        problem = "processes of %s are still on its GPUs (nvidia-smi)" % task
    if problem:
        raise CallError(problem, stop_report=report)
    return {"changed": changed, "stop_report": report}


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
