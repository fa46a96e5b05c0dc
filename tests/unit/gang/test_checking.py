"""The checks of hosts before an attempt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure

from tests.unit.gang.made_up_machines import FACTS, Play, checks, fine
from train.gang import login_failures


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    return checks(monkeypatch)


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


def test_only_known_and_harmless_parts_of_a_result_are_kept(check: Callable[..., Any]) -> None:
    evil = {"host": FACTS, "ansible_facts": {"x": 1}, "add_host": {}, "unreachable": True}
    result = {**evil, "warnings": ["port \x1b[2Jtaken"], "msg": 3}
    checked = check(Play({"a": ["a"]}), lambda hosts: {"hosts": {"a": result}})
    assert checked["hosts"]["a"] == {"host": FACTS, "warnings": ["port taken"], "msg": 3}
    assert checked["warnings"] == ["a: port taken"]


def test_a_host_that_has_left_the_play_is_not_checked(check: Callable[..., Any]) -> None:
    play = Play({"a": ["a"], "b": ["b"]})
    play.active = ["a"]
    checked = check(play, fine)
    assert checked["hosts"]["b"]["failed"]
    assert checked["hosts"]["b"]["msg"] == "an earlier task of this play failed on this host"
    assert play.called == ["a"]
