"""The table of jobs: those in the folder of results, those on the hosts, and those that wait."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from train.cli import watch_lock
from train.gang import lines, listing
from train.gang.job_records import (
    EVENTS_FILE,
    LOCK_FILE,
    MANIFEST_FILE,
    RESULT_FILE,
    Listed,
    Manifest,
    RankEvent,
    ResultRecord,
    read_manifest,
    read_result,
)
from train.host import records, tail
from train.host.progress_records import Progress

#: The states of jobs that have ended, and those that the hosts' leases or the files here show.
ENDED = records.FINAL_PHASES
WAITING, RESTARTING, RUNNING, UNKNOWN = "waiting", "restarting", "running", "unknown"
#: Bytes to read from the end of a job's events, and the seconds over which the pace is measured.
_EVENT_BYTES, _PACE_S = 1 << 17, 180.0
#: Maximum number of jobs to show, and of seconds until a job's end.
_MOST, _LONGEST_S = 200, 1e9
#: Errors that damaged files of a job may cause.
_OF_DAMAGED_FILES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
#: Records of locks: the inode number of a locked file.
_LOCK = re.compile(r"FLOCK.* [0-9a-f]+:[0-9a-f]+:([0-9]+) ")


@dataclass(frozen=True)
class JobRow:
    """A job in the table.

    Attributes:
        is_here: whether the job has a folder here, and so a page.
        step: the position of its chief or first worker, as text.
        part: the part of its steps that is done, from 0 to 1; None if unknown.
        left: the time until its end at the current pace, as text; empty if unknown.
        cause: the first line of the reason why it failed.
        needs_attach: whether it runs, but no process of this machine follows it.
    """

    job: str
    state: str
    owner: str = ""
    ranks: str = ""
    hosts: Sequence[str] = ()
    step: str = ""
    part: float | None = None
    left: str = ""
    cause: str = ""
    started_at: float = 0.0
    is_here: bool = False
    needs_attach: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended."""
        return self.state in ENDED


@dataclass
class _Local:
    """The files of a job here, read again if they have changed."""

    versions: list[int] = field(default_factory=list)
    manifest: Manifest | None = None
    result: ResultRecord | None = None
    events: list[RankEvent] = field(default_factory=list)
    owner: str = ""


class JobRows:
    """Makes the table of jobs."""

    def __init__(self, runs_dir: Path) -> None:
        self._runs_dir = runs_dir
        self._local: dict[str, _Local] = {}

    def names(self) -> list[str]:
        """Return the ids of all jobs here."""
        folders = (path.parent.name for path in self._runs_dir.glob(f"*/{MANIFEST_FILE}"))
        return sorted(name for name in folders if records.JOB_PATTERN.fullmatch(name))

    def is_followed(self, job: str) -> bool:
        """Return whether a process of this machine follows a job."""
        return bool(_locked(self._runs_dir, [job]))

    def rows(self, listed: Listed) -> list[JobRow]:
        """Return the jobs here and on the hosts: first those that have not ended, newest first.

        If there are many, only the first ones are returned.
        """
        return self._all(listed)[:_MOST]

    def _all(self, listed: Listed) -> list[JobRow]:
        here = self.names()
        followed = _locked(self._runs_dir, here)
        remote = {job["job"]: job for job in listed["jobs"]}
        waiting = _waiting(listed)
        found = []
        for job in here:
            local = self._read(job)
            if local is not None:
                about = remote.get(job), job in followed, waiting.get(job, "")
                found.append(_row_or_damaged(job, local, *about))
        known = {row.job for row in found}
        found += [
            _remote_row(about, waiting.get(job, ""))
            for job, about in remote.items()
            if job not in known
        ]
        known |= set(remote)
        found += [JobRow(job, WAITING, owner) for job, owner in waiting.items() if job not in known]
        found.sort(key=lambda row: (row.has_ended, -row.started_at, row.job))
        return found

    def row(self, job: str, listed: Listed) -> JobRow | None:
        """Return the row of a job; None if it is unknown."""
        return next((row for row in self._all(listed) if row.job == job), None)

    def _read(self, job: str) -> _Local | None:
        folder = self._runs_dir / job
        local = self._local.setdefault(job, _Local())
        versions = [_changed_at(folder / name) for name in (MANIFEST_FILE, RESULT_FILE)]
        versions.append(_changed_at(folder / EVENTS_FILE))
        if versions != local.versions:
            try:
                local.manifest, local.result = read_manifest(folder), read_result(folder)
                local.owner = folder.owner()
            except (OSError, ValueError, KeyError):
                local.manifest = None  # a damaged folder
            is_final = local.result is not None and not local.result.get("restart")
            local.events = [] if is_final else _last_events(folder / EVENTS_FILE)
            local.versions = versions
        return local if local.manifest else None


def _changed_at(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime_ns
    return 0


def _locked(runs_dir: Path, jobs: Iterable[str]) -> set[str]:
    """Return the jobs whose folder a process has locked in order to follow them."""
    with contextlib.suppress(OSError):
        inodes = set(_LOCK.findall(Path("/proc/locks").read_text("ascii", "replace")))
        return {
            job
            for job in jobs
            if {_inode(runs_dir / job / name) for name in (LOCK_FILE, watch_lock.FILE)} & inodes
        }
    return set()


def _inode(path: Path) -> str:
    with contextlib.suppress(OSError):
        return str(path.lstat().st_ino)
    return ""


def _waiting(listed: Listed) -> dict[str, str]:
    """Return the jobs that wait for ports or GPUs, with their users."""
    holds = [one for host in listed["hosts"].values() for one in host["holds"]]
    started = {one["job"] for one in holds if one["state"] != "queued"}
    return {one["job"]: one["user"] for one in holds if one["job"] not in started}


def _last_events(path: Path) -> list[RankEvent]:
    """Return the last events of ranks."""
    found = []
    for line in tail.read_last(str(path), _EVENT_BYTES).splitlines():
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict) and isinstance(event.get("progress"), dict):
                found.append(event)
            elif isinstance(event, dict) and "restart" in event:
                found.clear()
    return found  # type: ignore[return-value]  # written by this machine's watch


