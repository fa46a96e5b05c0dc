"""Lists the jobs of a host, from their folders and from /proc, and removes old ones."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections import Counter
from typing import Dict, List, Optional, Sequence, Set, cast

from . import (
    environments,
    json_files,
    leases,
    processes,
    progress_records,
    rank_environment,
    rank_files,
    ranks,
    records,
    tail,
)
from .call_types import CallError, CallResult, Params, for_each_rank

#: Seconds after its last activity in which a job is not removed, because it may be about to start
#: or to be restarted, or its results may be in transfer to the control node.
RECENT = 600.0
#: Prefix of folders of removed jobs, which are removed again if that failed.
_REMOVED = ".removed-"
_POSITION = ("phase", "step", "steps", "epoch", "epochs")


def list_jobs(
    root: str, job: Optional[str] = None, lines: Optional[int] = None, sizes: bool = True
) -> List[records.ListedJob]:
    """Return the jobs under ``root``, or only ``job``.

    ``log_from`` of each rank is where the last ``lines`` lines of its log begin. Without ``sizes``,
    the sizes of the jobs' folders are not measured.
    """
    marked = processes.marked(rank_environment.ENV_RANK_DIR)  # of this user
    living = Counter(os.path.realpath(rank_dir) for _, rank_dir in marked)
    jobs_dir = os.path.join(root, "jobs")
    try:
        names = sorted(os.listdir(jobs_dir)) if job is None else [job]
    except FileNotFoundError:
        return []
    found: List[records.ListedJob] = []
    for name in filter(records.JOB_PATTERN.fullmatch, names):
        job_dir = os.path.join(jobs_dir, name)
        seen = [_rank(path, living, lines) for path in ranks.in_job(job_dir)]
        listed = [rank for rank in seen if rank is not None]
        if listed:
            size = size_of(job_dir) if sizes else None
            manifest = summarize(job_dir)
            found.append({"job": name, "size": size, "manifest": manifest, "ranks": listed})
    return found


def list_here(params: Params) -> CallResult:
    """Return the ``jobs`` on this host, and descriptions of all users' ``leases``.

    Args:
        params: ``root``, ``job``, ``lines`` and ``sizes``, as for list_jobs; ``lease_dir``.
    """
    lines = params.get("lines")
    lines = None if lines is None else int(lines)
    root, sizes = rank_files.expand(params["root"]), bool(params.get("sizes"))
    lease_dir = params.get("lease_dir")
    held = leases.entries(rank_files.expand(lease_dir)) if lease_dir else []
    taken = [leases.whose(one) for one in held if one["state"] in (leases.TAKEN, leases.STARTED)]
    return {"jobs": list_jobs(root, params.get("job"), lines, sizes), "leases": taken}


def list_for_all(params: Params) -> CallResult:
    """Return the jobs for several inventory hosts, see ``list_here``.

    ``params`` and the result are those of ``for_each_rank``.
    """
    return for_each_rank(params, list_here)


def _rank(
    rank_dir: str, living: Dict[str, int], lines: Optional[int]
) -> Optional[records.ListedRank]:
    """Return a rank's listing; None if its folder has been removed meanwhile."""
    path = os.path.join(rank_dir, rank_files.RANK_FILE)
    try:
        spec = ranks.specification(rank_dir)  # it is truncated if the disk was full
        about = os.stat(path)
        state = ranks.reported(rank_dir)
    except OSError:
        return None
    job, task = rank_dir.split(os.sep)[-2:]
    position: Dict[str, object] = {}
    for record in ranks.progress(rank_dir):
        position.update({key: value for key, value in record.items() if key in _POSITION})
    log = os.path.join(rank_dir, rank_files.LOG_FILE)
    hole = (state.get("left_out") or {}).get("log")
    usual = {"attempt": 1, "results_dir": rank_dir, "port": None, "non_training": False}
    known = cast(records.RankSpec, {**usual, **spec, "job": job, "task": task})
    return {
        **ranks.identify(rank_dir, known),
        "host": spec.get("host"),
        "key": "%s:%d:%d" % (rank_dir, about.st_ino, about.st_mtime_ns),
        "phase": state["phase"],
        "reason": state.get("reason", ""),
        "started_at": state.get("started_at"),
        "ended_at": state.get("ended_at"),
        "idle": _idle(rank_dir, state),
        "processes": living.get(os.path.realpath(rank_dir), 0),
        "progress": cast(progress_records.Progress, position),
        "log_from": 0 if lines is None else start_of_lines(log, lines, hole),
    }


