"""Makes calls on the hosts of a play: one for each machine with all of its ranks, in parallel."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError

from train.gang import connections, host_programs, login_check, login_failures
from train.gang.connections import Args, Returned
from train.gang.errors import UserError
from train.gang.login_failures import LoginFailure

#: Parts of any host's result.
_OF_ANY_HOST = ("failed", "msg", "warnings")
#: Seconds between two checks of logins in progress.
_POLL_S = 0.5
#: Seconds without any answer before the logins of the calls in progress are tested. While answers
#: come, the machines are only busy, and the tests would slow them further.
_TEST_S = 2.0


@dataclass
class Machine:
    """Inventory hosts that one call can serve.

    Attributes:
        beside: all names of the machine in the play.
        requests: the parameters for each inventory host.
        login_since: when its login or a test of it began (monotonic clock); None if none is in
            progress.
        call_since: when the call began, until the login is tested.
        action: an action with a connection to the first host; None until there is one.
    """

    beside: list[str]
    requests: dict[str, Args] = field(default_factory=dict)
    login_since: float | None = None
    call_since: float | None = None
    action: Any = None

    def again(self) -> Machine:
        """Return the same machine for another call, without what is left of this one."""
        return Machine(self.beside, self.requests)

    @property
    def first(self) -> str:
        """The inventory host whose connection is used."""
        return next(iter(self.requests))

    def drop_alike(self) -> dict[str, str]:
        """Keep one host for each request. Return the others, each with the one that was kept."""
        kept: dict[str, str] = {}
        others = {}
        for host, request in list(self.requests.items()):
            first = kept.setdefault(json.dumps(request, sort_keys=True), host)
            if first != host:
                others[host] = first
                del self.requests[host]
        return others

    def each(self, result: Returned) -> dict[str, Returned]:
        """Return a result for each host of the machine."""
        return dict.fromkeys(self.requests, result)


def machines(
    play: connections.Play,
    hosts: Sequence[str],
    beside: Mapping[str, list[str]],
    variable: str,
    failed: dict[str, Returned] | None = None,
) -> list[Machine]:
    """Return the machines of hosts, with the rendered ``variable`` of each host as its request.

    If a template in a host's variables is invalid, raise UserError. With ``failed``, leave out the
    host and add its result there.
    """
    found: dict[tuple[str, ...], Machine] = {}
    for host in hosts:
        try:
            values = play.values(host, variable, *play.names_of_connection_settings(host))
        except UserError as error:
            if failed is None:
                raise
            failed[host] = {"failed": True, "msg": str(error)}
            continue
        request = values.pop(variable)
        # Hosts with the same address may have different keys or interpreters.
        names = beside.get(host, [host])
        key = (names[0], *(f"{name}={value}" for name, value in sorted(values.items())))
        found.setdefault(key, Machine(list(names))).requests[host] = request
    return list(found.values())


#: Makes the call of a machine that has an action, and returns the result of each host.
Call = Callable[[Machine], Mapping[str, Returned]]


def call(
    play: connections.Play, machine: Machine, request: Args, known: Sequence[str]
) -> dict[str, Returned]:
    """Run a program of train/host/calls.py for all hosts of a machine; return their results.

    The program gets the parameters of each host as ``hosts``, and returns ``hosts``, the result for
    each. Of these, only ``known`` fields and those of any host are kept.
    """
    python = play.interpreter_of(machine.first)
    command = host_programs.command_of(python, {**request, "hosts": machine.requests})
    answer = host_programs.ask(machine.action, *command)
    value = answer.value or {}
    found = value.get("hosts")
    if not isinstance(found, Mapping):
        if value.get("failed") and "msg" in value:
            return machine.each(_result(value, _OF_ANY_HOST))
        if not answer.ran:
            connection = machine.action._connection
            return machine.each(_unreachable(login_check.without_command(answer.text, connection)))
        return machine.each(login_check.without_result(machine.action, answer))
    kept = (*_OF_ANY_HOST, *known)
    return {host: _result(found.get(host), kept) for host in machine.requests}


def _result(found: Any, kept: Sequence[str]) -> Returned:
    """Return the harmless parts of a host's result."""
    if not isinstance(found, Mapping):
        return {"failed": True, "msg": "the host did not report on this rank"}
    return host_programs.harmless({name: found[name] for name in kept if name in found})


