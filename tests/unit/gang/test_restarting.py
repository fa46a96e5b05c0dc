"""Tests the wait for the attempt after a failed one, and the end of an attempt that is refused."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from train.gang import connections, login_failures, restarting
from train.gang.errors import UnreachableError
from train.gang.watch import causes
from train.host import json_files

HOSTS = ["node-1", "node-2"]
POLICY = {"max_restarts": 3, "restart_delay": 0, "host_wait": 60, "min_workers": 0}
AWAY = login_failures.failure("no-route")
LOST = {"unreachable": True, "msg": AWAY.text}
RANK = {"task": "worker-1", "exit_code": -9, "reason": "was killed", "host": "node-1"}


def failed(**changed: Any) -> Any:
    """Return the result of an attempt that another one follows."""
    how: Any = {"state": "failed", "message": "fell", "root_cause": "worker-1", "cause": "signal"}
    how |= {"step": None, "metrics": {}, "ranks": [RANK], "attempts": 2, "doubts": []}
    how |= {"restart": True, "restart_reason": "", "restarts_left": 2, "restart_delay": 0.0}
    return {**how, **changed}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Return the folder of a job whose second attempt has failed."""
    folder = tmp_path / "runs/night"
    (folder / "attempts/1").mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(failed()))
    (folder / "attempts/1/result.json").write_text(json.dumps(failed(attempts=1, step=7)))
    write_manifest(folder)
    return folder


def write_manifest(folder: Path, attempts: Any = (), **policy: Any) -> None:
    facts = {"root": "/data/train", "host_python": "/usr/bin/python3"}
    manifest = {"job": "night", "attempt": 2, "policy": {**POLICY, **policy}}
    manifest["attempts"] = attempts
    manifest["ranks"] = [{"host": host} for host in HOSTS]
    manifest["hosts"] = dict.fromkeys(HOSTS, facts)
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarting, "_POLL_S", 0.02)
    monkeypatch.setattr(restarting, "_PAUSE_S", 0.01)
    monkeypatch.setattr(connections, "say", lambda line: None)


def a_play(
    registered: Mapping[str, Any] | None = None,
    answer: Callable[[str], Mapping[str, Any]] = lambda host: {"stopped": ""},
) -> Any:
    """Return a play whose tasks have ``registered`` by name, the same for all hosts or by host."""

    def seen(host: str, name: str) -> Any:
        value = (registered or {}).get(name) or {}
        return value[host] if host in value else {} if value.keys() & {*HOSTS} else value

    return SimpleNamespace(
        hosts=HOSTS,
        host=HOSTS[0],
        registered=seen,
        of_gang=lambda name: (registered or {}).get(name) or {},
        checks=lambda name: (registered or {}).get(name) or {},
        call=lambda host, purpose, python, request: answer(host),
        run=lambda host, purpose, words, folder: answer(host),
        notification=lambda hosts: ([], "", ""),
    )


def wait(run_dir: Path, play: Any, before: Any = None, **changed: Any) -> Any:
    given = {"run_dir": str(run_dir), "groups": {"worker": HOSTS}, "lost_hosts": []}
    given |= {"before": before or {"then": "restart.yml"}, "metrics_dir": ""}
    return restarting.await_restart(play, {**given, **changed})


def refuse(run_dir: Path, play: Any, **tried: Any) -> Any:
    last = {"attempt": 3, "failed_at": 10.0, "refusals": 0, "is_patient": True, "min_workers": 0}
    given = {"run_dir": str(run_dir), "tried": {**last, **tried}, "metrics_dir": ""}
    given |= {"gang_steps": ["placement", "leases", "ready"], "host_steps": ["rank"]}
    given["checks"] = "checks"
    return restarting.judge_refusal(play, given)


def saved(run_dir: Path) -> Any:
    return json_files.read_json(str(run_dir / "result.json"))


def test_the_next_attempt_is_due_after_its_delay(run_dir: Path) -> None:
    following = wait(run_dir, a_play())
    assert (following["then"], following["attempt"], following["min_workers"]) == (
        "watch.yml",
        3,
        0,
    )


