"""Reports of hosts: valid ones pass, and impossible ones are refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.gang.hostile import (
    ENVIRONMENT,
    FACTS,
    LISTED,
    RANK,
    SEEN,
    STATE,
    STOP_REPORT,
    UPDATE,
)
from train.gang import reports


def test_what_is_right_passes() -> None:
    assert reports.rank(RANK) == RANK
    assert reports.facts(FACTS) == FACTS
    assert reports.listing([LISTED]) == ([LISTED], [])
    # A malformed job does not hide the others.
    assert reports.listing([{**LISTED, "job": "a", "size": "x"}, LISTED]) == (
        [LISTED],
        ["job 'a' size is not an integer from 0 to 9007199254740992"],
    )
    (seen, more) = reports.all_seen({**SEEN, "more": [SEEN]})
    assert seen["state"] == more["state"] == STATE
    (report,) = reports.stop_reports({"stop_report": STOP_REPORT})
    assert report["ended"] == 1


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"port": 70_000}, "port is not an integer from 1 to 65535"),
        ({"python": "train"}, "python is not an absolute path"),
        ({"gpus": [{"index": 0, "uuid": "GPU-1"}]}, "gpus has no instances"),
        ({"gpus_busy": {"GPU-1": {"why": "x"}}}, "gpus_busy has no remedy"),
        (
            {"environment": {**ENVIRONMENT, "package_environments": ["../x"]}},
            "is not a valid environment",
        ),
        ({"environment": {**ENVIRONMENT, "python_series": "3"}}, "is not a Python version"),
        ({"environment": {**ENVIRONMENT, "root": "venv"}}, "root is not an absolute path"),
        ({"versions": {"ansible": "1.0"}}, "versions is not one of jax, jaxlib, keras, torch"),
        ({"missing_modules": ["x"] * 2000}, "missing_modules is not a list of at most 1000"),
    ],
)
def test_facts_that_cannot_be(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(reports.ReportError, match=why):
        reports.facts({**FACTS, **changed})


@pytest.mark.parametrize("task", ["../../x", "worker-0/../../x", "worker-x", "", "worker--1"])
def test_a_task_that_is_none_never_becomes_a_path(task: str) -> None:
    with pytest.raises(reports.ReportError, match="task is not a task such as worker-0"):
        reports.rank({**RANK, "task": task})


@pytest.mark.parametrize(
    ("reported", "cause"), [("stopped", "stopped"), ("hung", "hung"), ("of 2030", "exit")]
)
def test_a_cause_that_is_not_known_is_a_scripts_own_end(reported: str, cause: str) -> None:
    update = reports.update({**UPDATE, "state": {"phase": "stopped", "cause": reported}})
    assert update["state"]["cause"] == cause


@pytest.mark.parametrize(
    ("noticed", "why"),
    [
        ({"source": "gcp"}, "preemption has no at"),
        ({"source": 5, "at": 1.0}, "preemption source is not text"),
        ({"source": "gcp", "at": "now"}, "preemption at is not a number"),
        ({"source": "gcp", "at": 1.0, "seconds": -1}, "preemption seconds is not a number"),
        ("TRUE", "preemption is not an object"),
    ],
)
def test_a_notice_of_preemption_is_checked(noticed: Any, why: str) -> None:
    check = reports.fields({"state": reports.seen})
    state: Any = {"phase": "running", "preemption": {"source": "x\x1b", "at": 1, "more": "y"}}
    seen = {"state": state, "last_line": "", "progress": {}}
    assert check({"state": seen})["state"]["state"]["preemption"] == {"source": "x", "at": 1.0}
    state["preemption"] = noticed
    with pytest.raises(reports.ReportError, match=why):
        check({"state": seen})