def _idle(rank_dir: str, state: records.RankState) -> float:
    """Return the seconds since a rank ended or, if it has not ended, since its files changed."""
    names = (
        rank_files.RANK_FILE,
        rank_files.STATE_FILE,
        rank_files.LOG_FILE,
        rank_files.PROGRESS_FILE,
    )
    times = [state.get("ended_at") or 0.0]
    for name in names if not times[0] else ():
        with contextlib.suppress(OSError):
            times.append(os.stat(os.path.join(rank_dir, name)).st_mtime)
    return round(max(0.0, time.time() - max(times)), 3)


def summarize(job_dir: str) -> Optional[records.ListedManifest]:
    """Return a summary of ``job.json``; None if it is missing or malformed."""
    try:
        manifest = json_files.read_json(os.path.join(job_dir, rank_files.JOB_FILE))
        if manifest is None:
            return None
        attempts = [dict(attempt["ranks"]) for attempt in manifest["attempts"]]
        most = manifest["policy"]["max_restarts"]
        return {
            "attempt": manifest["attempt"],
            "created_at": manifest["created_at"],
            "tasks": attempts[-1],
            "hosts": sorted({host for tasks in attempts for host in tasks.values()}),
            "restarts": max(0, most - records.restarts_made(manifest)),
        }
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None


def start_of_lines(path: str, lines: int, hole: Optional[Sequence[int]] = None) -> int:
    """Return the offset of the last ``lines`` lines of a file; 0 if it has fewer.

    Lines in its ``hole`` (limited.Hole) do not count.
    """
    with contextlib.suppress(OSError), open(tail.open_file(path), "rb") as stream:
        end = position = os.fstat(stream.fileno()).st_size
        hole = hole if hole and hole[1] <= end else None
        if lines <= 0:
            return end
        while position > 0:
            if hole and hole[0] < position <= hole[1]:
                position = hole[0]
            first = hole[1] if hole and position > hole[1] else 0
            begin = max(first, position - ranks.TAIL)
            stream.seek(begin)
            newlines = re.finditer(b"\n", stream.read(position - begin))
            starts = [begin + newline.end() for newline in newlines]
            if starts and starts[-1] == end:
                starts.pop()  # the last line ends there, and no other begins
            if len(starts) >= lines:
                return starts[-lines]
            lines -= len(starts)
            position = begin
    return 0


def size_of(folder: str) -> int:
    """Return the disk space that a folder uses, in bytes; links are not followed."""
    blocks = {}
    for parent, names, files in os.walk(folder):
        for path in [parent, *(os.path.join(parent, name) for name in names + files)]:
            with contextlib.suppress(OSError):
                about = os.lstat(path)
                blocks[about.st_dev, about.st_ino] = about.st_blocks
    return 512 * sum(blocks.values())


