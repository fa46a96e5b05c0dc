"""The list of jobs from the reports of hosts, and the choice of old jobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.job_folders import DAY, lay_out, write_manifest
from tests.unit.gang.hostile import LISTED
from train.gang import listing
from train.gang.errors import UserError
from train.gang.job_records import MergedJob
from train.host import jobs


@pytest.mark.parametrize(
    ("workers", "servers", "state"),
    [
        (["running", "running"], [], "running"),
        (["running", "starting"], [], "starting"),
        (["running", "failed"], [], "mixed"),
        (["completed", "running"], [], "mixed"),
        (["completed", "completed"], [], "completed"),
        (["stopped", "failed"], [], "failed"),
        (["stopped", "completed"], [], "stopped"),
        (["absent", "absent"], [], "failed"),
        (["running"], ["failed"], "running"),
        (["completed"], ["stopped"], "completed"),
        (["completed"], ["running"], "mixed"),
        ([], ["running"], "mixed"),
    ],
)
def test_the_state_of_a_job(workers: list[str], servers: list[str], state: str) -> None:
    ranks: Any = [{"phase": phase, "non_training": False, "idle": DAY} for phase in workers]
    ranks += [{"phase": phase, "non_training": True, "idle": DAY} for phase in servers]
    assert listing.state_of(ranks) == state


def test_a_job_starts_until_all_ranks_were_there_or_it_is_too_late() -> None:
    ranks: Any = [{"phase": "running", "non_training": False, "idle": 0.0}]
    ranks += [{"phase": "absent", "non_training": False, "idle": 5.0}]
    assert listing.state_of(ranks) == "starting"


def test_ages() -> None:
    seconds = [listing.seconds_of(text) for text in ("90s", "5m", "12h", "14d", "2w", "1.5h")]
    assert seconds == [90, 300, 43_200, 14 * DAY, 14 * DAY, 5400]


@pytest.mark.parametrize("text", ["", "14", "d", "14 d", "-1d", "1y", "d14", "1e3s"])
def test_what_is_no_age(text: str) -> None:
    with pytest.raises(ValueError, match="is not a valid age: use a number followed by s, m, h"):
        listing.seconds_of(text)


def merge(**roots: Path) -> list[MergedJob]:
    return listing.merge({host: list_jobs(root) for host, root in roots.items()})


def list_jobs(root: Path) -> Any:
    return jobs.list_jobs(str(root))


def test_hosts_that_share_a_machine_tell_of_each_rank_once(tmp_path: Path) -> None:
    for index in (0, 1):
        lay_out(tmp_path / "one", "night", f"worker-{index}", host=f"node-{index}")
    lay_out(tmp_path / "two", "night", "worker-2", host="node-2", phase="failed")
    one, two = tmp_path / "one", tmp_path / "two"
    (job,) = merge(a=one, b=one, c=two)
    assert [rank["task"] for rank in job["ranks"]] == ["worker-0", "worker-1", "worker-2"]
    assert job["hosts"] == ["node-0", "node-1", "node-2"]
    assert (job["state"], job["alive"], job["total"]) == ("failed", 0, 3)
    assert job["size"] == list_jobs(one)[0]["size"] + list_jobs(two)[0]["size"]
    assert listing.where([job]) == {"a": ["night"], "c": ["night"]}


def test_a_rank_that_another_attempt_made_another_task_is_stale(tmp_path: Path) -> None:
    lay_out(tmp_path / "a", "night", "worker-0", host="node-a")
    write_manifest(tmp_path / "a", "night", [{"worker-0": "node-a", "worker-1": "node-b"}])
    # Node b was worker-1 first, then worker-0 alone.
    lay_out(tmp_path / "b", "night", "worker-1", host="node-b", phase="stopped")
    lay_out(tmp_path / "b", "night", "worker-0", host="node-b", phase="running", attempt=2)
    attempts = [{"worker-0": "node-a", "worker-1": "node-b"}, {"worker-0": "node-b"}]
    write_manifest(tmp_path / "b", "night", attempts)
    (job,) = merge(a=tmp_path / "a", b=tmp_path / "b")
    assert (job["attempt"], job["state"], job["alive"], job["total"]) == (2, "running", 1, 1)
    assert [(rank["task"], rank["host"]) for rank in job["ranks"]] == [("worker-0", "node-b")]
    assert len(job["stale"]) == 2
    assert job["members"] == ["node-a", "node-b"]


def test_of_two_machines_that_see_one_folder_the_one_that_runs_it_knows(tmp_path: Path) -> None:
    lay_out(tmp_path, "night", "worker-0", host="node-a", phase="running")
    here = list_jobs(tmp_path)
    there = json.loads(json.dumps(here))
    there[0]["ranks"][0]["phase"] = "failed"
    for told in ({"a": here, "b": there}, {"b": there, "a": here}):
        (job,) = listing.merge(told)
        assert (job["state"], job["alive"], job["total"]) == ("running", 1, 1)


def old_jobs(root: Path) -> list[MergedJob]:
    """Return five jobs, the newest first: a day, two, three, four and five days old."""
    for days in range(1, 6):
        lay_out(root, f"day-{days}", "worker-0", host="node-a", ago=days * DAY)
    return merge(a=root)


@pytest.mark.parametrize(
    ("limits", "removed"),
    [
        ({"older_than": 2.5 * DAY}, ["day-3", "day-4", "day-5"]),
        ({"keep": 3}, ["day-4", "day-5"]),
        ({"keep": 0}, ["day-1", "day-2", "day-3", "day-4", "day-5"]),
        ({"keep": 9}, []),
        ({"older_than": 3.5 * DAY, "keep": 1}, ["day-4", "day-5"]),
        ({"older_than": 0.5 * DAY, "keep": 4}, ["day-5"]),
    ],
)
def test_old_by_age_and_number(tmp_path: Path, limits: dict[str, Any], removed: list[str]) -> None:
    old, kept = listing.choose_old(old_jobs(tmp_path), [], **limits)
    assert [job["job"] for job in old] == removed
    assert kept == []


def test_limits_that_are_none() -> None:
    with pytest.raises(UserError, match="nothing selected for removal"):
        listing.choose_old([], [])
    with pytest.raises(UserError, match="expected 0 or more"):
        listing.choose_old([], [], keep=-1)


def test_a_job_that_runs_on_one_host_goes_from_none(tmp_path: Path) -> None:
    lay_out(tmp_path / "a", "night", "worker-1", host="node-a", phase="running", ago=9 * DAY)
    lay_out(tmp_path / "b", "night", "worker-0", host="node-b", ago=9 * DAY)
    # The same if the rank belongs to an earlier attempt.
    lay_out(tmp_path / "a", "later", "worker-1", host="node-a", phase="running", ago=9 * DAY)
    lay_out(tmp_path / "b", "later", "worker-0", host="node-b", ago=8 * DAY, attempt=2)
    write_manifest(tmp_path / "b", "later", [{"worker-1": "node-a"}, {"worker-0": "node-b"}])
    old, kept = listing.choose_old(merge(a=tmp_path / "a", b=tmp_path / "b"), [], keep=0)
    assert old == []
    assert sorted(kept) == ["later: worker-1 is running", "night: worker-1 is running"]


def test_a_host_that_tells_nothing_keeps_the_jobs_it_took_part_in(tmp_path: Path) -> None:
    for name, members in {"with": ["node-a", "node-b"], "without": ["node-a"]}.items():
        lay_out(tmp_path, name, "worker-0", host="node-a", ago=9 * DAY)
        tasks = {f"worker-{index}": host for index, host in enumerate(members)}
        write_manifest(tmp_path, name, [tasks, {"worker-0": "node-a"}])
    lay_out(tmp_path, "unknown", "worker-0", host="node-a", ago=9 * DAY)
    old, kept = listing.choose_old(merge(a=tmp_path), ["node-b"], keep=0)
    assert [job["job"] for job in old] == ["without"]
    why = "node-b did not report, so a rank of the job may still be running"
    assert sorted(kept) == [f"unknown: {why}", f"with: {why}"]


def test_a_host_that_reports_nothing_may_be_one_of_another_name(tmp_path: Path) -> None:
    for name, members in {"with": ["10.0.0.1", "10.0.0.2"], "without": ["10.0.0.1"]}.items():
        lay_out(tmp_path, name, "worker-0", host="10.0.0.1", ago=9 * DAY)
        tasks = {f"worker-{index}": host for index, host in enumerate(members)}
        write_manifest(tmp_path, name, [tasks])
    names = ["node-a", "node-b"]
    old, kept = listing.choose_old(merge(**{"node-a": tmp_path}), ["node-b"], names=names, keep=0)
    assert [job["job"] for job in old] == ["without"]
    assert kept == ["with: node-b did not report, so a rank of the job may still be running"]


def test_a_job_without_any_rank_of_its_own_hides_no_other() -> None:
    odd: Any = {**LISTED, "ranks": [{**LISTED["ranks"][0], "task": "worker-1"}]}
    (job,) = listing.merge({"node-0": [odd]})
    assert [rank["task"] for rank in job["ranks"]] == ["worker-1"]
