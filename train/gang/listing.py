"""Lists the jobs of an inventory, merged from the reports of its hosts."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence

from train.gang import lines
from train.gang.errors import UserError
from train.gang.job_records import JobRank, MergedJob
from train.gang.login_failures import names_of
from train.host import records
from train.host.jobs import RECENT, why_kept
from train.host.records import ABSENT, ListedJob, ListedRank

MIXED = "mixed"
#: The field of a host whose jobs another host of its machine has listed, with that host's name.
LISTED_BY = "listed_by"
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


def seconds_of(text: str) -> float:
    """Return an age such as ``14d`` in seconds (s, m, h, d or w). Raise ValueError if invalid."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhdw])", text.strip())
    if found is None:
        raise ValueError(
            f"{text!r} is not a valid age: use a number followed by s, m, h, d or w, such as 14d"
        )
    return float(found[1]) * _UNITS[found[2]]


def merge(listed: Mapping[str, Sequence[ListedJob]]) -> list[MergedJob]:
    """Return all jobs that hosts reported, newest first. Two hosts may be the same machine."""
    parts: dict[str, list[tuple[str, ListedJob]]] = {}
    for host, jobs in listed.items():
        for job in jobs:
            parts.setdefault(job["job"], []).append((host, job))
    found = [_merge_one(name, known) for name, known in parts.items()]
    return sorted(found, key=lambda job: (-job["started_at"], job["job"]))


def _merge_one(name: str, parts: Sequence[tuple[str, ListedJob]]) -> MergedJob:
    ranks: dict[str, JobRank] = {}
    sizes: dict[frozenset[str], int] = {}
    for host, part in parts:
        sizes[frozenset(rank["key"] for rank in part["ranks"])] = part["size"] or 0
        for rank in part["ranks"]:
            merged = ranks.setdefault(rank["key"], {**rank, "seen_by": []})
            if not _alive(merged) and _alive(rank):  # trust the machine on which the rank runs
                ranks[rank["key"]] = merged = {**rank, "seen_by": merged["seen_by"]}
            merged["seen_by"].append(host)
    manifests = [part["manifest"] for _, part in parts if part["manifest"]]
    manifest = max(manifests, key=lambda manifest: manifest["attempt"], default=None)
    attempt = max(rank["attempt"] for rank in ranks.values())
    tasks: dict[str, str] = {}
    present = {rank["task"] for rank in ranks.values()}
    if manifest and manifest["attempt"] >= attempt and present & manifest["tasks"].keys():
        attempt, tasks = manifest["attempt"], manifest["tasks"]
    newest = sorted(ranks.values(), key=lambda rank: (rank["attempt"], _alive(rank)))
    current = {rank["task"]: rank for rank in newest if not tasks or rank["task"] in tasks}
    stale = [rank for rank in newest if rank is not current.get(rank["task"])]
    shown = sorted(current.values(), key=lambda rank: records.task_order(rank["task"]))
    for rank in shown:
        rank["host"] = rank["host"] or tasks.get(rank["task"]) or rank["seen_by"][0]
    starts = [rank["started_at"] for rank in shown if rank["started_at"] is not None]
    oldest = time.time() - max(rank["idle"] for rank in shown)
    started_at = manifest["created_at"] if manifest else min(starts, default=oldest)
    ends = [rank["ended_at"] for rank in shown if rank["ended_at"] is not None]
    alive = sum(map(_alive, shown))
    chief = next((rank for rank in shown if not rank["non_training"]), None)
    return {
        "job": name,
        "state": state_of(shown),
        "attempt": attempt,
        "alive": alive,
        "total": len(tasks) or len(shown),
        "hosts": list(dict.fromkeys([*tasks.values(), *(str(rank["host"]) for rank in shown)])),
        "started_at": started_at,
        "ended_at": None if alive else max(ends, default=None),
        "age": round(max(0.0, time.time() - started_at), 3),
        "size": sum(sizes.values()),
        "progress": chief["progress"] if chief else {},
        "ranks": shown,
        "stale": stale,
        "members": manifest["hosts"] if manifest else None,
        "restarts": manifest["restarts"] if manifest else 0,
    }


def _alive(rank: ListedRank) -> bool:
    return rank["phase"] in records.ALIVE_PHASES


