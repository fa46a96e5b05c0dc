"""What all hosts are asked about jobs, and which ranks are stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure

from tests.unit.gang.hostile import STOP_REPORT
from tests.unit.gang.made_up_machines import Asked, Play, answers
from train.gang import job_calls, login_check, login_failures, machine_calls

REFUSED = login_failures.failure("refused")
SEEN = {"rank": None, "state": {"phase": "absent"}, "progress": {}, "last_line": ""}
#: All options of the three actions, with their default values.
OPTIONS = {
    **{"options": "my_check", "job": "night", "manifest": False, "lines": None, "sizes": True},
    **{"hosts": None, "reason": "was stopped by anna", "permanent": False, "attempt": None},
    **{"retries": 0, "warn": False},
}


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that runs an action of a play."""

    def run(action: Callable[..., Any], play: Play, answer: Asked, **given: Any) -> Any:
        answers(monkeypatch, play, answer)
        monkeypatch.setattr(job_calls, "_PAUSE_S", 0.0)
        return action(play, {**OPTIONS, **given})

    return run


def each(result: Mapping[str, Any]) -> Asked:
    return lambda hosts: {"hosts": {host: {**result, "host": host} for host in hosts}}


def refuse() -> str:
    raise AnsibleConnectionFailure("ssh: connect to host b port 22: Connection refused")


def test_the_states_of_ranks_are_asked_once_for_each_machine(make: Callable[..., Any]) -> None:
    play = Play({"a": ["a", "b"], "b": ["a", "b"], "c": ["c"]})
    found = make(job_calls.states, play, each(SEEN))
    assert found["lines"] == ["a: absent", "b: absent", "c: absent"]
    assert found["hosts"]["b"] == SEEN
    assert play.called == ["a", "c"]
    request = play.calls[0][1]
    assert (request["call"], request["job"], request["check"]) == ("rank_states", "night", False)


@pytest.mark.parametrize("action", [job_calls.states, job_calls.jobs, job_calls.stop])
def test_hosts_on_which_an_earlier_task_failed_are_asked(
    make: Callable[..., Any], action: Callable[..., Any]
) -> None:
    """Ansible counts hosts as failed although the role continues with them in `rescue`."""
    play = Play({"a": ["a"], "b": ["b"]})
    play.active = ["a"]
    make(action, play, each(SEEN))
    assert play.called == ["a", "b"]


def test_a_malformed_state_is_named_and_hides_no_other(make: Callable[..., Any]) -> None:
    def answer(hosts: Mapping[str, Any]) -> Any:
        return {"hosts": {"a": {"state": "fine"}, "b": SEEN}}

    play = Play({"a": ["a", "b"], "b": ["a", "b"]})
    wrong, right = make(job_calls.states, play, answer)["lines"]
    assert wrong.startswith("a: ignoring a malformed report: ")
    assert right == "b: absent"


def test_hosts_with_the_same_folders_are_listed_once(make: Callable[..., Any]) -> None:
    folder = {"my_check": {"root": "~/train"}}
    together = ["a", "b", "c"]
    play = Play(
        {**dict.fromkeys(together, together), "d": ["d"]}, a=folder, b=folder, c={}, d=folder
    )
    found = make(job_calls.jobs, play, each({"jobs": [], "leases": []}))
    listed: dict[str, Any] = {"jobs": [], "leases": []}
    assert found["hosts"] == {"a": listed, "b": {"listed_by": "a"}, "c": listed, "d": listed}
    assert "lines" not in play.calls[0][1]
    assert play.calls[0][1]["sizes"] is True


def test_a_host_that_cannot_list_answers_for_none_beside_it(make: Callable[..., Any]) -> None:
    folder = {"my_check": {"root": "~/train"}}
    play = Play({"a": ["a", "b"], "b": ["a", "b"]}, a=folder, b=folder)
    found = make(job_calls.jobs, play, each({"failed": True, "msg": "no space"}))
    assert [found["hosts"][host]["msg"] for host in "ab"] == ["no space", "no space"]


def test_the_given_hosts_are_stopped(make: Callable[..., Any]) -> None:
    play = Play({name: [name] for name in "abc"})
    answer = each({"changed": True, "stop_report": STOP_REPORT, "more": []})
    found = make(job_calls.stop, play, answer, hosts=["c", "a"], attempt=2)
    assert sorted(found["hosts"]) == ["a", "c"]
    assert found["changed"]
    assert found["lines"][0].startswith("c: running -> stopped")
    assert {host: request["attempt"] for host, request in play.calls} == {"a": 2, "c": 2}


