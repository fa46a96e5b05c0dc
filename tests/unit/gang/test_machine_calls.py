"""Which machines are called, and what comes of calls that fail or hang."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import Mock

import pytest
from ansible.errors import AnsibleConnectionFailure, AnsibleError

from tests.unit.gang.made_up_machines import FACTS, Play, checks, fine
from train.gang import login_check, login_failures, machine_calls
from train.gang.host_programs import EXIT, Answer


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    return checks(monkeypatch)


def test_other_users_and_interpreters_of_a_machine_are_asked_separately(
    check: Callable[..., Any],
) -> None:
    names = ["a", "b", "c"]
    own = {"b": {"ansible_become": True}, "c": {"ansible_python_interpreter": "/opt/python"}}
    play = Play(dict.fromkeys(names, names), **own)
    check(play, fine)
    assert play.called == names
    assert all(request["beside"] == names for _, request in play.calls)


def test_a_connection_that_breaks_during_the_check_is_unreachable(
    check: Callable[..., Any],
) -> None:
    lost = AnsibleConnectionFailure("Shared connection to b closed.")
    checked = check(Play({"b": ["b"]}), lambda hosts: lost)
    assert checked["hosts"]["b"]["unreachable"]


def test_a_program_that_does_not_run_explains_that_for_all_hosts(
    check: Callable[..., Any],
) -> None:
    too_old = {"failed": True, "msg": "the host's Python is \x1b[2Jversion 3.6", "ranks": 3}
    checked = check(Play({"a": ["a", "b"], "b": ["a", "b"]}), lambda hosts: too_old)
    explained = {"failed": True, "msg": "the host's Python is version 3.6"}
    assert checked["hosts"] == {"a": explained, "b": explained}


def test_a_login_that_hangs_is_named_and_does_not_delay_the_others(
    check: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("NAMED_S", 0.02), ("_LIMIT_S", 0.05), ("_MARGIN_S", 0.0)):
        monkeypatch.setattr(login_check, name, seconds)
    monkeypatch.setattr(machine_calls, "_POLL_S", 0.02)
    ended: list[bool] = []
    monkeypatch.setattr(login_check, "end_children", lambda: ended.append(True))
    forever = threading.Event()

    def hang() -> str:
        forever.wait(20)
        return ""

    play = Play({name: [name] for name in ("a", "b", "c")})
    play.logins = {"b": hang, "c": hang}
    checked = check(play, fine)
    forever.set()
    hangs = login_failures.KINDS["hangs"].sentence
    assert checked["hosts"]["b"]["msg"].startswith(hangs)
    assert checked["hosts"]["a"]["host"] == FACTS
    assert checked["said"][0] == login_failures.waiting(["b", "c"])
    assert ended == [True]


def test_a_new_login_is_tried_only_if_its_call_takes_long(
    check: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Play({"a": ["a"], "b": ["b"]})
    play.log_in = lambda: True
    tried = threading.Event()
    monkeypatch.setattr(machine_calls, "_TEST_S", 0.02)
    monkeypatch.setattr(machine_calls, "_POLL_S", 0.02)

    def login_of_b() -> str:
        tried.set()
        return "Welcome!"

    play.logins = {"b": login_of_b}

    def answer(hosts: Mapping[str, Any]) -> Any:
        assert "a" in hosts or tried.wait(20)
        return fine(hosts)

    checked = check(play, answer)
    assert [checked["hosts"][host]["host"] for host in "ab"] == [FACTS, FACTS]
    assert "b" in play.tried
    monkeypatch.setattr(machine_calls, "_TEST_S", 60.0)
    play.tried.clear()
    assert set(check(play, fine)["hosts"]) == {"a", "b"}
    assert play.tried == []


def test_a_new_login_whose_commands_hang_is_named(
    check: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("NAMED_S", 0.02), ("_LIMIT_S", 0.05), ("_MARGIN_S", 0.0)):
        monkeypatch.setattr(login_check, name, seconds)
    monkeypatch.setattr(machine_calls, "_TEST_S", 0.5)
    monkeypatch.setattr(machine_calls, "_POLL_S", 0.02)
    monkeypatch.setattr(login_check, "end_children", lambda: None)
    play = Play({"a": ["a"], "b": ["b"]})
    play.log_in = lambda: True
    forever = threading.Event()

    def hang(*_: Any) -> str:
        forever.wait(20)
        return ""

    play.logins = {"b": hang}
    checked = check(play, lambda hosts: fine(hosts) if "a" in hosts else hang())
    forever.set()
    assert checked["hosts"]["a"]["host"] == FACTS
    assert checked["hosts"]["b"]["unreachable"]
    assert checked["hosts"]["b"]["msg"].startswith(login_failures.KINDS["hangs"].sentence)
    assert checked["said"][0] == login_failures.waiting(["b"])


def test_a_new_login_that_is_refused_or_runs_no_command_is_explained(
    check: Callable[..., Any],
) -> None:
    play = Play({"a": ["a"]})
    for kind, error in {
        "refused": AnsibleConnectionFailure("ssh: connect to host a port 22: Connection refused"),
        "no-sshpass": AnsibleError("to use passwords, you must install the sshpass program"),
    }.items():
        play.log_in = Mock(side_effect=error)
        checked = check(play, fine)
        assert checked["hosts"]["a"]["unreachable"]
        assert checked["hosts"]["a"]["msg"].startswith(login_failures.KINDS[kind].sentence)
    play.log_in = lambda: True
    for text, kind in {
        "": "no-commands",
        f"{EXIT}{{}}\nPK\x03": "no-commands",
        "This account is currently not available.": "nologin",
    }.items():
        checked = check(play, lambda hosts, text=text: Answer(None, 1, text, ran=False))
        assert checked["hosts"]["a"]["unreachable"]
        assert checked["hosts"]["a"]["msg"].startswith(login_failures.KINDS[kind].sentence)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {},
        {"hosts": []},
        {"hosts": {"other": {"host": FACTS}}},
        {"hosts": {"a": ["host"]}},
    ],
)
def test_a_malformed_answer_is_a_failure_of_its_hosts(
    check: Callable[..., Any], answer: Any
) -> None:
    checked = check(Play({"a": ["a"]}), lambda hosts: answer)
    assert set(checked["hosts"]) == {"a"}
    assert checked["hosts"]["a"]["failed"]
    assert checked["hosts"]["a"]["msg"]


def test_an_unexpected_error_ends_no_other_check(check: Callable[..., Any]) -> None:
    def answer(hosts: Mapping[str, Any]) -> Any:
        return KeyError("bug") if "b" in hosts else fine(hosts)

    checked = check(Play({"a": ["a"], "b": ["b"]}), answer)
    assert checked["hosts"]["a"]["host"] == FACTS
    assert "bug" in checked["hosts"]["b"]["msg"]
