"""The jobs of all hosts, of which some report nothing or nonsense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.job_folders import DAY, lay_out, write_manifest
from tests.unit.gang.hostile import LISTED
from tests.unit.gang.made_up_play import a_play
from train.gang import job_lists, login_failures
from train.gang.errors import NothingAnsweredError, UserError
from train.host import jobs

ARGS = {"groups": {"worker": ["node-0"], "ps": ["node-1"]}, "registered": "list", "job": "night"}


def test_a_malformed_list_hides_no_other() -> None:
    play = a_play({"node-0": {"jobs": [LISTED]}, "node-1": {"jobs": "all of them"}})
    found: Any = job_lists.jobs(play, ARGS)
    assert [job["job"] for job in found["jobs"]] == ["night"]
    assert len(found["lines"]) == 1
    (warning,) = found["warnings"]
    assert warning.startswith("ignoring the malformed job list of node-1: ")


def test_of_many_malformed_jobs_three_are_named() -> None:
    wrong = [{**LISTED, "job": f"job-{n}", "size": -1} for n in range(9)]
    play = a_play({"node-0": {"jobs": [LISTED, *wrong]}})
    found: Any = job_lists.jobs(play, ARGS)
    assert [job["job"] for job in found["jobs"]] == ["night"]
    assert len(found["warnings"]) == 3
    assert all(
        line.startswith("ignoring an entry in the job list of node-0: job 'job-")
        for line in found["warnings"]
    )


def test_old_jobs_are_removed_from_the_hosts_that_have_them(tmp_path: Path) -> None:
    for job, ago in {"old": 3 * DAY, "new": DAY / 2}.items():
        lay_out(tmp_path, job, "worker-0", host="node-0", ago=ago)
        write_manifest(tmp_path, job, [{"worker-0": "node-0"}])
    listed = {"jobs": jobs.list_jobs(str(tmp_path))}
    play = a_play({"node-0": listed, "node-1": {"unreachable": True}})
    for limits in ({"older_than": "2d"}, {"older_than": "", "keep": "1"}):
        found: Any = job_lists.choose_old(play, {**ARGS, **limits})
        assert found == {"warnings": [], "remove": {"node-0": ["old"]}, "kept": []}
    with pytest.raises(ValueError, match="is not a valid age"):
        job_lists.choose_old(play, {**ARGS, "older_than": "2 days"})


def test_ranks_of_a_later_attempt_alone_are_new() -> None:
    play = a_play({"node-0": {"jobs": [LISTED]}})
    first: Any = job_lists.ranks(play, ARGS)
    assert [rank["task"] for rank in first["ranks"]] == ["worker-0"]
    assert job_lists.ranks(play, {**ARGS, "after": 1})["ranks"] == []


def test_a_job_that_no_host_has_is_refused_with_the_command_that_lists_jobs() -> None:
    with pytest.raises(UserError, match=r"no host of this inventory has a rank of job night: `.*l"):
        job_lists.ranks(a_play({"node-0": {"jobs": []}, "node-1": {"jobs": []}}), ARGS)


def test_ranks_of_a_job_that_no_host_reports() -> None:
    lost = {"unreachable": True, "msg": login_failures.failure("refused").text}
    play = a_play({"node-0": {"jobs": []}, "node-1": lost})
    with pytest.raises(UserError, match=r"a rank of job night \(node-1 did not answer\): `"):
        job_lists.ranks(play, ARGS)
    play = a_play({"node-0": lost, "node-1": lost})
    with pytest.raises(NothingAnsweredError, match="node-0 and node-1 are unreachable: "):
        job_lists.ranks(play, ARGS)


def test_hosts_with_the_same_folders_count_as_listed() -> None:
    play = a_play({"node-0": {"jobs": []}, "node-1": {"listed_by": "node-0"}})
    found: Any = job_lists.choose_old(play, {**ARGS, "keep": "1"})
    assert found == {"warnings": [], "remove": {"node-0": [], "node-1": []}, "kept": []}
