"""The calls that the launcher makes on a host: functions that take and return records.

A path may begin with ``~`` or hold variables of the host's environment; ``root`` is the folder that
holds ``jobs/``, ``check`` whether to change nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tarfile
import time
from typing import Any, Callable, Dict, Mapping

from . import (
    checkup,
    console,
    faults,
    jobs,
    leases,
    links,
    preflight,
    processes,
    ranks,
    records,
    staging,
    tail,
    tensorboard,
)
from .errors import CallError

Params = Mapping[str, Any]
Result = Dict[str, Any]


def state(params: Params) -> Result:
    """Return what this host knows of a rank: ``rank`` (records.RankInfo; None where there is none),
    ``state`` (see ranks.observe), the last ``progress`` record and ``last_line`` of the log.

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
    spec = records.read_whole(os.path.join(rank_dir, records.RANK_FILE)) or {}
    progress = ranks.progress(rank_dir)
    log = tail.read_last(os.path.join(rank_dir, records.LOG_FILE), ranks.TAIL)
    return {
        "rank": ranks.identify(rank_dir, spec),
        "manifest": manifest,
        "state": ranks.observe(rank_dir),
        "progress": progress[-1] if progress else {},
        "last_line": console.last_line(log),
    }


def list_jobs(params: Params) -> Result:
    """Return the jobs that this host knows of; inventory hosts of one machine see the same ones.

    Args:
        params: ``root``, ``job``, ``lines`` and ``sizes``, as of jobs.list_jobs; with a
            ``lease_dir``, ``leases`` are returned: in words which ranks, of any user, have ports or
            GPUs of this machine.
    """
    lines = params.get("lines")
    lines = None if lines is None else int(lines)
    root, sizes = records.expand(params["root"]), bool(params.get("sizes"))
    found = jobs.list_jobs(root, params.get("job"), lines, sizes)
    if not params.get("lease_dir"):
        return {"jobs": found}
    held = leases.entries(records.expand(params["lease_dir"]))
    taken = [leases.whose(one) for one in held if one["state"] != leases.QUEUED]
    return {"jobs": found, "leases": taken}


def collect(params: Params) -> Result:
    """Pack those of ``folders`` that ``rank_dir`` has into one ``archive`` there, None without any.

    Links and special files are left out: the control node would refuse them.
    """
    rank_dir = params["rank_dir"]
    paths = {name: os.path.join(rank_dir, name) for name in params["folders"]}
    names = [n for n, path in paths.items() if os.path.isdir(path) and not os.path.islink(path)]
    if not names:
        return {"archive": None}
    archive = os.path.join(rank_dir, "results.tar.gz")
    try:
        # Weights hardly get smaller, so little time is spent on that.
        with tarfile.open(archive + ".tmp", "w:gz", compresslevel=1) as tar:

            def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
                tar.inodes.clear()  # type: ignore[attr-defined]  # a file of two names comes twice
                return member if member.isreg() or member.isdir() else None

            for name in names:
                tar.add(paths[name], name, filter=plain)
        os.replace(archive + ".tmp", archive)
    except OSError as error:
        raise CallError("%s cannot be packed: %s" % (rank_dir, error)) from None
    return {"changed": True, "archive": archive}


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
    if rank_dir is not None and "attempt" in params:
        spec = records.read_whole(os.path.join(rank_dir, records.RANK_FILE)) or {"attempt": 0}
        if spec["attempt"] > int(params["attempt"]):  # another control node has started it
            rank_dir = None
    if rank_dir is not None:
        was, left = ranks.observe(rank_dir)["phase"], sorted(ranks.processes_of(rank_dir))
        if params.get("for_good") and not check:
            path = os.path.join(os.path.dirname(rank_dir), records.TOLD_TO_STOP_FILE)
            with contextlib.suppress(OSError):  # a full disk is a reason to stop a job
                records.write_json(path, {"at": round(time.time(), 3)})
    changed = was in records.ALIVE_PHASES or bool(left)
    if rank_dir is None or check or was == ranks.ABSENT:
        if rank_dir is not None and not check:  # made ready, and never started
            leases.release_rank(records.read_whole(os.path.join(rank_dir, records.RANK_FILE)) or {})
        nothing = dict.fromkeys(("port", "port_free", "gpu_memory_free"))
        seen = {**nothing, "was": was, "phase": was, "ended": 0, "remaining": left}
        return {"changed": changed, "stop_report": seen}
    report = ranks.stop(rank_dir, float(params["grace"]), params["reason"])
    task, problem = os.path.basename(rank_dir), ""
    if report["remaining"]:
        pids = ", ".join(map(str, report["remaining"]))
        problem = "processes %s of %s do not end" % (pids, task)
    elif changed and report["port_free"] is False:
        owner = processes.listener(report["port"])
        problem = "port %s is still held by %s" % (report["port"], owner)
    elif report["gpu_memory_free"] is False:
        problem = "processes of %s are still on its GPUs (nvidia-smi)" % task
    if problem:
        raise CallError(problem, stop_report=report)
    return {"changed": changed, "stop_report": report}


def inject_fault(params: Params) -> Result:
    """Inject a fault into a rank of a drill, or into its host: see faults.inject.

    Returned are the ``delay`` in seconds until it begins, and what it is ``skipped_because`` of, if
    it cannot be done on this host.
    """
    job = str(params["job"])
    if not job.startswith("drill-"):
        raise CallError("%s is no job of a drill" % job)
    rank_dir = ranks.find(records.expand(params["root"]), params["host"], job)
    if rank_dir is None:
        raise CallError("this host has no rank of job %s" % job)
    try:
        delay = faults.inject(params["fault"], ranks.observe(rank_dir), float(params["seconds"]))
    except faults.FaultError as error:
        return {"skipped_because": str(error)}
    return {"changed": True, "skipped_because": "", "delay": delay}


CALLS: Dict[str, Callable[[Params], Result]] = {
    "check_host": preflight.check,
    "check_up": checkup.check,
    "collect": collect,
    "find_events": tensorboard.find_events,
    "inject_fault": inject_fault,
    "lease": lambda params: leases.answer(params["request"]),
    "list_jobs": list_jobs,
    "measure_links": links.measure,
    "remove_jobs": jobs.remove,
    "serve_events": tensorboard.serve,
    "stage": staging.stage,
    "state": state,
    "stop": stop,
    "unstage": staging.unstage,
}


def main(params: Params) -> None:
    """Print what the call that ``params`` name returns, as JSON, and exit: with 1 if it failed."""
    result: Result = {"changed": False}
    try:
        result.update(CALLS[params["call"]](params))
    except CallError as error:
        result.update(error.more, failed=True, msg=str(error))
    print(json.dumps(result))
    sys.exit(1 if result.get("failed") else 0)