@pytest.mark.parametrize(
    ("controller", "lost", "waits"),
    [("node-1", [], True), ("node-1", ["node-1"], False), ("", [], False)],
)
def test_the_host_that_watches_is_given_time_to_start_the_attempt(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, controller: str, lost: list[str], waits: bool
) -> None:
    monkeypatch.setattr(restarting, "_DEFERENCE_S", 0.3)
    asked: list[str] = []

    def answer(host: str) -> Mapping[str, Any]:
        asked.append(host)
        return {"stopped": ""}

    following = wait(run_dir, a_play(answer=answer), controller=controller, lost_hosts=lost)
    assert following["attempt"] == 3
    assert bool(asked) == waits, "hosts are asked while the attempt is not due"


def test_a_job_that_grows_needs_no_more_hosts_than_before(run_dir: Path) -> None:
    write_manifest(run_dir, min_workers=1)
    result = failed(state="stopped", root_cause=None, cause="grown", attempts=2)
    (run_dir / "result.json").write_text(json.dumps(result))
    following = wait(run_dir, a_play())
    assert (following["then"], following["grows"], following["min_workers"]) == (
        "watch.yml",
        True,
        1,
    )
    # If a host of the job is lost meanwhile, the job waits as after a failure, and still grows.
    started = [{"staged": True, "ranks": {"worker-0": "node-1"}}]
    write_manifest(run_dir, attempts=started, min_workers=1)
    lost = {"placement": {"failed": True, "msg": "no"}, "checks": {"node-1": LOST}}
    refused = refuse(run_dir, a_play(lost), **{**following, "attempt": 3})
    assert (refused["then"], refused["without"]) == ("restart.yml", {})
    later = wait(run_dir, a_play(), {**refused, "failed_at": 0.0})
    assert (later["grows"], later["min_workers"]) == (True, 1)


def test_a_job_that_leaves_a_host_does_not_wait_for_it_if_it_may_be_smaller(run_dir: Path) -> None:
    write_manifest(run_dir, min_workers=1)
    result = failed(state="stopped", root_cause=None, cause="preempted", attempts=2)
    (run_dir / "result.json").write_text(json.dumps(result))
    following = wait(run_dir, a_play())
    assert (following["preempted"], following["grows"]) == (True, False)
    assert following["min_workers"] == 1
    refusal = {"placement": {"failed": True, "msg": "no host is left"}}
    refused = refuse(run_dir, a_play(refusal), **{**following, "attempt": 3})
    assert (refused["then"], refused["preempted"]) == ("restart.yml", True)
    # A job that cannot continue has failed, although no user was told about an earlier failure.
    late = {**following, "attempt": 3, "is_patient": False}
    assert refuse(run_dir, a_play(refusal), **late)["then"] == "end.yml"
    given_up = json.loads((run_dir / "result.json").read_text())
    assert (given_up["state"], given_up["cause"], given_up["restart"]) == (
        "failed",
        "preempted",
        False,
    )


def test_a_job_that_cannot_start_with_more_hosts_continues_as_before(run_dir: Path) -> None:
    started = [
        {"staged": True, "ranks": {"worker-0": "node-1"}},
        {"staged": False, "ranks": {"worker-0": "node-1", "worker-1": "node-2"}},
    ]
    write_manifest(run_dir, attempts=started, min_workers=1)
    other = {"placement": {"failed": True, "msg": "other versions\nsecond line"}}
    refused = refuse(run_dir, a_play(other), grows=True, without={}, min_workers=1)
    assert (refused["then"], refused["without"]) == (
        "restart.yml",
        {"node-2": "the job could not start with it: other versions"},
    )
    (notice,) = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    text = "the job continues without node-2: other versions\nsecond line"
    assert notice["notice"] == {"kind": "growing", "task": None, "text": text}

    def answer(host: str) -> Mapping[str, Any]:
        if host == "node-2":
            raise UnreachableError("gone")
        return {"stopped": ""}

    # It does not wait for the hosts that were to join.
    later = wait(run_dir, a_play(answer=answer), {**refused, "failed_at": time.time()})
    assert (later["then"], later["is_patient"]) == ("watch.yml", True)
    assert (later["without"], later["min_workers"]) == (refused["without"], 1)
    # If it cannot start either, it is treated like any other job.
    again = refuse(run_dir, a_play(other), **{**later, "is_patient": False})
    assert again["then"] == "end.yml"


