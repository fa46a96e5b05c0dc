"""Folders of jobs, created without running anything, and checks by the published schemas."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema

from tests.support.lab import REPOSITORY, Lab
from train.host import processes, rank_files, records

DAY = 86_400.0


def lay_out(
    root: Path,
    job: str,
    task: str,
    *,
    host: str,
    phase: str = "completed",
    ago: float = DAY,
    attempt: int = 1,
    log: bytes = b"",
    progress: Mapping[str, Any] | None = None,
    **state: Any,
) -> Path:
    """Create the folder of a rank that was last updated ``ago`` seconds ago.

    Args:
        phase: ``absent`` for a rank without ``state.json``. The supervisor of one that is alive is
            this test's own process.
        state: further fields of ``state.json``.
    """
    rank_dir = root / "jobs" / job / task
    (rank_dir / "code").mkdir(parents=True)
    now = time.time()
    spec = {
        "job": job,
        "task": task,
        "host": host,
        "attempt": attempt,
        "results_dir": str(rank_dir),
        "port": None,
        "non_training": False,
        "environment": {"TOKEN": "hunter2"},
    }
    (rank_dir / rank_files.RANK_FILE).write_text(json.dumps(spec))
    (rank_dir / rank_files.LOG_FILE).write_bytes(log)
    if progress is not None:
        (rank_dir / rank_files.PROGRESS_FILE).write_text(json.dumps(progress) + "\n")
    if phase != "absent":
        about = {"phase": phase, "attempt": attempt, "started_at": now - ago - 60, "reason": ""}
        if phase in records.ALIVE_PHASES:
            about["supervisor_pid"] = os.getpid()
            about["supervisor_start"] = processes.start_time(os.getpid())
            about["boot_id"] = processes.boot_id()
        else:
            about["ended_at"] = now - ago
        (rank_dir / rank_files.STATE_FILE).write_text(json.dumps({**about, **state}))
    for path in rank_dir.iterdir():
        os.utime(path, (now - ago, now - ago))
    return rank_dir


def write_manifest(
    root: Path, job: str, attempts: list[dict[str, str]], created_ago: float = DAY
) -> None:
    """Write ``job.json``: for each attempt, the inventory host of each task."""
    told = [{"attempt": n, "staged": True, "ranks": tasks} for n, tasks in enumerate(attempts, 1)]
    manifest = {
        "job": job,
        "attempt": len(attempts),
        "attempts": told,
        "created_at": time.time() - created_ago,
        "policy": {"max_restarts": 3},
    }
    (root / "jobs" / job / rank_files.JOB_FILE).write_text(json.dumps(manifest))


def jobs_in(root: Path) -> list[str]:
    """Return the names in the folder of the jobs."""
    return sorted(path.name for path in (root / "jobs").iterdir())


def check(name: str, value: Any) -> None:
    """Check a record against its published schema."""
    schema = json.loads((REPOSITORY / f"docs/schemas/{name}.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(value)


def check_files(lab: Lab, job: str) -> None:
    """Check all files of a job that have a schema, locally and on its hosts."""
    run_dir, job_dir = lab.runs_dir / job, lab.root / "jobs" / job
    check("manifest", json.loads((run_dir / "manifest.json").read_text()))
    check("manifest", json.loads((job_dir / "job.json").read_text()))
    for path in run_dir.rglob("result.json"):
        check("result", json.loads(path.read_text()))
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    shown = [event for event in events if "phase" in event]
    assert shown
    for event in shown:
        check("event", event)
    for path in run_dir.rglob("load/*.jsonl"):
        for line in path.read_text().splitlines():
            check("load", json.loads(line))
    ranks = [path.parent for path in job_dir.glob("*-*/rank.json")]
    assert len(ranks) == 2
    for rank in ranks:
        check("rank", json.loads((rank / "rank.json").read_text()))
        check("state", json.loads((rank / "state.json").read_text()))
        lines = (rank / "progress.jsonl").read_text().splitlines()
        assert lines
        for line in lines:
            check("progress", json.loads(line))