def _row_or_damaged(
    job: str, local: _Local, remote: Mapping[str, Any] | None, followed: bool, waiting: str
) -> JobRow:
    """Return the row of a job with a folder here, also if the folder's files are damaged."""
    try:
        row = _row_of(job, local, remote, followed, waiting)
        return replace(row, started_at=float(row.started_at))
    except _OF_DAMAGED_FILES as error:
        step = f"damaged files ({type(error).__name__})"
        return JobRow(job, UNKNOWN, local.owner, step=step, is_here=True)


def _row_of(
    job: str, local: _Local, remote: Mapping[str, Any] | None, followed: bool, waiting: str
) -> JobRow:
    """Return the row of a job with a folder here. Its hosts know better unless it is followed."""
    manifest, result = local.manifest or {}, local.result
    ranks = manifest.get("ranks", [])
    is_final = result is not None and not result["restart"]
    latest = {event["task"]: event for event in local.events}
    alive = [event for event in latest.values() if event["phase"] in records.ALIVE_PHASES]
    progress: Progress = _furthest(latest.values())
    state = UNKNOWN
    if is_final and result:
        state = result["state"]
    elif waiting:
        state = WAITING
    elif followed:
        state = RESTARTING if result and result["restart"] and not alive else RUNNING
    elif remote:
        state = str(remote["state"])
        progress = remote["progress"] or progress
    has_ended = state in ENDED
    number_alive = len(alive) if followed or remote is None else remote["alive"]
    return JobRow(
        job=job,
        state=state,
        owner=(remote or {}).get("owner") or local.owner,
        ranks=str(len(ranks)) if has_ended else f"{number_alive} of {len(ranks)}",
        hosts=list(dict.fromkeys(str(rank["host"]) for rank in ranks)),
        step=_position(progress, result if is_final else None),
        part=part_of(progress) if not has_ended else None,
        left=time_left(local.events) if followed else "",
        cause=result["message"].split("\n")[0] if is_final and result else "",
        started_at=manifest.get("created_at", 0.0),
        is_here=True,
        needs_attach=not has_ended and not followed and state not in (WAITING, UNKNOWN),
    )


def _position(progress: Progress, result: ResultRecord | None) -> str:
    """Return the step and epoch of a job or, once it has ended, its last metrics."""
    if result is not None:
        metrics = result.get("metrics") or {}
        return ", ".join(f"{name} {lines.number(value)}" for name, value in metrics.items())
    return ", ".join(lines.counts(progress, "step", "epoch"))


def _remote_row(job: Mapping[str, Any], waiting: str) -> JobRow:
    """Return the row of a job that only its hosts know."""
    return JobRow(
        job=job["job"],
        state=WAITING if waiting else job["state"],
        owner=job["owner"],
        ranks=str(job["total"]) if job["state"] in ENDED else f"{job['alive']} of {job['total']}",
        hosts=job["hosts"],
        step=", ".join(lines.counts(job["progress"], "step", "epoch")),
        part=part_of(job["progress"]) if job["state"] not in ENDED else None,
        cause=_first_failure(job["ranks"]),
        started_at=job["started_at"],
        needs_attach=job["state"] not in ENDED and not waiting,
    )


def _first_failure(ranks: Sequence[Mapping[str, Any]]) -> str:
    """Return the reason of the rank that failed first; empty if none did."""
    failed = [rank for rank in ranks if rank["phase"] == "failed"]
    first = min(
        failed, key=lambda rank: rank.get("ended_at") or float("inf"), default={"reason": ""}
    )
    return str(first["reason"])


def _furthest(events: Iterable[RankEvent]) -> Progress:
    """Return the progress of the rank that is furthest ahead."""
    found = [event["progress"] for event in events]
    return max(found, key=lambda progress: progress.get("step", -1), default=Progress())


def part_of(progress: Mapping[str, Any]) -> float | None:
    """Return the part of the steps that is done, from 0 to 1; None if unknown."""
    step, steps = progress.get("step"), progress.get("steps")
    return min(1.0, step / steps) if steps and step is not None else None


def time_left(events: Sequence[RankEvent]) -> str:
    """Return the time until all steps are done at the pace of the last minutes; '' if unknown."""
    points = [(event["t"], part_of(event["progress"])) for event in events]
    known = [(at, part) for at, part in points if part is not None]
    if not known:
        return ""
    now, done = max(known, key=lambda point: point[1])
    recent = [(at, part) for at, part in known if now - _PACE_S <= at < now and part < done]
    if not recent or done >= 1.0:
        return ""
    then, before = recent[0]
    seconds = (now - then) / (done - before) * (1.0 - done)
    return str(timedelta(seconds=int(seconds))) if seconds <= _LONGEST_S else ""


def age_of(row: JobRow) -> str:
    """Return the time since a job's start, as text."""
    return listing.span(max(0.0, time.time() - row.started_at)) if row.started_at else ""
