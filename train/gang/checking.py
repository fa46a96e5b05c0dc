"""Checks the hosts of a gang before an attempt: one call for each machine, all in parallel."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible.errors import AnsibleConnectionFailure

from train.gang import connections, host_programs, login_check, login_failures
from train.gang.connections import Args, Returned
from train.gang.login_failures import LoginFailure

#: The purpose of the connections.
_CHECK = "check"
#: Parts of a host's result; others are ignored.
_KNOWN = ("failed", "host", "lacks_framework", "msg", "ranks", "warnings")
#: Options of ``gang_check`` that are the same for all hosts.
_SHARED = ("job", "attempt", "framework", "modules", "wait", "avoids_preempted")
#: Seconds between two looks at logins in progress.
_LOOK_S = 0.5


@dataclass
class _Machine:
    """Inventory hosts that one call can check.

    Attributes:
        beside: all names of the machine in the play.
        requests: what to check, by inventory host.
        login_since: when its login began (monotonic clock); None if no login is in progress.
        action: an action with a connection to the first host; None until there is one.
    """

    beside: list[str]
    requests: dict[str, Args] = field(default_factory=dict)
    login_since: float | None = None
    action: Any = None

    @property
    def first(self) -> str:
        """The inventory host whose connection is used."""
        return next(iter(self.requests))


def check_hosts(play: connections.Play, args: Args) -> Returned:
    """Check all hosts of the play. Return the result of each as ``hosts``, and ``warnings``.

    A host that cannot be reached has ``unreachable``, one on which a rank cannot start has
    ``failed``. Both have a ``msg``. Raise UserError if a template in a host's variables is invalid.
    """
    connections.allow_many_connections()
    shared = {**{name: args[name] for name in _SHARED}, "names": play.hosts, "call": "host_checks"}
    found = _Checks(play, _machines(play, args), shared).results()
    lost = {host: login_failures.of_result(r) for host, r in found.items() if r.get("unreachable")}
    for line in login_failures.merged(lost):
        connections.say(line)
    return {"hosts": {host: found[host] for host in play.hosts}, "warnings": _warnings(found)}


def _machines(play: connections.Play, args: Args) -> list[_Machine]:
    beside, option = args["beside"], str(args["options"])
    found: dict[tuple[str, ...], _Machine] = {}
    for host in play.hosts:
        values = play.values(host, option, *play.names_of_connection_settings(host))
        request = values.pop(option)
        # Hosts with the same address may have different keys or interpreters.
        key = (beside[host][0], *(f"{name}={value}" for name, value in sorted(values.items())))
        found.setdefault(key, _Machine(list(beside[host]))).requests[host] = request
    return list(found.values())


class _Checks:
    """Checks of several machines, each in a thread.

    Args:
        shared: the parameters of the call that are the same for all hosts.
    """

    def __init__(self, play: connections.Play, machines: Sequence[_Machine], shared: Args) -> None:
        self._play, self._machines, self._shared = play, machines, shared
        self._ended: queue.Queue[tuple[_Machine, Mapping[str, Returned]]] = queue.Queue()
        self._named: set[str] = set()

    def results(self) -> dict[str, Returned]:
        """Return the result of each host. A login that takes too long counts as failed."""
        for machine in self._machines:
            threading.Thread(target=self._work, args=(machine,), daemon=True).start()
        results: dict[str, Returned] = {}
        pending = list(self._machines)
        while pending:
            try:
                machine, found = self._ended.get(timeout=_LOOK_S)
            except queue.Empty:
                for machine, failed in self._hanging(pending):
                    results |= dict.fromkeys(machine.requests, _unreachable(failed))
                    pending.remove(machine)
                continue
            if machine in pending:
                results |= found
                pending.remove(machine)
        if any(machine.login_since is not None for machine in self._machines):
            login_check.end_children()
        return results

    def _hanging(self, pending: Sequence[_Machine]) -> list[tuple[_Machine, LoginFailure]]:
        """Return the machines whose login takes too long. Name those that take long."""
        now, slow, hanging = time.monotonic(), [], []
        for machine in pending:
            since = machine.login_since
            if since is None or now - since < login_check.NAMED_S:
                continue
            connection = machine.action._connection
            if machine.first not in self._named:
                slow.append(machine.first)
            if now - since >= login_check.limit_of(connection):
                hanging.append((machine, login_check.hanging(connection)))
        if slow:
            self._named |= {*slow}
            connections.say(login_failures.waiting(slow))
        return hanging

    def _work(self, machine: _Machine) -> None:
        """Check a machine. Runs in a thread, whose errors become results."""
        try:
            found = self._check(machine)
        except Exception as error:
            failed: Returned = {"failed": True, "msg": str(error) or repr(error)}
            if isinstance(error, AnsibleConnectionFailure) and machine.action is not None:
                failed = _unreachable(login_check.explain(str(error), machine.action._connection))
            found = dict.fromkeys(machine.requests, failed)
        self._ended.put((machine, found))

    def _check(self, machine: _Machine) -> dict[str, Returned]:
        host = machine.first
        action = machine.action = self._play.action_of(host, _CHECK)
        if login_check.needs_login(action._connection):
            with login_check.turn(action._connection, host):
                machine.login_since = time.monotonic()
                failed = login_check.attempt(action)
                machine.login_since = None
            if failed is not None:
                return dict.fromkeys(machine.requests, _unreachable(failed))
        request = {**self._shared, "hosts": machine.requests, "beside": machine.beside}
        python = self._play.interpreter_of(host)
        answer = host_programs.ask(action, *host_programs.command_of(python, request))
        found = (answer.value or {}).get("hosts")
        if not isinstance(found, Mapping):
            return dict.fromkeys(machine.requests, login_check.without_result(action, answer))
        return {name: _result(found.get(name)) for name in machine.requests}


def _result(found: Any) -> Returned:
    """Return the harmless parts of a host's result."""
    if not isinstance(found, Mapping):
        return {"failed": True, "msg": "the host did not report on this rank"}
    return host_programs.harmless({name: found[name] for name in _KNOWN if name in found})


def _unreachable(failed: LoginFailure) -> Returned:
    return {"unreachable": True, "msg": failed.text}


def _warnings(found: Mapping[str, Returned]) -> list[str]:
    """Return the warnings of all hosts, each with the hosts that it is about."""
    about: dict[str, list[str]] = {}
    for host, result in found.items():
        warnings = result.get("warnings")
        for text in warnings if isinstance(warnings, list) else ():
            about.setdefault(str(text), []).append(host)
    return [f"{login_failures.names_of(hosts)}: {text}" for text, hosts in about.items()]