@pytest.mark.parametrize("cause", ["grown", "preempted"])
def test_another_attempt_follows_a_planned_end_and_it_is_no_failure(
    run_dir: Path, cause: str
) -> None:
    attempts = [{"attempt": n, "staged": True} for n in range(1, 5)]
    manifest = {"attempt": 4, "attempts": attempts, "policy": POLICY}
    (run_dir / "manifest.json").write_text(json.dumps(manifest))
    result: Any = {"state": "stopped", "root_cause": None, "cause": cause, "step": 8, "ranks": []}
    stopped: Any = {**result, "cause": None}
    following = causes.next_attempt(result, run_dir)
    assert (following["restart"], following["restart_delay"]) == (True, 0.0)
    assert causes.next_attempt(stopped, run_dir)["restart"] is False


def test_notices_in_a_row_delay_the_next_attempt(run_dir: Path) -> None:
    result: Any = {"state": "stopped", "root_cause": None, "cause": "preempted", "ranks": []}

    def delay(*preempted: bool) -> float:
        attempts = [{"staged": True, "preempted": each} for each in preempted]
        manifest = {"attempts": attempts, "policy": {**POLICY, "restart_delay": 5.0}}
        (run_dir / "manifest.json").write_text(json.dumps(manifest))
        return causes.next_attempt(result, run_dir)["restart_delay"]

    assert [delay(False), delay(False, True, False)] == [0.0, 0.0]
    assert [delay(*[True] * count) for count in (1, 2, 3, 3000)] == [5.0, 10.0, 20.0, 60.0]


def test_a_job_that_is_stopped_between_two_attempts_ends(run_dir: Path) -> None:
    (run_dir / "result.json").write_text(json.dumps(failed(restart_delay=60.0)))

    def answer(host: str) -> Mapping[str, Any]:
        return {"stopped": "was stopped by anna" if host == "node-2" else ""}

    following = wait(run_dir, a_play(answer=answer))
    assert (following["then"], following["result"]["state"]) == ("end.yml", "stopped")
    lines = saved(run_dir)["message"].splitlines()
    assert lines[0] == "the job was stopped by anna between two attempts"
    assert lines[1] == "attempt 1: worker-1 was killed at step 7"
    assert (saved(run_dir)["state"], saved(run_dir)["restart"]) == ("stopped", False)


def refused_for(host_wait: float, run_dir: Path) -> dict[str, Any]:
    """Return the decision after a refused attempt, which the task before the wait registered."""
    write_manifest(run_dir, host_wait=host_wait, min_workers=1)
    play = a_play({"placement": {"failed": True, "msg": "too few"}})
    following: dict[str, Any] = refuse(run_dir, play, failed_at=time.time())
    assert following["then"] == "restart.yml"
    return following


def test_a_lost_host_is_waited_for(run_dir: Path) -> None:
    asked: list[str] = []

    def answer(host: str) -> Mapping[str, Any]:
        asked.append(host)
        if host == "node-2" and asked.count(host) < 5:
            raise UnreachableError("no route")
        return {"stopped": ""}

    following = wait(run_dir, a_play(answer=answer), refused_for(60, run_dir))
    assert asked.count("node-2") >= 5
    assert (following["then"], following["min_workers"]) == ("watch.yml", 0)
    assert following["is_patient"]


def test_after_the_wait_fewer_workers_do(run_dir: Path) -> None:
    def answer(host: str) -> Mapping[str, Any]:
        if host == "node-2":
            raise UnreachableError("no route")
        return {"stopped": ""}

    following = wait(run_dir, a_play(answer=answer), refused_for(0.3, run_dir))
    assert (following["then"], following["min_workers"]) == ("watch.yml", 1)
    assert not following["is_patient"]


