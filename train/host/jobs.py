"""The jobs that a host knows of, from their folders and from /proc, and the removal of old ones.

Linux only, standard library only, Python 3.8 and newer.
"""

from __future__ import annotations

import os
import shutil
import time
from typing import Any, Dict, List, Mapping, Optional

from . import ranks, records

#: Seconds after its last sign of life in which a job is not removed: it may be about to start, its
#: results may be on their way to the control node, or it may be started again.
RECENT = 600.0
#: Folders that were jobs; what could not be removed of them is tried again.
_REMOVED = ".removed-"
_TAIL = 65_536
_TOLD = ("phase", "step", "steps", "epoch", "epochs")


def look(
    root: str, job: Optional[str] = None, lines: Optional[int] = None, sizes: bool = True
) -> List[Dict[str, Any]]:
    """Return the jobs under ``<root>/jobs`` with their ranks.

    Args:
        job: only this one.
        lines: how many lines of each log are wanted, counted from its end; None for all.
        sizes: whether to measure the folders.

    Returns:
        For each job ``job``, ``size`` (bytes on disk; None where not measured), ``manifest`` (see
        ``told_by_manifest``) and ``ranks``: what ``ranks.identify`` returns, and ``host`` (its
        inventory host; None where not known), ``attempt``, ``key`` (the same for all machines that
        see the folder), ``phase``, ``reason``, ``started_at``, ``ended_at`` (None where not known),
        ``idle`` (seconds since its last sign of life), ``processes`` (how many it has),
        ``progress`` (where its script is, as far as told), ``log_from`` (bytes).
    """
    living = processes_of_ranks()
    found = []
    for name in _names(_jobs_dir(root), job):
        job_dir = os.path.join(_jobs_dir(root), name)
        told = [_rank(path, living, lines) for path in _rank_dirs(job_dir)]
        seen = [rank for rank in told if rank is not None]
        if seen:
            found.append(
                {
                    "job": name,
                    "size": size_of(job_dir) if sizes else None,
                    "manifest": told_by_manifest(job_dir),
                    "ranks": seen,
                }
            )
    return found


def _jobs_dir(root: str) -> str:
    return os.path.join(os.path.abspath(os.path.expanduser(root)), "jobs")


def _names(jobs_dir: str, job: Optional[str]) -> List[str]:
    """Return the names in ``jobs_dir`` that may be jobs."""
    try:
        names = sorted(os.listdir(jobs_dir)) if job is None else [job]
    except FileNotFoundError:
        return []
    return [name for name in names if records.JOB_PATTERN.fullmatch(name)]


def _rank_dirs(job_dir: str) -> List[str]:
    try:
        paths = [os.path.join(job_dir, name) for name in sorted(os.listdir(job_dir))]
    except OSError:  # gone, another user's, or no folder
        return []
    return [path for path in paths if os.path.isfile(os.path.join(path, records.RANK_FILE))]


def _rank(rank_dir: str, living: Dict[str, int], lines: Optional[int]) -> Optional[Dict[str, Any]]:
    """Return what is told of a rank; None where its folder has gone meanwhile."""
    path = os.path.join(rank_dir, records.RANK_FILE)
    try:
        about = os.stat(path)
        spec = records.read_json(path)
    except ValueError:
        spec = {}  # cut off when the disk was full
    except OSError:
        return None
    if spec is None:
        return None
    try:
        state = ranks.observe(rank_dir)
    except OSError:
        return None
    job, task = rank_dir.split(os.sep)[-2:]
    known = {"attempt": 1, "home": rank_dir, "port": None, "service": False, **spec}
    log = os.path.join(rank_dir, records.LOG_FILE)
    return dict(
        ranks.identify(rank_dir, dict(known, job=job, task=task)),
        host=known.get("host"),
        key="%s:%d:%d" % (rank_dir, about.st_ino, about.st_mtime_ns),
        phase=state["phase"],
        reason=state.get("reason", ""),
        started_at=state.get("started_at"),
        ended_at=state.get("ended_at"),
        idle=_idle(rank_dir, state),
        processes=living.get(os.path.realpath(rank_dir), 0),
        progress=_progress(os.path.join(rank_dir, records.PROGRESS_FILE)),
        log_from=0 if lines is None else start_of_lines(log, lines),
    )


def _idle(rank_dir: str, state: Dict[str, Any]) -> float:
    """Return the seconds since a rank's end, or else since the last change of its files."""
    names = (records.RANK_FILE, records.STATE_FILE, records.LOG_FILE, records.PROGRESS_FILE)
    times = [0.0]
    for name in names if state.get("ended_at") is None else ():
        try:
            times.append(os.stat(os.path.join(rank_dir, name)).st_mtime)
        except OSError:
            continue
    return round(max(0.0, time.time() - (state.get("ended_at") or max(times))), 3)


def _progress(path: str) -> Dict[str, Any]:
    """Return where the script is, from its last records."""
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, os.path.getsize(path) - _TAIL))
            text = stream.read().decode(errors="replace")
    except OSError:
        return {}
    found: Dict[str, Any] = {}
    for record in map(dict, records.parse_progress(text)):
        found.update({key: record[key] for key in _TOLD if key in record})
    return found


def processes_of_ranks() -> Dict[str, int]:
    """Return how many processes live of each rank, by its folder (without links).

    The processes of other users cannot be seen.
    """
    mark = (records.ENV_RANK_DIR + "=").encode()
    found: Dict[str, int] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open("/proc/%s/environ" % entry, "rb") as stream:
                variables = stream.read().split(b"\0")
        except OSError:
            continue
        for variable in variables:
            if variable.startswith(mark):
                rank_dir = os.path.realpath(os.fsdecode(variable[len(mark) :]))
                found[rank_dir] = found.get(rank_dir, 0) + 1
    return found


