"""A play whose machines answer logins and calls as a test decides."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from train.gang import checking, connections, host_programs
from train.gang.errors import UserError

OPTIONS = {"job": "", "attempt": 1, "framework": "none", "modules": [], "wait": 0.0}
FACTS = {"cores": 2}

#: Answers the call for a machine: its inventory hosts, and the result of the call.
Asked = Callable[[Mapping[str, Any]], Any]


class Play:
    """A play whose machines answer logins and calls."""

    def __init__(self, beside: Mapping[str, list[str]], **values: Any) -> None:
        self.hosts, self.beside, self._values = list(beside), beside, values
        self.active = list(beside)
        self.check_mode = False
        self.logins: dict[str, Callable[[], str]] = {}  # what a login prints, if not its mark
        self.tried: list[str] = []  # hosts whose login was tried with a command
        self.log_in: Callable[[], bool] = lambda: False  # see plugins/connection/ssh.py
        self.calls: list[tuple[str, Any]] = []  # in any order: each comes from a thread
        self.purposes: list[str] = []  # of the connections
        self.invalid: list[str] = []  # hosts with an invalid variable
        self.registered: dict[str, Any] = {}

    @property
    def called(self) -> list[str]:
        """The hosts whose connections were used for calls, sorted."""
        return sorted(host for host, _ in self.calls)

    def neighbors(self) -> Mapping[str, list[str]]:
        return self.beside

    def of_gang(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.registered.get(name, {})
        return found

    def values(self, host: str, *names: str) -> dict[str, Any]:
        if host in self.invalid:
            raise UserError(f"train_job_root of {host}: 'x' is undefined")
        given = {"my_check": {"port": host}, **self._values.get(host, {})}
        return {name: given[name] for name in names if name in given}

    def names_of_connection_settings(self, host: str) -> list[str]:
        return list(self._values.get(host, {}))

    def action_of(self, host: str, purpose: str) -> Any:
        self.purposes.append(purpose)

        def execute(command: str, **_: Any) -> dict[str, Any]:
            self.tried.append(host)
            printed = self.logins[host]() if host in self.logins else command.partition(" ")[2]
            return {"rc": 0, "stdout": printed, "stderr": ""}

        options: dict[str, Any] = {"host": host, "timeout": 0}
        connection = SimpleNamespace(
            transport="ssh",
            become=None,
            get_option=lambda name: options[name],
            log_in=self.log_in,
        )
        return SimpleNamespace(
            host=host, _connection=connection, _low_level_execute_command=execute
        )

    def interpreter_of(self, host: str) -> str:
        return f"python-of-{host}"


def answers(monkeypatch: pytest.MonkeyPatch, play: Play, answer: Asked) -> list[str]:
    """Let the machines of a play answer. Return the list of lines that are then shown."""
    said: list[str] = []

    def ask(action: Any, command: str, program: bytes) -> host_programs.Answer:
        request = json.loads(command)
        play.calls.append((action.host, request))
        found = answer(request["hosts"])
        if isinstance(found, Exception):
            raise found
        if isinstance(found, host_programs.Answer):
            return found
        return host_programs.Answer(found, 0, "no JSON")

    monkeypatch.setattr(connections, "say", said.append)
    monkeypatch.setattr(connections, "allow_many_connections", lambda: None)
    monkeypatch.setattr(host_programs, "ask", ask)
    monkeypatch.setattr(
        host_programs, "command_of", lambda python, request: (json.dumps(request), b"")
    )
    return said


def checks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that checks the hosts of a play. ``said`` is what it showed."""

    def run(play: Play, answer: Asked) -> Any:
        said = answers(monkeypatch, play, answer)
        args = {**OPTIONS, "options": "my_check", "beside": play.beside, "avoids_preempted": False}
        checked: Any = checking.check_hosts(play, args)  # type: ignore[arg-type]
        checked["said"] = said
        return checked

    return run


def fine(hosts: Mapping[str, Any]) -> dict[str, Any]:
    return {"hosts": {host: {"host": FACTS, "lacks_framework": False} for host in hosts}}
