"""The checks of hosts before an attempt: which machines are asked, and what comes of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure

from train.gang import checking, connections, host_programs, login_check, login_failures

OPTIONS = {"job": "", "attempt": 1, "framework": "none", "modules": [], "wait": 0.0}
FACTS = {"cores": 2}

#: Answers the call for a machine: its inventory hosts, and the result of the call.
Asked = Callable[[Mapping[str, Any]], Any]


class Play:
    """A play whose machines answer logins and calls."""

    def __init__(self, beside: Mapping[str, list[str]], **values: Any) -> None:
        self.hosts, self.beside, self._values = list(beside), beside, values
        self.logins: dict[str, Callable[[], str]] = {}  # what a login prints, if not its mark
        self.calls: list[tuple[str, Any]] = []

    def values(self, host: str, *names: str) -> dict[str, Any]:
        given = {"my_check": {"port": host}, **self._values.get(host, {})}
        return {name: given[name] for name in names if name in given}

    def names_of_connection_settings(self, host: str) -> list[str]:
        return list(self._values.get(host, {}))

    def action_of(self, host: str, purpose: str) -> Any:
        def execute(command: str, **_: Any) -> dict[str, Any]:
            printed = self.logins[host]() if host in self.logins else command.partition(" ")[2]
            return {"rc": 0, "stdout": printed, "stderr": ""}

        options: dict[str, Any] = {"host": host, "timeout": 0}
        connection = SimpleNamespace(
            transport="ssh", become=None, get_option=lambda name: options[name]
        )
        return SimpleNamespace(
            host=host, _connection=connection, _low_level_execute_command=execute
        )

    def interpreter_of(self, host: str) -> str:
        return f"python-of-{host}"


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that checks a play's hosts, and one for what was said."""
    said: list[str] = []
    monkeypatch.setattr(connections, "say", said.append)
    monkeypatch.setattr(connections, "allow_many_connections", lambda: None)

    def run(play: Play, answer: Asked) -> Any:
        def ask(action: Any, command: str, program: bytes) -> host_programs.Answer:
            request = json.loads(command)
            play.calls.append((action.host, request))
            found = answer(request["hosts"])
            if isinstance(found, Exception):
                raise found
            return host_programs.Answer(found, 0, "no JSON")

        monkeypatch.setattr(host_programs, "ask", ask)
        monkeypatch.setattr(
            host_programs, "command_of", lambda python, request: (json.dumps(request), b"")
        )
        args = {**OPTIONS, "options": "my_check", "beside": play.beside, "avoids_preempted": False}
        checked: Any = checking.check_hosts(play, args)  # type: ignore[arg-type]
        checked["said"] = said
        return checked

    return run


def fine(hosts: Mapping[str, Any]) -> dict[str, Any]:
    return {"hosts": {host: {"host": FACTS, "lacks_framework": False} for host in hosts}}


def test_a_machine_is_asked_once_for_all_of_its_ranks(check: Callable[..., Any]) -> None:
    together = {"a": ["a", "b"], "b": ["a", "b"], "c": ["c"]}
    play = Play(together)
    checked = check(play, fine)
    assert list(checked["hosts"]) == ["a", "b", "c"]
    assert all(result["host"] == FACTS for result in checked["hosts"].values())
    asked = dict(play.calls)
    assert {host: request["hosts"] for host, request in asked.items()} == {
        "a": {"a": {"port": "a"}, "b": {"port": "b"}},
        "c": {"c": {"port": "c"}},
    }
    assert asked["a"]["beside"] == ["a", "b"]
    assert (asked["a"]["call"], asked["a"]["names"]) == ("host_checks", ["a", "b", "c"])


def test_other_users_and_interpreters_of_a_machine_are_asked_separately(
    check: Callable[..., Any],
) -> None:
    names = ["a", "b", "c"]
    own = {"b": {"ansible_become": True}, "c": {"ansible_python_interpreter": "/opt/python"}}
    play = Play(dict.fromkeys(names, names), **own)
    check(play, fine)
    assert sorted(host for host, _ in play.calls) == names
    assert all(request["beside"] == names for _, request in play.calls)


def test_a_login_that_fails_is_explained_once_for_all_hosts(check: Callable[..., Any]) -> None:
    def refuse() -> str:
        raise AnsibleConnectionFailure("ssh: connect to host b port 22: Connection refused")

    play = Play({name: [name] for name in ("a", "b", "c")})
    play.logins = {"b": refuse, "c": refuse}
    checked = check(play, fine)
    refused = login_failures.KINDS["refused"].sentence
    for host in ("b", "c"):
        assert checked["hosts"][host]["unreachable"]
        assert checked["hosts"][host]["msg"].startswith(refused)
    (line,) = checked["said"]
    assert line.startswith(f"b and c are unreachable: {refused}")
    assert checked["hosts"]["a"]["host"] == FACTS


def test_a_connection_that_breaks_during_the_check_is_unreachable(
    check: Callable[..., Any],
) -> None:
    lost = AnsibleConnectionFailure("Shared connection to b closed.")
    checked = check(Play({"b": ["b"]}), lambda hosts: lost)
    assert checked["hosts"]["b"]["unreachable"]


def test_a_login_that_hangs_is_named_and_does_not_delay_the_others(
    check: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("NAMED_S", 0.02), ("_LIMIT_S", 0.05), ("_MARGIN_S", 0.0)):
        monkeypatch.setattr(login_check, name, seconds)
    monkeypatch.setattr(checking, "_LOOK_S", 0.02)
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


def test_only_known_and_harmless_parts_of_a_result_are_kept(check: Callable[..., Any]) -> None:
    evil = {"host": FACTS, "ansible_facts": {"x": 1}, "add_host": {}, "unreachable": True}
    result = {**evil, "warnings": ["port \x1b[2Jtaken"], "msg": 3}
    checked = check(Play({"a": ["a"]}), lambda hosts: {"hosts": {"a": result}})
    assert checked["hosts"]["a"] == {"host": FACTS, "warnings": ["port taken"], "msg": 3}
    assert checked["warnings"] == ["a: port taken"]


def test_an_unexpected_error_ends_no_other_check(check: Callable[..., Any]) -> None:
    def answer(hosts: Mapping[str, Any]) -> Any:
        return KeyError("bug") if "b" in hosts else fine(hosts)

    checked = check(Play({"a": ["a"], "b": ["b"]}), answer)
    assert checked["hosts"]["a"]["host"] == FACTS
    assert "bug" in checked["hosts"]["b"]["msg"]
