"""The jobs on the hosts of an inventory, put together from what each host knows of them.

Pure functions over what the host call ``list_jobs`` returned, used by train/gang/calls.py.
Standard library only, as plan.py.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from train.gang import lines
from train.gang.plan.ranks import PlanError
from train.host import jobs as host_jobs
from train.host import ranks as host_ranks
from train.host import records

STARTING, RUNNING, MIXED = "starting", "running", "mixed"
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


def seconds_of(text: str) -> float:
    """Return the seconds that ``14d`` and the like mean; units are s, m, h, d and w.

    Raises:
        ValueError: it is none of these.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no age: give a number with s, m, h, d or w, such as 14d")
    return float(found[1]) * _UNITS[found[2]]


def merge(told: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return the jobs that any host knows of, the newest first.

    Args:
        told: ``jobs`` as ``list_jobs`` returned them, by inventory host. Hosts that share a machine
            tell the same.

    Returns:
        For each job ``job``, ``state``, ``attempt``, ``alive`` and ``total`` (numbers of ranks),
        ``hosts``, ``started_at``, ``ended_at``, ``age``, ``size``, ``progress`` and ``ranks``, as
        docs/formats.md describes them. Besides those of ``list_jobs``, a rank has ``seen_by``, the
        inventory hosts that told of it. ``stale`` are the ranks of earlier attempts that were other
        tasks then; ``members``, the inventory hosts of all attempts, None where not known;
        ``restarts``, how many may follow.
    """
    names = dict.fromkeys(str(job["job"]) for jobs in told.values() for job in jobs)
    found = []
    for name in names:
        parts = [(host, job) for host, jobs in told.items() for job in jobs if job["job"] == name]
        found.append(_merge_one(name, parts))
    return sorted(found, key=lambda job: (-job["started_at"], job["job"]))


def _merge_one(name: str, parts: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    ranks: dict[str, dict[str, Any]] = {}
    sizes: dict[frozenset[str], int] = {}
    for host, part in parts:
        sizes[frozenset(rank["key"] for rank in part["ranks"])] = part["size"] or 0
        for rank in part["ranks"]:
            other = ranks.setdefault(rank["key"], {**rank, "seen_by": []})
            if not _alive(other) and _alive(rank):  # of two machines, the one where it runs knows
                ranks[rank["key"]] = other = {**rank, "seen_by": other["seen_by"]}
            other["seen_by"].append(host)
    manifest = max(
        (part["manifest"] for _, part in parts if part["manifest"]),
        key=lambda manifest: manifest["attempt"],
        default=None,
    )
    attempt = max(rank["attempt"] for rank in ranks.values())
    tasks: dict[str, str] = {}
    if manifest is not None and manifest["attempt"] >= attempt:
        attempt, tasks = manifest["attempt"], manifest["tasks"]
    current: dict[str, dict[str, Any]] = {}
    stale = []
    for rank in sorted(ranks.values(), key=lambda rank: (rank["attempt"], _alive(rank))):
        before = current.get(rank["task"])
        if before is not None:
            stale.append(before)
        current[rank["task"]] = rank
    for task in [task for task, rank in current.items() if tasks and task not in tasks]:
        stale.append(current.pop(task))
    shown = sorted(current.values(), key=lambda rank: records.task_order(rank["task"]))
    for rank in shown:
        rank["host"] = rank["host"] or tasks.get(rank["task"]) or rank["seen_by"][0]
    starts = [rank["started_at"] for rank in shown if rank["started_at"] is not None]
    oldest = time.time() - max(rank["idle"] for rank in shown)
    started_at = manifest["created_at"] if manifest else min(starts, default=oldest)
    ends = [rank["ended_at"] for rank in shown if rank["ended_at"] is not None]
    alive = sum(map(_alive, shown))
    chief = next((rank for rank in shown if not rank["service"]), None)
    return {
        "job": name,
        "state": state_of(shown),
        "attempt": attempt,
        "alive": alive,
        "total": len(tasks) or len(shown),
        "hosts": list(dict.fromkeys([*tasks.values(), *(rank["host"] for rank in shown)])),
        "started_at": started_at,
        "ended_at": max(ends) if ends and not alive else None,
        "age": round(max(0.0, time.time() - started_at), 3),
        "size": sum(sizes.values()),
        "progress": chief["progress"] if chief else {},
        "ranks": shown,
        "stale": stale,
        "members": manifest["hosts"] if manifest else None,
        "restarts": manifest["restarts"] if manifest else 0,
    }


def _alive(rank: Mapping[str, Any]) -> bool:
    return rank["phase"] in records.ALIVE_PHASES


def state_of(ranks: Sequence[Mapping[str, Any]]) -> str:
    """Return the state of a job from the phases of its ranks; services do not count.

    ``mixed``: some run and some have ended.
    """
    phases = set()
    for rank in ranks:
        laid_out = rank["phase"] == host_ranks.ABSENT
        # One that was never started will not be any more.
        young = rank["idle"] < host_jobs.RECENT
        phase = (STARTING if young else records.FAILED) if laid_out else rank["phase"]
        if not rank["service"]:
            phases.add(phase)
    at_work = phases & {STARTING, RUNNING}
    if at_work and phases - at_work:
        return MIXED
    order = (STARTING, RUNNING, records.FAILED, records.STOPPED, records.COMPLETED)
    state = next((phase for phase in order if phase in phases), records.FAILED)
    ended = state in records.FINAL_PHASES
    return MIXED if ended and any(_alive(rank) for rank in ranks) else state


def choose_old(
    jobs: Iterable[Mapping[str, Any]],
    silent: Sequence[str],
    *,
    older_than: float | None = None,
    keep: int | None = None,
) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Return the jobs to remove, and why others that are as old are kept.

    Args:
        jobs: what ``merge`` returned, the newest first.
        silent: inventory hosts that told nothing.
        older_than: seconds since a job's end; None for any.
        keep: how many of the newest stay; None for none.

    Raises:
        PlanError: there is no limit, or one is below 0.
    """
    if older_than is None and keep is None:
        raise PlanError(
            "there is no limit to what is removed: give an age (--older-than 14d, "
            "train_job_clean_older_than) or how many jobs stay (--keep 20, train_job_clean_keep)"
        )
    if keep is not None and keep < 0:
        raise PlanError(f"train_job_clean_keep is {keep}, the limit is 0 or more")
    old, kept = [], []
    for job in list(jobs)[keep or 0 :]:
        ranks = [*job["ranks"], *job["stale"]]
        if older_than is not None and min(rank["idle"] for rank in ranks) < older_than:
            continue
        reasons = [host_jobs.why_kept(rank) for rank in ranks]
        known = job["members"]
        unseen = [host for host in silent if known is None or host in known]
        if unseen:
            reasons.append(f"{', '.join(unseen)} told nothing, where a rank may be alive")
        reason = next(filter(None, reasons), "")
        if reason:
            kept.append(f"{job['job']}: {reason}")
        else:
            old.append(job)
    return old, kept


_RANK_FIELDS = ("task", "host", "attempt", "phase", "reason", "started_at", "ended_at")
_INTERNAL = ("stale", "members", "restarts")


def public(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a job is told to programs; docs/formats.md describes every field."""
    ranks = [{name: rank[name] for name in _RANK_FIELDS} for rank in job["ranks"]]
    told = {name: value for name, value in job.items() if name not in _INTERNAL}
    return {**told, "ranks": ranks}


def line_of(job: Mapping[str, Any]) -> str:
    """Return a job as one line of text."""
    words = [f"{job['job']} {job['state']}, {job['alive']} of {job['total']} ranks alive"]
    if job["attempt"] > 1:
        words.append(f"attempt {job['attempt']}")
    words += [f"on {', '.join(job['hosts'])}", f"started {span(job['age'])} ago"]
    words += [size(job["size"]), *filter(None, [progress(job["progress"])])]
    return ", ".join(words)


def span(seconds: float) -> str:
    """Return a time span in the largest unit of which there are two, such as ``47h``."""
    units = sorted(_UNITS.items(), key=lambda item: item[1], reverse=True)
    unit, length = next((item for item in units if seconds >= 2 * item[1]), ("s", 1.0))
    return f"{int(seconds / length)}{unit}"


def size(count: float) -> str:
    """Return a number of bytes for people."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while count >= 1024 and len(units) > 1:
        count /= 1024
        units.pop(0)
    digits = 1 if count < 10 and units[0] != "B" else 0
    return f"{count:.{digits}f} {units[0]}"


def progress(record: Mapping[str, Any]) -> str:
    """Return how far a script is, as far as its record tells."""
    return ", ".join(lines.counts(record, "step", "epoch"))


def where(jobs: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the ids of the jobs whose folders lie on each host; a folder that several hosts see is
    told once.
    """
    found: dict[str, list[str]] = {}
    for job in jobs:
        for rank in [*job["ranks"], *job["stale"]]:
            ids = found.setdefault(rank["seen_by"][0], [])
            if job["job"] not in ids:
                ids.append(job["job"])
    return found
