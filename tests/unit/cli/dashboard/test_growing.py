"""The files of a job, read while they grow."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.run_folders import BEGAN, write_attempt, write_manifest
from train.cli import report
from train.cli.dashboard import growing
from train.cli.dashboard.growing import GrowingJob, Records

FAILED = {"state": "failed", "message": "lost", "restart": True}


def records_of(path: Path, most: int) -> Records[dict[str, object]]:
    def parse(text: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in text.splitlines()]

    return Records(path, parse, lambda record: record["phase"], most)


def append(path: Path, records: list[dict[str, object]], end: str = "\n") -> None:
    with path.open("a") as stream:
        stream.write("\n".join(map(json.dumps, records)) + end)


def test_only_new_and_complete_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.jsonl"
    reader = records_of(path, 100)
    assert not reader.read()
    append(path, [{"phase": "a", "n": 1}])
    append(path, [{"phase": "a", "n": 2}], end="")
    assert reader.read()
    assert [one["n"] for one in reader.records] == [1]
    assert not reader.read()
    append(path, [], end="\n")
    assert reader.read()
    assert [one["n"] for one in reader.records] == [1, 2]


def test_a_file_that_is_full_and_replaced_continues(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.jsonl"
    reader = records_of(path, 100)
    append(path, [{"phase": "a", "n": 1}])
    reader.read()
    path.rename(tmp_path / "worker-0.jsonl.1")
    append(path, [{"phase": "a", "n": 2}])
    assert reader.read()
    assert [one["n"] for one in reader.records] == [1, 2]


def test_many_records_are_thinned_but_not_the_ends_of_phases(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.jsonl"
    reader = records_of(path, 50)
    for begin in range(0, 1000, 20):
        phase = "saving" if begin == 500 else "training"
        append(path, [{"phase": phase, "n": begin + n} for n in range(20)])
        reader.read()
    numbers = [one["n"] for one in reader.records]
    assert 25 < len(numbers) <= 100
    assert numbers == sorted(set(numbers))  # type: ignore[type-var]
    assert {0, 499, 500, 519, 520, 999} <= set(numbers)


def test_a_link_is_not_read(tmp_path: Path) -> None:
    append(tmp_path / "elsewhere", [{"phase": "a", "n": 1}])
    (tmp_path / "worker-0.jsonl").symlink_to(tmp_path / "elsewhere")
    assert not records_of(tmp_path / "worker-0.jsonl", 10).read()


def test_a_growing_job_shows_what_its_report_shows(tmp_path: Path) -> None:
    folder, tasks = tmp_path / "night", ["worker-0", "worker-1"]
    write_manifest(folder, tasks)
    job = GrowingJob(folder)
    assert job.read()
    assert report.charts_of(job.attempts) == []
    write_attempt(folder, tasks, range(1, 20), None)
    assert job.read()
    assert not job.read()
    _, attempts = report.read(folder)
    assert report.charts_of(job.attempts) == report.charts_of(attempts)
    # The next attempt.
    for name in ("progress", "logs", "load"):
        (folder / "attempts/1").mkdir(parents=True, exist_ok=True)
        shutil.move(folder / name, folder / "attempts/1" / name)
    (folder / "attempts/1/result.json").write_text(json.dumps(FAILED | {"ranks": []}))
    write_manifest(folder, tasks, attempt=2)
    write_attempt(folder, tasks, range(15, 30), None, BEGAN + 60)
    assert job.read()
    _, attempts = report.read(folder)
    assert report.charts_of(job.attempts) == report.charts_of(attempts)
    assert [attempt["steps"] for attempt in job.attempts] == [[1, 19], [15, 29]]


def test_a_job_without_a_manifest_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        GrowingJob(tmp_path / "nothing").read()


def test_the_log_of_the_rank_that_failed_first_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "night"
    write_manifest(folder, ["worker-0", "worker-1"])
    failed = {"state": "failed", "message": "worker-1 failed", "root_cause": "worker-1"}
    write_attempt(folder, ["worker-0", "worker-1"], range(1, 3), failed)
    job = growing.GrowingJob(folder)
    job.read()
    assert job.attempts[-1]["logs"] == {"worker-1": "20%\nlast line of worker-1"}