def test_without_a_network_there_is_no_limit(run_dir: Path) -> None:
    asked: list[str] = []

    def answer(host: str) -> Mapping[str, Any]:
        asked.append(host)
        if len(asked) < 60:
            raise UnreachableError("no route")
        return {"stopped": ""}

    following = wait(run_dir, a_play(answer=answer), refused_for(0.1, run_dir))
    assert len(asked) >= 60
    assert following["then"] == "watch.yml"


def test_an_attempt_that_another_control_node_starts_is_followed(run_dir: Path) -> None:
    ready = {"failed": True, "msg": "another control node has started it", "overtaken": True}
    following = refuse(run_dir, a_play({"ready": ready}))
    assert (following["then"], following["overtaken"]) == ("attach.yml", True)


def test_a_job_that_is_stopped_while_its_restart_waits_ends(run_dir: Path) -> None:
    leases = {"failed": True, "msg": "nothing was started", "stopped": "was stopped by anna"}
    following = refuse(run_dir, a_play({"leases": leases}))
    assert (following["then"], following["result"]["state"]) == ("end.yml", "stopped")
    assert saved(run_dir)["message"].startswith("the job was stopped by anna between two attempts")


@pytest.mark.parametrize("lost", [HOSTS, HOSTS[:1]])
def test_a_job_is_given_up_when_hosts_stay_away_but_not_for_want_of_a_network(
    run_dir: Path, lost: list[str]
) -> None:
    registered = {
        "checks": dict.fromkeys(lost, LOST),
        "placement": {"failed": True, "msg": "too few"},
    }
    following = refuse(run_dir, a_play(registered), is_patient=False)
    if lost == HOSTS:
        assert following["then"] == "restart.yml"
        assert following["failed_at"] > 10, "the time without a network does not count"
        assert saved(run_dir)["restart"]
        return
    assert (following["then"], following["result"]["state"]) == ("end.yml", "failed")
    ended = saved(run_dir)
    assert not ended["restart"]
    assert ended["restart_reason"].startswith(f"node-1 is unreachable: {AWAY.text}\ntoo few")
    assert ended["message"].startswith(
        "fell\nthe job could not be restarted: node-1 is unreachable"
    )
    assert ended["message"].endswith("\nattempt 1: worker-1 was killed at step 7")


def test_what_is_refused_is_tried_again_ever_more_rarely(run_dir: Path) -> None:
    play = a_play({"ready": {"failed": True, "msg": "the disk is full"}})
    refusals = []
    following: dict[str, Any] = {}
    for _ in range(3):
        following = refuse(run_dir, play, **{"failed_at": time.time(), **following})
        refusals.append(following["refusals"])
    assert refusals == [1, 2, 3]
    notices = (run_dir / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["notice"]["kind"] for line in notices] == ["waiting"]
    assert (
        "attempt 3 waits for its hosts (train_job_restart_host_timeout: 60 s): the disk is full"
        in notices[0]
    )


def test_attempts_that_were_never_staged_are_no_restarts(run_dir: Path) -> None:
    rank = {"task": "worker-1", "exit_code": -6, "reason": "was killed by SIGABRT (signal 6)"}
    result: Any = {"state": "failed", "root_cause": "worker-1", "cause": "signal", "step": 8}
    result["ranks"] = [rank]

    def plan(*staged: bool) -> None:
        attempts = [{"attempt": n, "staged": one} for n, one in enumerate(staged, 1)]
        manifest = {"attempt": len(staged), "attempts": attempts, "policy": POLICY}
        (run_dir / "manifest.json").write_text(json.dumps(manifest))

    plan(*[True] * 9)
    given_up = causes.next_attempt(result, run_dir)
    assert "the limit is 3" in given_up["restart_reason"]
    # The last one's, if a control node attaches to a job that it has planned again.
    for staged in ([True, False, False, True], [True, False, False, False]):
        plan(*staged)
        again = causes.next_attempt(result, run_dir)
        assert (again["restart"], again["restart_reason"]) == (True, "")
    # The last attempt that has ended counts, whatever its number: the same step twice.
    (run_dir / "attempts/2").mkdir(parents=True)
    (run_dir / "attempts/2/result.json").write_text(json.dumps(result))
    twice = causes.next_attempt(result, run_dir)
    assert (twice["restart"], twice["restarts_left"] > 0) == (False, True)
    assert "step 8" in twice["restart_reason"]


