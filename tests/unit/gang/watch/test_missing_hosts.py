"""When a gang that lacks hosts ends to continue with more of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.bare_ranks import wait_until
from tests.unit.gang.hostile import FACTS
from tests.unit.gang.watch.made_up_gang import STEPPING, Hosts, Make, done
from tests.unit.gang.watch.made_up_views import view
from train.gang import connections
from train.gang.errors import UnreachableError, UserError
from train.gang.watch import missing_hosts
from train.gang.watch.missing_hosts import Growth, Rules
from train.gang.watch.outcome import GangOutcome, stopped_for
from train.gang.watch.views import View


def passes(host: str) -> None:
    """Return, like the check of a host that can join."""


def fails(host: str) -> None:
    raise UnreachableError("gone")


@contextmanager
def growth_with(
    check: Callable[[str], None] = passes,
    has_checkpoint: Callable[[], bool] = lambda: True,
    mode: str = missing_hosts.AUTO,
    interval: float = 0.0,
) -> Iterator[Growth]:
    made = Growth(["node-2"], Rules(mode, 0.01, interval), check, has_checkpoint)
    try:
        yield made
    finally:
        made.close()


def at_step(step: int, steps: int = 1000) -> list[View]:
    made = view("worker-0")
    made.record = {"step": step, "steps": steps}
    return [made]


def test_a_host_must_pass_its_check_twice_in_a_row() -> None:
    results = iter([True, False, True, True])
    checked: list[float] = []

    def check(host: str) -> None:
        checked.append(time.monotonic())
        if not next(results, True):
            raise OSError("its disk is full")

    with growth_with(check) as growth:
        while not growth.returned(time.monotonic(), []):
            time.sleep(0.001)
        assert len(checked) >= 4


def test_a_host_that_stays_away_changes_nothing() -> None:
    with growth_with(fails) as growth:
        time.sleep(0.2)
        assert growth.returned(time.monotonic(), at_step(5)) == []


@pytest.mark.parametrize(
    ("mode", "grows"), [(missing_hosts.AUTO, False), (missing_hosts.ALWAYS, True)]
)
def test_a_job_without_a_checkpoint_grows_on_request_only(mode: str, grows: bool) -> None:
    asked: list[int] = []

    def has_checkpoint() -> bool:
        asked.append(1)
        return False

    with growth_with(has_checkpoint=has_checkpoint, mode=mode) as growth:
        wait_until(lambda: grows or len(asked) > 1, "it asks for a checkpoint")
        time.sleep(0.1)
        assert bool(growth.returned(time.monotonic(), at_step(5))) == grows
        assert bool(asked) != grows


def test_neither_soon_after_the_start_nor_shortly_before_the_end() -> None:
    with growth_with(interval=100.0) as growth:
        assert growth.returned(1000.0, at_step(1)) == []
        time.sleep(0.2)
        assert growth.returned(1099.0, at_step(100)) == []
        assert growth.returned(1101.0, at_step(101)) == ["node-2"]  # 900 s are left
        assert growth.returned(1850.0, at_step(850)) == ["node-2"]
        assert growth.returned(1950.0, at_step(950)) == []  # 50 s are left
        assert growth.returned(1950.0, at_step(950, steps=0)) == ["node-2"]  # unknown


def test_the_gang_ends_to_grow(gang: Make) -> None:
    with growth_with() as growth:
        outcome = gang(Hosts(worker_0=[STEPPING])).follow(growth)
    assert outcome == GangOutcome(
        "stopped", None, "the job grows: node-2 can join again", cause="grown"
    )


def test_a_gang_that_has_completed_does_not_grow(gang: Make) -> None:
    with growth_with() as growth:
        wait_until(lambda: growth.returned(time.monotonic(), []), "the host is back")
        assert gang(Hosts(worker_0=[done()])).follow(growth).state == "completed"


def test_the_reason_of_stopped_ranks_shows_another_watch_that_the_job_grows() -> None:
    reason = "was stopped because the job grows: node-2 can join again"
    assert stopped_for(reason) == GangOutcome(
        "stopped", None, "the job grows: node-2 can join again", cause="grown"
    )
    assert stopped_for("was stopped by anna").cause == ""


GROUPS = {"worker": ["node-1", "node-2"], "spare": ["node-3"], "evaluator": ["node-4"]}


def a_play(values: dict[str, Any], calls: list[tuple[str, str, Any]]) -> Any:
    def call(host: str, purpose: str, python: str, request: Any) -> dict[str, Any]:
        calls.append((host, python, request))
        return {"found": True, "hosts": {host: values.get("result", {"host": FACTS})}}

    def given(host: str, *names: str) -> dict[str, Any]:
        if host in values.get("broken", ()):
            raise UserError(f"train_job_root of {host}: unknown filter")
        return {name: values.get(name, "") for name in names}

    hosts = [host for members in GROUPS.values() for host in members]
    return SimpleNamespace(
        hosts=hosts, values=given, call=call, neighbors=lambda: {host: [host] for host in hosts}
    )


def options(mode: str) -> dict[str, Any]:
    rules = {"grow": mode, "grow_check": 0.01, "grow_interval": 0.0}
    return {"groups": GROUPS, "without": {}, **rules}


def of_ranks(*ranks: tuple[str, str]) -> Any:
    planned = [{"task": task, "host": host} for task, host in ranks]
    versions = {"tensorflow": ["2.21.0"], "python": "3.11.7"}
    attempts = [{"ranks": {"worker-0": "node-1"}, "left_out": {"node-2": "unreachable"}}]
    about = {"ranks": planned, "versions": versions, "attempts": attempts}
    return {"job": "night", "attempt": 2, **about}


def test_missing_hosts_are_checked_like_before_a_start() -> None:
    calls: list[tuple[str, str, Any]] = []
    options_of_host = {"port": 12345, "root": "/data"}
    play = a_play({"__train_job_check": options_of_host}, calls)
    training = [view("worker-0")]
    growth = missing_hosts.growth_of(
        play, options("auto"), of_ranks(("worker-0", "node-1")), training
    )
    assert growth is not None
    wait_until(lambda: len(growth.returned(time.monotonic(), training)) == 2, "both are back")
    growth.close()
    checks = {host: request for host, _, request in calls if request["call"] == "host_checks"}
    assert set(checks) == {"node-2", "node-3"}
    about = checks["node-2"]
    assert about["hosts"] == {"node-2": options_of_host}
    assert (about["job"], about["attempt"]) == ("night", 3)
    assert ("has_checkpoint", "/jobs/x/worker-0") in {
        (request["call"], request.get("rank_dir")) for _, _, request in calls
    }


@pytest.mark.parametrize(
    ("mode", "ranks"),
    [
        ("never", [("worker-0", "node-1")]),
        ("auto", [("worker-0", "node-1"), ("worker-1", "node-3")]),
    ],
)
def test_nothing_is_checked_if_the_gang_is_complete_or_should_not_grow(
    mode: str, ranks: list[tuple[str, str]]
) -> None:
    play = a_play({}, [])
    assert (
        missing_hosts.growth_of(play, options(mode), of_ranks(*ranks), [view("worker-0")]) is None
    )


def test_a_job_does_not_grow_to_hosts_with_which_it_was_not_started() -> None:
    manifest = of_ranks(("worker-0", "node-1"))
    manifest["attempts"][0]["left_out"] = {}
    growth = missing_hosts.growth_of(
        a_play({}, []), options("always"), manifest, [view("worker-0")]
    )
    assert growth is None


def test_hosts_with_which_the_attempt_could_not_start_are_not_checked() -> None:
    calls: list[tuple[str, str, Any]] = []
    asked = {**options("auto"), "without": {"node-2": "other versions"}}
    training = [view("worker-0")]
    ranks = of_ranks(("worker-0", "node-1"))
    growth = missing_hosts.growth_of(a_play({}, calls), asked, ranks, training)
    assert growth is not None
    wait_until(lambda: bool(growth.returned(time.monotonic(), training)), "node-3 is back")
    growth.close()
    assert growth.returned(time.monotonic(), training) == ["node-3"]
    asked["without"]["node-3"] = "other versions"
    assert missing_hosts.growth_of(a_play({}, calls), asked, ranks, training) is None


@pytest.mark.parametrize(
    "result",
    [
        {"failed": True, "msg": "port 12345 is in use"},
        {"host": {**FACTS, "tensorflow": "2.20.0"}},
        {"host": {**FACTS, "cores": "many"}},
    ],
)
def test_a_host_that_fails_its_check_does_not_count_as_back(result: dict[str, Any]) -> None:
    calls: list[tuple[str, str, Any]] = []
    play = a_play({"result": result}, calls)
    training = [view("worker-0")]
    ranks = of_ranks(("worker-0", "node-1"))
    growth = missing_hosts.growth_of(play, options("always"), ranks, training)
    assert growth is not None
    wait_until(lambda: len(calls) > 6, "both hosts were checked three times")
    assert growth.returned(time.monotonic(), training) == []
    growth.close()


def test_an_invalid_variable_of_a_missing_host_does_not_end_the_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    monkeypatch.setattr(connections, "say", said.append)
    play = a_play({"broken": ["node-2"]}, [])
    ranks = of_ranks(("worker-0", "node-1"))
    assert missing_hosts.growth_of(play, options("auto"), ranks, [view("worker-0")]) is None
    assert said == ["the job does not grow: train_job_root of node-2: unknown filter"]
