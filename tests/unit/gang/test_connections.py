"""The information that an action gets from its play."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from train.gang import REPOSITORY, connections, host_programs
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
    together = {tuple(names) for names in Play.neighbors(play).values()}
    assert together == {("a", "b", "10.0.0.1"), ("c",), ("d",), ("here", "here-too")}
    assert all(host in names for host, names in Play.neighbors(play).items())


def test_a_result_of_all_hosts_is_that_of_each() -> None:
    whole = {"rank": {"hosts": {"a": {"started": True}}}, "chosen": {"hosts": ["a"]}}
    earlier = {"rank": {"hosts": {"c": {"started": False}}}}
    play: Any = SimpleNamespace(_hostvars={"a": whole, "b": whole, "c": earlier}, _of_gang={})
    play.host = "a"
    play.of_gang = lambda name: Play.of_gang(play, name)
    assert Play.registered(play, "a", "rank") == {"started": True}
    assert Play.registered(play, "b", "rank") == {}
    assert Play.registered(play, "c", "rank") == {}, "an earlier result was used"
    assert Play.registered(play, "b", "chosen") == {"hosts": ["a"]}


def test_everything_that_changes_a_connection_is_one_of_its_settings() -> None:
    given = {
        **{"ansible_host": "10.0.0.1", "ansible_ssh_private_key_file": "~/key", "color": "red"},
        **{"ansible_become": True, "ansible_playbook_python": "/python", "ansible_facts": {"a": 1}},
    }
    play: Any = SimpleNamespace(variables=lambda host: given)
    names = Play.names_of_connection_settings(play, "a")
    assert names == ["ansible_ssh_private_key_file", "ansible_become"]


def test_an_added_rank_has_the_variables_of_its_machine() -> None:
    variables: Any = {"a": {"group_names": ["worker"]}, "b": {connections.MACHINE: "a"}}
    play: Any = SimpleNamespace(_hostvars=variables)
    play.has = lambda host: Play.has(play, host)
    assert [Play.machine_of(play, host) for host in ("a", "b", "unknown")] == ["a", "a", "unknown"]
    assert Play.groups_of(play, "a") == ["worker"]


def test_more_than_was_said_fills_no_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers = iter([{"size": 10}, {"data": base64.b64encode(b"0123456789").decode()}])
    monkeypatch.setattr(host_programs, "run", lambda *_: next(answers))
    reached = []

    def fetch_file(source: str, destination: str) -> None:
        with open(destination, "wb", buffering=0) as stream:
            for _ in range(100):
                stream.write(bytes(1 << 20))
                reached.append(stream.tell())

    archive = tmp_path / "results.tar.gz"
    action = SimpleNamespace(_connection=SimpleNamespace(become=None, fetch_file=fetch_file))
    connections.fetch(action, "/there", archive, 1 << 30)
    assert max(reached) <= 64 << 20
    assert archive.read_bytes() == b"0123456789"


def test_a_process_with_many_connections_may_open_as_many_files_as_allowed() -> None:
    program = (
        "import resource\n"
        "from train.gang import connections\n"
        "_, most = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))\n"
        "connections.allow_many_connections()\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "True\n", done.stderr