def told_by_manifest(job_dir: str) -> Optional[Dict[str, Any]]:
    """Return what ``job.json`` says of the job as a whole; None where there is none.

    Returns:
        ``attempt``; ``created_at``; ``tasks``, the inventory host of each rank of that attempt;
        ``hosts``, those of all attempts; ``restarts``, how many may follow.
    """
    try:
        manifest = records.read_json(os.path.join(job_dir, records.JOB_FILE))
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


def start_of_lines(path: str, lines: int) -> int:
    """Return where the last ``lines`` lines of a file begin, in bytes; 0 where it has fewer."""
    try:
        with open(path, "rb") as stream:
            end = position = os.path.getsize(path)
            if lines <= 0:
                return end
            wanted = lines
            while position > 0:
                begin = max(0, position - _TAIL)
                stream.seek(begin)
                block = stream.read(position - begin)
                # The newline that ends the last line is not the beginning of another.
                upto = len(block) - 1 if position == end and block.endswith(b"\n") else len(block)
                while wanted:
                    upto = block.rfind(b"\n", 0, upto)
                    if upto < 0:
                        break
                    wanted -= 1
                if not wanted:
                    return begin + upto + 1
                position = begin
    except OSError:
        pass
    return 0


def size_of(folder: str) -> int:
    """Return the bytes that a folder takes on the disk; links are not followed."""
    total = 0
    counted = set()
    for parent, names, files in os.walk(folder):
        for path in [parent] + [os.path.join(parent, name) for name in names + files]:
            try:
                about = os.lstat(path)
            except OSError:
                continue
            if (about.st_dev, about.st_ino) not in counted:
                counted.add((about.st_dev, about.st_ino))
                total += about.st_blocks * 512
    return total


def why_kept(rank: Mapping[str, Any]) -> str:
    """Return why a job with such a rank (see ``look``) must not be removed; empty if it may be."""
    if rank["phase"] in records.ALIVE_PHASES:
        return "%s is %s" % (rank["task"], rank["phase"])
    if rank["processes"]:
        return "processes of %s still run" % rank["task"]
    if rank["idle"] < RECENT:
        ended = "is being started" if rank["phase"] == ranks.ABSENT else "ended just now"
        return "%s %s" % (rank["task"], ended)
    return ""


def remove(root: str, jobs: List[str], dry: bool = False) -> Dict[str, List[Any]]:
    """Remove the folders of jobs that have ended.

    Args:
        jobs: their ids.
        dry: only tell what would be removed.

    Returns:
        ``removed``: ``job`` and ``size`` (bytes) of each; ``kept``: which are not to be removed,
        and why; ``troubles``: what could not be removed, and why.
    """
    jobs_dir = _jobs_dir(root)
    base = os.path.dirname(jobs_dir)
    told: Dict[str, List[Any]] = {"removed": [], "kept": [], "troubles": []}
    if not os.path.realpath(jobs_dir).startswith(os.path.realpath(base) + os.sep):
        reason = "%s leads out of %s (train_job_root): nothing is removed there" % (jobs_dir, base)
        return dict(told, troubles=[reason])
    if not dry:
        told["troubles"] += _sweep(jobs_dir)
    for name in jobs:
        job_dir = os.path.join(jobs_dir, name)
        if not records.JOB_PATTERN.fullmatch(name) or os.path.islink(job_dir):
            told["kept"].append("%s is no folder of a job" % job_dir)
            continue
        seen = look(root, name, lines=0)
        if not seen:
            continue  # gone already: another machine may see the same folder
        reasons = [reason for reason in map(why_kept, seen[0]["ranks"]) if reason]
        if reasons:
            told["kept"].append("%s: %s" % (name, reasons[0]))
            continue
        troubles = [] if dry else _remove(jobs_dir, name)
        told["troubles"] += troubles
        if not troubles:
            told["removed"].append({"job": name, "size": seen[0]["size"]})
    return told


def _remove(jobs_dir: str, name: str) -> List[str]:
    """Remove a job's folder; return what could not be removed, and why.

    In one step it is no job any more: one that is started this moment fails, instead of losing its
    files under way.
    """
    target = os.path.join(jobs_dir, "%s%s-%d" % (_REMOVED, name, os.getpid()))
    try:
        os.rename(os.path.join(jobs_dir, name), target)
        for path in _rank_dirs(target):
            if not os.path.islink(path):
                os.unlink(os.path.join(path, records.RANK_FILE))
    except OSError as error:
        return ["%s cannot be removed: %s" % (error.filename, error.strerror)]
    return _sweep(jobs_dir)


def _sweep(jobs_dir: str) -> List[str]:
    """Remove what was a job; return what could not be removed, and why, in words."""
    troubles = []
    try:
        left = [name for name in sorted(os.listdir(jobs_dir)) if name.startswith(_REMOVED)]
    except FileNotFoundError:
        return []
    for name in left:
        path = os.path.join(jobs_dir, name)
        while os.path.exists(path):
            try:
                shutil.rmtree(path)
            except FileNotFoundError:
                continue  # another rank of this machine removes it, too
            except OSError as error:
                place = error.filename or path
                troubles.append("%s cannot be removed: %s" % (place, error.strerror))
                break
    return troubles
