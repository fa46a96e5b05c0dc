"""The table of jobs, from the folder of results and from the hosts."""

from __future__ import annotations

import fcntl
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.run_folders import write_attempt, write_manifest
from train.cli import watch_lock
from train.cli.dashboard import job_rows
from train.cli.dashboard.hosts import NOTHING
from train.cli.dashboard.job_rows import JobRows
from train.gang.job_records import LOCK_FILE
from train.host import progress_records


def rank_event(task: str, at: float, step: int, phase: str = "running") -> dict[str, Any]:
    return {
        **{"age": 0.1, "exit_code": None, "host": "node-1", "last_line": "", "phase": phase},
        **{"progress": {"step": step, "steps": 100, "t": at}, "reason": "", "t": at, "task": task},
    }


def write_events(folder: Path, events: list[dict[str, Any]]) -> None:
    lines = [json.dumps(event, sort_keys=True) for event in events]
    (folder / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))


def listed_job(job: str, state: str) -> dict[str, Any]:
    return {
        **{
            "job": job,
            "state": state,
            "owner": "anna",
            "alive": 2,
            "total": 2,
            "hosts": ["node-1"],
        },
        **{"progress": {"step": 7, "steps": 10}, "started_at": time.time() - 60},
        "ranks": [  # the second one failed first
            {"task": "worker-0", "phase": "failed", "reason": "lost a peer", "ended_at": 9.0},
            {"task": "worker-1", "phase": "failed", "reason": "was killed", "ended_at": 7.0},
        ],
    }


def listed(*jobs: dict[str, Any], **holds: str) -> Any:
    held = [{"job": job, "state": state, "user": "bert"} for job, state in holds.items()]
    return {"at": time.time(), "hosts": {"node-1": {"holds": held}}, "jobs": list(jobs)}


def states(runs: Path, about: Any = NOTHING) -> dict[str, str]:
    return {row.job: row.state for row in JobRows(runs).rows(about)}


@pytest.mark.parametrize("name", [LOCK_FILE, watch_lock.FILE])
def test_a_job_that_is_followed_here_needs_no_host(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "night"
    write_manifest(folder, ["worker-0", "worker-1"])
    now = time.time()
    events = [rank_event("worker-0", now - 50 + n, n) for n in range(50)]
    write_events(folder, [*events, rank_event("worker-1", now, 49)])
    assert states(tmp_path) == {"night": job_rows.UNKNOWN}
    rows = JobRows(tmp_path)
    with (folder / name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert rows.is_followed("night")
        (row,) = rows.rows(NOTHING)
    assert (row.state, row.ranks, row.step, row.part) == ("running", "2 of 2", "step 49/100", 0.49)
    assert row.left in ("0:00:51", "0:00:52", "0:00:53")
    assert not row.needs_attach
    assert not JobRows(tmp_path).is_followed("night")


def test_the_hosts_know_a_job_that_nobody_follows_here(tmp_path: Path) -> None:
    write_manifest(tmp_path / "night", ["worker-0", "worker-1"])
    (row,) = JobRows(tmp_path).rows(listed(listed_job("night", "running")))
    assert (row.state, row.step, row.needs_attach) == ("running", "step 7/10", True)
    assert states(tmp_path, listed(listed_job("night", "failed"))) == {"night": "failed"}


def test_jobs_of_other_machines_and_jobs_that_wait_are_shown(tmp_path: Path) -> None:
    about = listed(listed_job("other", "failed"), late="queued", busy="started")
    rows = {row.job: row for row in JobRows(tmp_path).rows(about)}
    assert set(rows) == {"other", "late"}
    assert (rows["late"].state, rows["late"].owner) == ("waiting", "bert")
    assert (rows["other"].cause, rows["other"].is_here) == ("was killed", False)


def test_jobs_that_run_come_first_and_ended_ones_keep_their_result(tmp_path: Path) -> None:
    done = {"state": "completed", "message": "all", "metrics": {"accuracy": 0.5}, "restart": False}
    for name, created_at in (("old", 10.0), ("new", 20.0)):
        write_manifest(tmp_path / name, ["worker-0"], created_at=created_at)
        write_attempt(tmp_path / name, ["worker-0"], range(2), done)
    write_manifest(tmp_path / "running", ["worker-0"], created_at=1.0)
    rows = JobRows(tmp_path).rows(listed(listed_job("running", "running")))
    assert [row.job for row in rows] == ["running", "new", "old"]
    assert (rows[1].step, rows[1].left, rows[1].part) == ("accuracy 0.5", "", None)


def test_damaged_and_foreign_folders_are_left_out(tmp_path: Path) -> None:
    for name in ("damaged", ".hidden", "a b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text("{")
    assert states(tmp_path) == {}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("result.json", {}),
        ("result.json", {"restart": False, "state": "failed", "message": None}),
        ("manifest.json", {"ranks": [{}]}),
        ("manifest.json", {"ranks": [], "created_at": "yesterday"}),
    ],
)
def test_a_job_with_damaged_files_does_not_hide_the_others(
    name: str, content: Any, tmp_path: Path
) -> None:
    write_manifest(tmp_path / "night", ["worker-0"])
    write_manifest(tmp_path / "odd", ["worker-0"])
    (tmp_path / "odd" / name).write_text(json.dumps(content))
    rows = {row.job: row for row in JobRows(tmp_path).rows(NOTHING)}
    assert set(rows) == {"night", "odd"}
    assert rows["odd"].step.startswith("damaged files (")


def test_a_job_without_a_foreseeable_end_has_no_time_left() -> None:
    most = progress_records.MAX_COUNT
    events: Any = [rank_event("worker-0", 60.0 * n, n) for n in range(1, 4)]
    for event in events:
        event["progress"]["steps"] = most
    assert job_rows.time_left(events) == ""