def replaced(outcome: str = "replaced", stopped: str = "") -> dict[str, Any]:
    return {"outcome": outcome, "stopped": stopped, "hosts": [], "ranks": []}


@pytest.mark.parametrize("cause", ["preempted", "unreachable"])
def test_replaced_hosts_are_awaited_like_lost_ones(run_dir: Path, cause: str) -> None:
    """They may need a moment until their login works."""
    started = [{"staged": True, "ranks": {"worker-1": "node-2"}}]
    write_manifest(run_dir, started, min_workers=1, host_wait=3600)
    (run_dir / "result.json").write_text(json.dumps(failed(cause=cause)))
    first = wait(run_dir, a_play(), lost_hosts=["node-2"], replaced=replaced())
    assert (first["min_workers"], first["replacement"]) == (0, "replaced")
    lost = {"placement": {"failed": True, "msg": "no"}, "checks": {"node-2": LOST}}
    refused = refuse(run_dir, a_play(lost), **first)
    assert (refused["then"], refused["gone"]) == ("restart.yml", ["node-2"])
    again = wait(run_dir, a_play(), refused, replaced=replaced(""))
    assert (again["min_workers"], again["replacement"]) == (0, "replaced")
    assert again["failed_at"] == first["failed_at"]
    # After that time, it continues with fewer workers.
    late = {**refused, "failed_at": time.time() - 3601}
    assert wait(run_dir, a_play(), late, replaced=replaced(""))["min_workers"] == 1


def test_a_replacement_that_fails_changes_nothing(run_dir: Path) -> None:
    write_manifest(run_dir, min_workers=1)
    (run_dir / "result.json").write_text(json.dumps(failed(state="stopped", cause="preempted")))
    following = wait(run_dir, a_play(), lost_hosts=["node-2"], replaced=replaced("failed"))
    assert (following["min_workers"], following["replacement"]) == (1, "failed")


def test_hosts_that_are_replaced_while_the_job_waits_have_time_to_start(run_dir: Path) -> None:
    before = {"then": "restart.yml", "refusals": 4, "failed_at": 10.0, "gone": ["node-2"]}
    began = time.time()
    following = wait(run_dir, a_play(), before, replaced=replaced())
    assert following["min_workers"] == 0
    assert following["failed_at"] >= began


def test_a_job_that_was_stopped_while_hosts_were_replaced(run_dir: Path) -> None:
    ended = wait(run_dir, a_play(), replaced=replaced("", "was stopped by anna"))
    assert ended["then"] == "end.yml"
    assert ended["result"]["state"] == "stopped"
    assert ended["result"]["message"].startswith("the job was stopped by anna between two attempts")


def test_only_hosts_of_the_job_are_replaced_and_none_without_a_network(run_dir: Path) -> None:
    write_manifest(run_dir, [{"staged": True, "ranks": {"worker-0": "node-1"}}])
    lost = {"placement": {"failed": True, "msg": "no"}, "checks": {"node-2": LOST}}
    assert refuse(run_dir, a_play(lost))["gone"] == []
    write_manifest(run_dir, [{"staged": True, "ranks": {"a": "node-1", "b": "node-2"}}])
    assert refuse(run_dir, a_play(lost))["gone"] == ["node-2"]
    all_lost = {**lost, "checks": dict.fromkeys(HOSTS, LOST)}
    assert refuse(run_dir, a_play(all_lost))["gone"] == []