def why_kept(rank: records.ListedRank) -> str:
    """Return why the job of a rank from ``list_jobs`` must be kept; empty if it can be removed."""
    if rank["phase"] in records.ALIVE_PHASES:
        return "%s is %s" % (rank["task"], rank["phase"])
    if rank["processes"]:
        return "processes of %s are still running" % rank["task"]
    if rank["idle"] < RECENT:
        if rank["phase"] == records.ABSENT:
            return "%s is being started" % rank["task"]
        limit = "jobs are kept for %d minutes" % (RECENT // 60)
        return "%s %s, and %s" % (rank["task"], _last_change(rank), limit)
    return ""


def _last_change(rank: records.ListedRank) -> str:
    """Return a phrase about how long ago a rank ended, or its files last changed."""
    age, ended_at = rank["idle"], rank["ended_at"]
    verb = "last changed"
    if ended_at is not None and time.time() - ended_at < RECENT:
        age, verb = time.time() - ended_at, "ended"
    seconds = max(0, int(age))
    ago = "%d s" % seconds if seconds < 120 else "%d min" % (seconds // 60)
    return "%s %s ago" % (verb, ago)


def remove(params: Params) -> CallResult:
    """Remove the folders of ended ``jobs`` under ``root``, and packages that only they used.

    Links are not followed. Return ``removed`` (``job`` and ``size`` in bytes of each) and ``kept``
    (the reasons why others are not removed). Raise CallError if a folder cannot be removed.
    """
    root, dry = rank_files.expand(params["root"]), bool(params["check"])
    jobs_dir = os.path.join(root, "jobs")
    removed: List[Dict[str, object]] = []
    kept: List[str] = []
    if not os.path.realpath(jobs_dir).startswith(os.path.realpath(root) + os.sep):
        reason = "%s points outside %s (train_job_root): nothing is removed there" % (
            jobs_dir,
            root,
        )
        raise CallError(reason, removed=removed, kept=kept, changed=False)
    errors = [] if dry else _sweep(jobs_dir)
    pythons: Set[str] = set()
    for name in params["jobs"]:
        job_dir = os.path.join(jobs_dir, name)
        if not records.JOB_PATTERN.fullmatch(name) or os.path.islink(job_dir):
            kept.append("%s is not a job folder" % job_dir)
            continue
        seen = list_jobs(root, name, lines=0)
        if not seen:  # already gone: another machine may share the folder
            errors += [] if dry else _remove_controller(root, name)
            continue
        reasons = [reason for reason in map(why_kept, seen[0]["ranks"]) if reason]
        if reasons:
            kept.append("%s: %s" % (name, reasons[0]))
            continue
        pythons |= _pythons(job_dir)
        left = [] if dry else _remove(jobs_dir, name) + _remove_controller(root, name)
        errors += left
        if not left:
            removed.append({"job": name, "size": seen[0]["size"]})
    if removed and not dry:
        names = [name for name in os.listdir(jobs_dir) if records.JOB_PATTERN.fullmatch(name)]
        others = [_pythons(os.path.join(jobs_dir, name)) for name in names]
        environments.remove_unused(pythons, set().union(*others))
    result = {"removed": removed, "kept": kept, "changed": bool(removed)}
    if errors:
        raise CallError("; ".join(errors), **result)
    return result


def _pythons(job_dir: str) -> Set[str]:
    """Return the interpreters of a job's ranks."""
    specs = map(ranks.specification, ranks.in_job(job_dir))
    return {spec["python"] for spec in specs if spec and "python" in spec}


def _remove(jobs_dir: str, name: str) -> List[str]:
    # Renamed first, so that a job that is being started fails instead of losing its files.
    target = os.path.join(jobs_dir, "%s%s-%d" % (_REMOVED, name, os.getpid()))
    try:
        os.rename(os.path.join(jobs_dir, name), target)
        for path in ranks.in_job(target):
            if not os.path.islink(path):
                os.unlink(os.path.join(path, rank_files.RANK_FILE))
    except OSError as error:
        return ["%s cannot be removed: %s" % (error.filename, error.strerror)]
    return _sweep(jobs_dir)


def _remove_controller(root: str, name: str) -> List[str]:
    """Delete the files with which this host watched a job; return the errors."""
    folder = os.path.join(root, "controller", "jobs", name)
    try:
        if os.path.lexists(folder):
            shutil.rmtree(folder)
    except FileNotFoundError:
        pass  # another rank of this machine also removes it
    except OSError as error:
        return ["%s cannot be removed: %s" % (error.filename or folder, error.strerror)]
    return []


def _sweep(jobs_dir: str) -> List[str]:
    """Delete the renamed folders of removed jobs; return an error for each that remains."""
    errors = []
    try:
        names = sorted(os.listdir(jobs_dir))
    except FileNotFoundError:
        names = []
    for path in [os.path.join(jobs_dir, name) for name in names if name.startswith(_REMOVED)]:
        while os.path.exists(path):
            try:
                shutil.rmtree(path)
            except FileNotFoundError:
                continue  # another rank of this machine also removes it
            except OSError as error:
                place = error.filename or path
                errors.append("%s cannot be removed: %s" % (place, error.strerror))
                break
    return errors
