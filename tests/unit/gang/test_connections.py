"""The information that an action gets from its play."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from train.gang.connections import Play


def test_hosts_that_are_reached_in_the_same_way_share_a_machine() -> None:
    variables: dict[str, dict[str, Any]] = {
        "a": {"ansible_host": "10.0.0.1"},
        "b": {"ansible_host": "10.0.0.1", "ansible_port": 22, "ansible_connection": "ssh"},
        "c": {"ansible_host": "10.0.0.1", "ansible_port": 2222},
        "d": {"ansible_host": "10.0.0.1", "ansible_user": "other"},
        "10.0.0.1": {},
        "here": {"ansible_connection": "local"},
        "here-too": {"ansible_connection": "local", "ansible_user": "other"},
    }
    play: Any = SimpleNamespace(hosts=list(variables), _hostvars=variables)
    play.connection = lambda host: Play.connection(play, host)
    together = {tuple(names) for names in Play.neighbours(play).values()}
    assert together == {("a", "b", "10.0.0.1"), ("c",), ("d",), ("here", "here-too")}
    assert all(host in names for host, names in Play.neighbours(play).items())