def test_a_host_that_answers_late_is_stopped_all_the_same(make: Callable[..., Any]) -> None:
    play = Play({name: [name] for name in "ab"})
    tries: list[str] = []

    def recover() -> str:
        tries.append("b")
        if len(tries) == 2:
            del play.logins["b"]
        return refuse()

    play.logins["b"] = recover
    answer = each({"changed": False, "stop_report": STOP_REPORT})
    found = make(job_calls.stop, play, answer, retries=2, warn=True)
    assert play.called == ["a", "b"]
    assert len(tries) == 2
    assert found["hosts"]["b"] == {"changed": False, "stop_report": STOP_REPORT}
    assert found["warnings"] == []


def test_a_login_that_hangs_is_tried_again_over_another_connection(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the first login, which then fails, does not affect the second one."""
    for name, seconds in (("NAMED_S", 0.02), ("_LIMIT_S", 0.2), ("_MARGIN_S", 0.0)):
        monkeypatch.setattr(login_check, name, seconds)
    monkeypatch.setattr(machine_calls, "_POLL_S", 0.02)
    monkeypatch.setattr(job_calls, "_PAUSE_S", 0.0)
    forever = threading.Event()
    monkeypatch.setattr(login_check, "end_children", lambda: None)
    tries: list[int] = []

    def hang() -> str:
        tries.append(len(tries))
        if len(tries) == 2:
            forever.set()  # the first login ends while the second one is in progress
            time.sleep(0.1)
            return "Killed"
        forever.wait(20)
        return "Killed"

    play = Play({"a": ["a"]})
    play.logins["a"] = hang
    found = make(job_calls.stop, play, each({"stop_report": STOP_REPORT}), retries=1)
    assert found["hosts"]["a"]["unreachable"]
    assert len(tries) == 2
    assert len(set(play.purposes)) == 2


def test_a_host_that_rejects_the_login_is_asked_once(make: Callable[..., Any]) -> None:
    tries: list[int] = []

    def reject() -> str:
        tries.append(1)
        raise AnsibleConnectionFailure("anna@a: Permission denied (publickey).")

    play = Play({"a": ["a"]})
    play.logins["a"] = reject
    found = make(job_calls.stop, play, each({"stop_report": STOP_REPORT}), retries=3)
    assert found["hosts"]["a"]["unreachable"]
    assert len(tries) == 1


def test_ranks_that_may_still_run_are_named(make: Callable[..., Any]) -> None:
    def answer(hosts: Mapping[str, Any]) -> Any:
        failed = {"failed": True, "msg": "processes 7 of worker-2 could not be killed"}
        report = {"changed": True, "stop_report": STOP_REPORT}
        return {"hosts": {host: failed if host == "c" else report for host in hosts}}

    play = Play({name: [name] for name in "abc"})
    play.logins["b"] = refuse
    (warning,) = make(job_calls.stop, play, answer, retries=1, warn=True)["warnings"]
    assert warning.startswith("ranks on b and c may still be running; `")
    assert " night` stops them: b is unreachable: " in warning
    assert "c: processes 7 of worker-2 could not be killed" in warning


def test_an_invalid_variable_of_a_host_keeps_no_other_running(make: Callable[..., Any]) -> None:
    play = Play({name: [name] for name in "ab"})
    play.invalid = ["a"]
    answer = each({"changed": True, "stop_report": STOP_REPORT})
    found = make(job_calls.stop, play, answer)
    assert found["hosts"]["a"] == {
        "failed": True,
        "msg": "train_job_root of a: 'x' is undefined",
    }
    assert play.called == ["b"]


def test_hosts_without_an_answer_fail_the_play_with_their_reasons() -> None:
    play: Any = Play({"a": ["a"]})
    lost = {"unreachable": True, "msg": REFUSED.text}
    full = {"failed": True, "msg": "no space"}
    play.registered = {"all": {"hosts": {"a": SEEN, "b": lost, "c": full, "d": full}}}
    assert job_calls.require_answers(play, {"registered": "all"}) == {
        "failed": True,
        "msg": f"b is unreachable: {REFUSED.text}\nc and d: no space",
        "hosts": {"b": lost, "c": full, "d": full},
    }
    play.registered = {"all": {"hosts": {"a": SEEN}}}
    assert job_calls.require_answers(play, {"registered": "all"}) == {}
