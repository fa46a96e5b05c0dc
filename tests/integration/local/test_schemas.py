"""The files of real jobs are what the published schemas say."""

from __future__ import annotations

from collections.abc import Callable

import jsonschema
import pytest

from tests.support.job_folders import check, check_files
from tests.support.jobs import plain
from tests.support.lab import Lab

Labs = Callable[..., Lab]


def test_a_crash_at_the_same_step_is_not_tried_a_third_time(local_lab: Labs) -> None:
    lab = local_lab()
    run = plain(
        lab,
        "crash",
        "--steps 300 --abort worker-1",
        train_job_max_restarts=3,
        train_job_restart_delay=0.1,
    ).end()
    assert run.code == 1, run.error
    assert [event["attempt"] for event in run.events if event["event"] == "restart"] == [2]
    assert "was killed by SIGABRT (signal 6)" in run.result["message"]
    assert "it has failed at step 5 in the same way twice" in run.result["message"]
    assert lab.saved("crash")["attempts"] == 2
    check_files(lab, "crash")


def test_what_no_record_has_is_refused() -> None:
    with pytest.raises(jsonschema.ValidationError, match="culprit"):
        check("result", {"version": 1, "culprit": "worker-1"})
    with pytest.raises(jsonschema.ValidationError, match="is not of type 'integer'"):
        check("result", {"attempts": "2"})
