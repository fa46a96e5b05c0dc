"""All ranks of a gang start or none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.gang.made_up_play import a_play
from train.gang import connections, login_failures, starting
from train.gang.errors import UserError

AWAY = {"unreachable": True, "msg": login_failures.failure("no-route").text}
STAGED = {"rank": {"attempt": 2}}


def staged(**results: Any) -> Any:
    args = {"hosts": [*results], "registered": "rank", "attempt": 2}
    return starting.require_staged(a_play(results), args)


def test_ranks_that_are_all_staged_start() -> None:
    assert staged(a=STAGED, b=STAGED) == {}


def test_a_rank_of_an_earlier_attempt_is_not_staged() -> None:
    refused = staged(a=STAGED, b={"rank": {"attempt": 1}}, c={})
    assert refused == {"failed": True, "msg": "b and c: did not receive the code"}


def test_hosts_with_the_same_reason_are_named_together() -> None:
    full = {"failed": True, "msg": "no space left\x1b[2J"}
    refused = staged(a=AWAY, b=full, c=full, d=STAGED)
    away, lacking = refused["msg"].rsplit("\n", 1)
    assert away.startswith("a is unreachable: ")
    assert lacking.startswith("b and c: no space left")
    assert "\x1b" not in lacking
    assert "nothing_answered" not in refused


def test_lost_hosts_alone_have_reported_why_themselves() -> None:
    assert staged(a=AWAY, b=STAGED)["nothing_answered"] is True


def test_what_ends_the_job_is_passed_on() -> None:
    refused = staged(a={"msg": "was stopped by anna", "stopped": "was stopped by anna"})
    assert refused["stopped"] == "was stopped by anna"


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a job whose first attempt is planned."""
    monkeypatch.setattr(connections, "say", lambda line: None)
    folder = tmp_path / "runs/night"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    (folder / "code.tar.gz").write_text("code")
    return folder


def lease(run_dir: Path, call: Callable[..., Any], wait: float = 0.0) -> Any:
    host = {"lease_dir": "/tmp/leases", "gpus": [], "host_python": "/usr/bin/python3"}
    ranks = [{"host": "a", "task": "worker-0", "port": 12345, "gpus": None}]
    about = {"created_at": 1.0, "job": "night", "attempt": 1}
    play = a_play({"a": {}})
    play.call = call
    args = {"manifest": {**about, "hosts": {"a": host}, "ranks": ranks}, "run_dir": str(run_dir)}
    return starting.lease(play, {**args, "wait": wait, "unreachable_timeout": 0.0})


def test_what_a_job_waits_for_is_an_event(run_dir: Path) -> None:
    answers: list[Any] = [{"blockers": ["port 12345 is in use"]}, {}, {}]
    asked: list[str] = []

    def call(host: str, purpose: str, python: str, request: Any) -> Any:
        asked.append(request["do"])
        return answers.pop(0)

    assert lease(run_dir, call, wait=60.0) == {}
    assert asked == ["queue", "wait", "take"]
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    shown = [(event["task"], event["phase"], event["reason"]) for event in events]
    assert shown == [
        ("worker-0", "waiting", "port 12345 is in use"),
        ("worker-0", "ready", ""),
    ]


def test_a_job_that_is_stopped_while_it_waits_leaves_nothing(run_dir: Path) -> None:
    stopped = lease(run_dir, lambda *_: {"stopped": "was stopped by anna"})
    message = "nothing was started: the job was stopped by anna"
    assert stopped == {"failed": True, "msg": message, "stopped": "was stopped by anna"}
    assert not (run_dir / "manifest.json").exists()


def test_a_job_that_gives_up_leaves_nothing(run_dir: Path) -> None:
    limit = r"^nothing was started: a: in use; gave up after 0 s \(train_job_queue_timeout\)$"
    with pytest.raises(UserError, match=limit):
        lease(run_dir, lambda *_: {"blockers": ["in use"]})
    assert not (run_dir / "manifest.json").exists()