def state_of(ranks: Sequence[ListedRank]) -> str:
    """Return a job's state from the phases of its training ranks.

    The state is ``mixed`` if only some of them have ended, or if only non-training ranks still run.
    """
    phases = set()
    for rank in ranks:
        phase = rank["phase"]
        if phase == ABSENT:  # never started, and after a while it never will
            phase = records.STARTING if rank["idle"] < RECENT else records.FAILED
        if not rank["non_training"]:
            phases.add(phase)
    at_work = phases & {*records.ALIVE_PHASES}
    if phases - at_work if at_work else any(map(_alive, ranks)):
        return MIXED
    order = (*records.ALIVE_PHASES, records.FAILED, records.STOPPED, records.COMPLETED)
    return next((phase for phase in order if phase in phases), records.FAILED)


def choose_old(
    jobs: Sequence[MergedJob],
    unreachable: Sequence[str],
    *,
    names: Sequence[str] = (),
    older_than: float | None = None,
    keep: int | None = None,
) -> tuple[list[MergedJob], list[str]]:
    """Return the jobs to remove, and the reasons why other old jobs are kept.

    Raise UserError if no limit is given or ``keep`` is negative.

    Args:
        jobs: newest first.
        unreachable: inventory hosts that reported nothing.
        names: all inventory hosts. If a host of a job is not among them, any host that reported
            nothing may be that host under a new name.
        older_than: minimum seconds since a job's end, or None.
        keep: number of newest jobs to keep, or None.
    """
    if older_than is None and keep is None:
        raise UserError(
            "nothing selected for removal: set a minimum age (--older-than 14d, "
            "train_job_clean_older_than) or the number of jobs to keep (--keep 20, "
            "train_job_clean_keep)"
        )
    if keep is not None and keep < 0:
        raise UserError(f"train_job_clean_keep is {keep}, expected 0 or more")
    old, kept = [], []
    for job in jobs[keep or 0 :]:
        ranks = [*job["ranks"], *job["stale"]]
        if older_than is not None and min(rank["idle"] for rank in ranks) < older_than:
            continue
        reasons = [why_kept(rank) for rank in ranks]
        known = job["members"]
        seen = {rank["host"] for rank in ranks}
        if names and known is not None and set(known) - seen - set(names):
            known = None
        unseen = [host for host in unreachable if known is None or host in known]
        if unseen:
            reasons.append(
                f"{names_of(unseen)} did not report, so a rank of the job may still be running"
            )
        if any(reasons):
            kept.append(f"{job['job']}: {next(filter(None, reasons))}")
        else:
            old.append(job)
    return old, kept


def public(job: MergedJob) -> dict[str, object]:
    """Return the public fields of a job. docs/formats.md describes every field."""
    fields = ("task", "host", "attempt", "phase", "reason", "started_at", "ended_at")
    ranks = [{name: dict(rank)[name] for name in fields} for rank in job["ranks"]]
    internal = ("stale", "members", "restarts")
    return {**{name: value for name, value in job.items() if name not in internal}, "ranks": ranks}


def line_of(job: MergedJob) -> str:
    """Return a job as one line of text."""
    words = [f"{job['job']} {job['state']}, {job['alive']} of {job['total']} ranks alive"]
    if job["attempt"] > 1:
        words.append(f"attempt {job['attempt']}")
    words += [f"on {', '.join(job['hosts'])}", f"started {span(job['age'])} ago", size(job["size"])]
    return ", ".join([*words, *lines.counts(job["progress"], "step", "epoch")])


def span(seconds: float) -> str:
    """Return a time span in the largest unit that fits at least twice, such as ``47h``."""
    fitting = [item for item in _UNITS.items() if seconds >= 2 * item[1]]
    unit, length = fitting[-1] if fitting else ("s", 1.0)
    return f"{int(seconds / length)}{unit}"


def size(count: float) -> str:
    """Return a number of bytes with a unit, such as ``1.5 GiB``."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while count >= 1024 and len(units) > 1:
        count /= 1024
        units.pop(0)
    digits = 1 if count < 10 and units[0] != "B" else 0
    return f"{count:.{digits}f} {units[0]}"


def where(jobs: Iterable[MergedJob]) -> dict[str, list[str]]:
    """Return the ids of the jobs stored on each host. Jobs in a shared folder are listed once."""
    found: dict[str, dict[str, None]] = {}
    for job in jobs:
        for rank in [*job["ranks"], *job["stale"]]:
            found.setdefault(rank["seen_by"][0], {})[job["job"]] = None
    return {host: list(ids) for host, ids in found.items()}
