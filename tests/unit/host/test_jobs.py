"""The list of jobs on a host, and their removal."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support import lease_ranks
from tests.support.job_folders import DAY, jobs_in, lay_out, write_manifest
from tests.unit.host.conftest import Starter
from train.host import jobs, leases, rank_environment, rank_files
from train.host.call_types import CallError


def test_a_job_is_listed_with_its_ranks(tmp_path: Path) -> None:
    progress = {"step": 5, "steps": 9, "loss": 0.5, "phase": "training"}
    about: dict[str, Any] = {"log": b"first\nsecond\nthird\n", "progress": progress}
    lay_out(tmp_path, "night", "worker-0", host="node-0", **about)
    about.update(phase="failed", reason="exited with code 1")
    lay_out(tmp_path, "night", "worker-1", host="node-1", **about)
    tasks = {"worker-0": "node-0", "worker-1": "node-1"}
    write_manifest(tmp_path, "night", [{**tasks, "worker-2": "node-2"}, tasks])
    (found,) = jobs.list_jobs(str(tmp_path), lines=2)
    assert found["job"] == "night"
    hosts = ["node-0", "node-1", "node-2"]
    summary = {"attempt": 2, "hosts": hosts, "restarts": 2, "tasks": tasks}
    assert summary.items() <= (found["manifest"] or {}).items()
    first, second = found["ranks"]
    assert (first["task"], first["host"], first["phase"]) == ("worker-0", "node-0", "completed")
    assert (second["phase"], second["reason"]) == ("failed", "exited with code 1")
    assert first["progress"] == {"step": 5, "steps": 9, "phase": "training"}
    assert first["log_from"] == len(b"first\n")
    assert DAY <= first["idle"] < DAY + 300
    assert first["processes"] == 0
    assert "hunter2" not in json.dumps(found), "the script's environment is nobody's business"


def test_jobs_are_listed_alone_or_together(tmp_path: Path) -> None:
    for name in ("one", "two"):
        lay_out(tmp_path, name, "worker-0", host="a")
    listed = [jobs.list_jobs(str(tmp_path)) for _ in range(2)]
    keys = [[rank["key"] for job in found for rank in job["ranks"]] for found in listed]
    assert keys[0] == keys[1], "it is the same however often a rank is seen"
    assert len(set(keys[0])) == 2
    assert [job["job"] for job in jobs.list_jobs(str(tmp_path), "two", sizes=False)] == ["two"]
    for unknown in ("three", "../two"):
        assert jobs.list_jobs(str(tmp_path), unknown) == []
    assert jobs.list_jobs(str(tmp_path / "nothing")) == []


def test_sizes_are_those_on_the_disk_and_links_count_for_nothing(tmp_path: Path) -> None:
    rank_dir = lay_out(tmp_path / "root", "night", "worker-0", host="a")
    large = tmp_path / "large"
    large.write_bytes(os.urandom(5_000_000))
    (rank_dir / "link").symlink_to(large)
    (rank_dir / "model").write_bytes(os.urandom(1_000_000))
    os.link(rank_dir / "model", rank_dir / "the same model")
    (found,) = jobs.list_jobs(str(tmp_path / "root"))
    assert 1_000_000 <= (found["size"] or 0) < 1_200_000
    (found,) = jobs.list_jobs(str(tmp_path / "root"), sizes=False)
    assert found["size"] is None


def test_broken_files_hide_no_job(tmp_path: Path) -> None:
    rank_dir = lay_out(tmp_path, "cut", "worker-0", host="a")
    for name in (rank_files.RANK_FILE, rank_files.STATE_FILE, rank_files.PROGRESS_FILE):
        (rank_dir / name).write_text('{"job": "cu')
    (tmp_path / "jobs/cut" / rank_files.JOB_FILE).write_text("[]")
    (tmp_path / "jobs/no-job").mkdir()
    (tmp_path / "jobs/a file").write_text("")
    (found,) = jobs.list_jobs(str(tmp_path))
    assert found["manifest"] is None
    assert [(rank["task"], rank["phase"]) for rank in found["ranks"]] == [("worker-0", "failed")]


@pytest.mark.parametrize("lines", [1, 100, 499, 700])
def test_where_the_last_lines_begin_around_a_hole(tmp_path: Path, lines: int) -> None:
    path = tmp_path / "log"
    head, newest = (b"".join(b"%07d\n" % n for n in range(500)) for _ in range(2))
    hole = len(head), len(head) + 300_000
    path.write_bytes(head + bytes(300_000) + newest)
    begin = jobs.start_of_lines(str(path), lines, hole)
    if lines < 500:
        assert begin == hole[1] + (500 - lines) * 8
    else:
        assert begin == (1000 - lines) * 8
    assert jobs.start_of_lines(str(path), 1, (0, path.stat().st_size + 1)) > hole[1]


@pytest.mark.parametrize("lines", [0, 1, 2, 3, 1000, 9999])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_where_the_last_lines_begin(tmp_path: Path, lines: int, end: bytes) -> None:
    path = tmp_path / "log"
    every = [b"line %d %s" % (n, b"x" * (n % 300)) for n in range(1500)]
    data = b"\n".join(every) + end
    path.write_bytes(data)
    wanted = b"\n".join(every[-lines:]) + end if lines else b""
    assert data[jobs.start_of_lines(str(path), lines) :] == (data if lines > 1500 else wanted)
    os.mkfifo(tmp_path / "fifo")
    for name in ("none", "fifo"):
        assert jobs.start_of_lines(str(tmp_path / name), lines) == 0


def remove(root: Path, *names: str, dry: bool = False) -> dict[str, list[str]]:
    try:
        found = {**jobs.remove({"root": str(root), "jobs": names, "check": dry}), "errors": []}
    except CallError as error:
        found = {**error.more, "errors": [str(error)]}
    found["removed"] = [job["job"] for job in found["removed"]]
    assert found.pop("changed") == bool(found["removed"])
    return found


NOTHING: dict[str, list[str]] = {"removed": [], "kept": [], "errors": []}


def test_a_job_is_removed_with_all_it_holds(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "data").write_text("precious")
    root = tmp_path / "root"
    rank_dir = lay_out(root, "old", "worker-0", host="a")
    lay_out(root, "old", "worker-1", host="b")
    lay_out(root, "other", "worker-0", host="a")
    (rank_dir / "data").symlink_to(outside)
    (root / "jobs/old/code.tar.gz").write_bytes(b"x")
    # If the user moved a rank's folder elsewhere, only the link is removed.
    elsewhere = lay_out(tmp_path / "elsewhere", "old", "worker-2", host="c")
    (root / "jobs/old/worker-2").symlink_to(elsewhere)
    assert remove(root, "old", dry=True) == {**NOTHING, "removed": ["old"]}
    assert jobs_in(root) == ["old", "other"]
    assert remove(root, "old", "gone") == {**NOTHING, "removed": ["old"]}
    assert jobs_in(root) == ["other"]
    assert (outside / "data").read_text() == "precious"
    assert (elsewhere / rank_files.RANK_FILE).exists()


def test_the_files_of_a_watch_on_this_host_are_removed_with_the_job(tmp_path: Path) -> None:
    for name in ("old", "other"):
        lay_out(tmp_path, name, "worker-0", host="a")
        (tmp_path / "controller/jobs" / name / "runs").mkdir(parents=True)
    remove(tmp_path, "old", dry=True)
    assert (tmp_path / "controller/jobs/old/runs").is_dir()
    assert remove(tmp_path, "old") == {**NOTHING, "removed": ["old"]}
    assert [path.name for path in (tmp_path / "controller/jobs").iterdir()] == ["other"]
    (tmp_path / "controller/jobs/no-rank-here").mkdir()
    assert remove(tmp_path, "no-rank-here") == NOTHING
    assert [path.name for path in (tmp_path / "controller/jobs").iterdir()] == ["other"]


def test_a_job_with_a_process_that_nobody_watches_stays(tmp_path: Path, start: Starter) -> None:
    rank_dir = lay_out(tmp_path / "real", "night", "worker-0", host="a", phase="failed")
    # The command line of its start, through a link to the root.
    (tmp_path / "root").symlink_to(tmp_path / "real")
    process = start(**{rank_environment.ENV_RANK_DIR: str(tmp_path / "root/jobs/night/worker-0")})
    found = remove(tmp_path / "real", "night")
    assert found["kept"] == ["night: processes of worker-0 are still running"]
    process.kill()
    process.wait()
    assert rank_dir.exists()
    assert remove(tmp_path / "root", "night")["removed"] == ["night"]


@pytest.mark.parametrize(
    ("phase", "ago", "why"),
    [
        ("absent", 60.0, "worker-0 is starting"),
        ("absent", 300.0, "worker-0 last changed 5 min ago, and jobs are kept for 10 minutes"),
        ("absent", 3600.0, ""),
        ("completed", 60.0, "worker-0 ended 60 s ago, and jobs are kept for 10 minutes"),
        ("completed", 240.0, "worker-0 ended 4 min ago, and jobs are kept for 10 minutes"),
        ("completed", -3600.0, "worker-0 ended 0 s ago, and jobs are kept for 10 minutes"),
        ("completed", 3600.0, ""),
        ("running", 9 * DAY, "worker-0 is running"),
        ("failed", 3600.0, ""),
    ],
)
def test_what_is_alive_or_young_stays(tmp_path: Path, phase: str, ago: float, why: str) -> None:
    lay_out(tmp_path, "night", "worker-0", host="a", phase=phase, ago=ago)
    assert remove(tmp_path, "night")["kept"] == ([f"night: {why}"] if why else [])
    assert (tmp_path / "jobs/night").exists() == bool(why)


def test_what_is_no_job_stays(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "jobs/notes/worker-0").mkdir(parents=True)
    (root / "jobs/a file").write_text("")
    outside = lay_out(tmp_path / "outside", "linked", "worker-0", host="a")
    (root / "jobs/linked").symlink_to(outside.parent)
    found = remove(root, "notes", "a file", "linked", "..", ".", "", "notes/worker-0")
    assert (found["removed"], found["errors"]) == ([], [])
    assert jobs_in(root) == ["a file", "linked", "notes"]
    assert outside.exists()


def test_a_link_that_leads_out_of_the_root_is_not_followed(tmp_path: Path) -> None:
    rank_dir = lay_out(tmp_path / "outside", "old", "worker-0", host="a")
    (tmp_path / "root").mkdir()
    (tmp_path / "root/jobs").symlink_to(tmp_path / "outside/jobs")
    found = remove(tmp_path / "root", "old")
    assert found["removed"] == []
    assert "points outside" in found["errors"][0]
    assert rank_dir.exists()


def test_jobs_that_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_out(tmp_path, "old", "worker-0", host="a")
    listed, folder = os.listdir, str(tmp_path / "jobs")

    def refuse(path: Any = ".") -> list[str]:
        if path == folder and ".removed" in "".join(listed(path)):
            raise PermissionError(13, "Permission denied", path)
        return listed(path)

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(PermissionError):
        remove(tmp_path, "old")


def test_a_removal_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_out(tmp_path, "old", "worker-0", host="a")

    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied", f"{path}/worker-0/code")

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", refuse)
        found = remove(tmp_path, "old")
    assert found["removed"] == []
    assert found["errors"][0].endswith("/worker-0/code cannot be removed: Permission denied")
    assert jobs.list_jobs(str(tmp_path)) == []
    assert [name.startswith(".removed-old-") for name in jobs_in(tmp_path)] == [True]
    assert remove(tmp_path, dry=True) == NOTHING
    assert len(jobs_in(tmp_path)) == 1
    assert remove(tmp_path) == NOTHING
    assert jobs_in(tmp_path) == [], "it is tried again the next time"


def test_the_leases_are_listed_also_after_a_waiting_job_was_stopped(tmp_path: Path) -> None:
    folder = str(tmp_path / "leases")
    for job, port in (("stopped", 1001), ("running", 1002)):
        leases.take(folder, {f"port/{port}": f"port {port}"}, lease_ranks.holder(job))
    assert leases.stop_job(folder, "stopped", "was stopped by anna") == 1
    (found,) = jobs.list_here({"root": str(tmp_path), "lease_dir": folder})["leases"]
    assert found.startswith("reserved for worker-0 of job running (user ")