class MachineCalls:
    """Calls of several machines, each in a thread.

    Args:
        purpose: of the connections.
        call: is called for each machine.
        logs_in: whether to log in first, so that a login that fails or hangs is explained in time.
    """

    def __init__(
        self,
        play: connections.Play,
        machines: Sequence[Machine],
        purpose: str,
        call: Call,
        logs_in: bool = False,
    ) -> None:
        self._play, self._machines, self._purpose = play, machines, purpose
        self._call, self._logs_in = call, logs_in
        self._ended: queue.Queue[tuple[Machine, Mapping[str, Returned]]] = queue.Queue()
        self._named: set[str] = set()
        self._answered_at = 0.0  # when the last machine answered

    def results(self) -> dict[str, Returned]:
        """Return the result of each host. A login that takes too long counts as failed."""
        connections.allow_many_connections()
        for machine in self._machines:
            threading.Thread(target=self._work, args=(machine,), daemon=True).start()
        results: dict[str, Returned] = {}
        pending = list(self._machines)
        while pending:
            try:
                machine, found = self._ended.get(timeout=_POLL_S)
            except queue.Empty:
                for machine, failed in self._hanging(pending):
                    results |= machine.each(_unreachable(failed))
                    pending.remove(machine)
                continue
            self._answered_at = time.monotonic()
            if machine in pending:
                results |= found
                pending.remove(machine)
        if any(machine.login_since is not None for machine in self._machines):
            login_check.end_children()
        # In the order of the machines, not in that of their answers.
        return {host: results[host] for machine in self._machines for host in machine.requests}

    def _hanging(self, pending: Sequence[Machine]) -> list[tuple[Machine, LoginFailure]]:
        """Return the machines whose login takes too long. Name those that take long."""
        now, slow, hanging = time.monotonic(), [], []
        for machine in pending:
            called = machine.call_since
            if called is not None and now - max(called, self._answered_at) >= _TEST_S:
                machine.call_since = None
                threading.Thread(target=self._test, args=(machine,), daemon=True).start()
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

    def _work(self, machine: Machine) -> None:
        """Make the call of a machine. Runs in a thread, whose errors become results."""
        try:
            found = self._found(machine)
        except Exception as error:
            failed: Returned = {"failed": True, "msg": str(error) or repr(error)}
            if isinstance(error, AnsibleConnectionFailure) and machine.action is not None:
                failed = _unreachable(login_check.explain(str(error), machine.action._connection))
            found = machine.each(failed)
        self._ended.put((machine, found))

    def _found(self, machine: Machine) -> Mapping[str, Returned]:
        host = machine.first
        action = machine.action = self._play.action_of(host, self._purpose)
        if self._logs_in and login_check.needs_login(action._connection):
            failed = None
            with login_check.turn(action._connection, host), _logging_in(machine):
                try:
                    is_new = login_check.is_new(action._connection)
                except AnsibleError as error:
                    failed = login_check.explain(str(error), action._connection)
                else:
                    failed = None if is_new else login_check.attempt(action)
            if failed is not None:
                return machine.each(_unreachable(failed))
            if is_new:  # the call shows whether it runs commands
                machine.call_since = time.monotonic()
        return self._call(machine)

    def _test(self, machine: Machine) -> None:
        """Test whether a machine's login runs commands, or hangs, while its call has no answer."""
        with contextlib.suppress(Exception):  # the call reports errors
            action = self._play.action_of(machine.first, f"{self._purpose}-login")
            with login_check.turn(action._connection, machine.first), _logging_in(machine):
                login_check.attempt(action)


@contextlib.contextmanager
def _logging_in(machine: Machine) -> Iterator[None]:
    """Limit the duration of a block that logs in to a machine; see MachineCalls.results."""
    machine.login_since = time.monotonic()
    try:
        yield
    finally:
        machine.login_since = None


def ask(
    play: connections.Play,
    machines: Sequence[Machine],
    request: Args,
    known: Sequence[str],
    purpose: str,
) -> dict[str, Returned]:
    """Log in to machines and run a program of train/host/calls.py there, see ``call``.

    Return the result of each host.
    """
    shared = {**request, "names": play.hosts, "check": play.check_mode}

    def ask_one(machine: Machine) -> dict[str, Returned]:
        return call(play, machine, {**shared, "beside": machine.beside}, known)

    return MachineCalls(play, machines, purpose, ask_one, logs_in=True).results()


def _unreachable(failed: LoginFailure) -> Returned:
    return {"unreachable": True, "msg": failed.text}


def warnings(found: Mapping[str, Returned]) -> list[str]:
    """Return the warnings of all hosts, each with the hosts that it is about."""
    about: dict[str, list[str]] = {}
    for host, result in found.items():
        lines = result.get("warnings")
        for text in lines if isinstance(lines, list) else ():
            about.setdefault(str(text), []).append(host)
    return [f"{login_failures.names_of(hosts)}: {text}" for text, hosts in about.items()]
