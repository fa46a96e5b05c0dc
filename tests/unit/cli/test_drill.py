"""The drill: what its rows say, when it refuses, and which rank it chooses."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.cli.conftest import Answers
from train.cli import drill
from train.cli.drill import Row
from train.cli.main import main
from train.cli.playbooks import PlaybookOutcome
from train.gang import login_failures
from train.gang.errors import UserError
from train.host import faults


def test_a_row_is_well_where_nothing_went_wrong_and_nothing_is_left() -> None:
    good = Row("kill", "worker-1 on b", detected=1.04, named=True, left=0, resumed=40)
    assert good.cells == ["kill", "worker-1 on b", "1.0 s", "yes", "nothing", "step 40", "ok"]
    assert good.well
    assert not Row("kill", "worker-1 on b", left=2, named=True).well
    assert not Row("kill", "worker-1 on b", left=0, named=False, error="worker-0: exit").well
    skipped = Row("port", "worker-1 on b", error="it needs root", skipped=True)
    assert skipped.cells[2] == "skipped"
    assert skipped.well


def job(**about: Any) -> dict[str, Any]:
    return {"job": "night", "hosts": ["a", "b"], "alive": 0, **about}


@pytest.mark.parametrize(
    ("jobs", "leases", "message"),
    [
        ([job(), job(alive=1)], [], "alongside other jobs: wait until night on a, b has ended"),
        ([], ["port 12345 in use by job x of user anna"], "other jobs: a is port 12345 in use by"),
        ([], "many", "the drill was not started: the report of a about leases "),
        ([], None, "the drill was not started: the report of a about leases "),
    ],
)
def test_a_drill_runs_beside_no_job(jobs: list[Any], leases: Any, message: str) -> None:
    results: dict[str, Any] = {
        "job_list": {"a": {"jobs": jobs}},
        "gang_jobs": {"a": {"hosts": {"a": {"leases": leases}, "b": {"listed_by": "a"}}}},
    }
    with pytest.raises(UserError, match=message):
        drill._require_idle_hosts(PlaybookOutcome(code=0, results=results))
    idle: dict[str, Any] = {
        "job_list": {"a": {"jobs": [job()]}},
        "gang_jobs": {"a": {"hosts": {"a": {"leases": []}}}},
    }
    drill._require_idle_hosts(PlaybookOutcome(code=0, results=idle))
    with pytest.raises(UserError, match="no inventory"):
        drill._require_idle_hosts(PlaybookOutcome(code=1, failures={"no inventory": []}))


def test_the_victim_is_the_last_rank_that_trains(tmp_path: Path) -> None:
    ranks = [
        {"task": task, "host": host, "non_training": task.startswith(("ps", "evaluator"))}
        for task, host in (("chief-0", "a"), ("worker-0", "b"), ("ps-0", "c"), ("evaluator-0", "d"))
    ]
    hosts = {host: {"root": f"/train/{host}"} for host in "abcd"}
    (tmp_path / "manifest.json").write_text(json.dumps({"ranks": ranks, "hosts": hosts}))
    of: Any = SimpleNamespace(run_dir=tmp_path, variables={"train_job_id": "drill-1"})
    victim, variables = drill._choose_victim(of)
    assert victim == "worker-0 on b"
    assert variables == {
        "train_job_id": "drill-1",
        "train_job_root": "/train/b",
        "train_job_fault_host": "b",
        "train_job_fault_seconds": drill.SECONDS,
    }


def test_each_fault_has_its_causes() -> None:
    assert set(drill.EXPECTED) == set(faults.FAULTS)
    assert drill.EXPECTED[faults.SSH] == set(), "training does not need it"


def test_nothing_is_started_while_a_host_is_unreachable(
    answers: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = answers({}, code=4, unreachable={"node-1": login_failures.failure("refused")})
    assert main(["drill"]) == 4
    assert "the drill needs all hosts of the inventory" in capsys.readouterr().err
    assert [name for name, *_ in calls] == ["list.yml"]
