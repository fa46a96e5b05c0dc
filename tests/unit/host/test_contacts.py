"""The contacts of a rank that makes steps with the others of its gang."""

from __future__ import annotations

import functools
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from unittest import mock

import pytest

from train.host import contacts, ports, processes, sockets

#: Connects to a port of this machine and stays there.
CONNECT = (
    "import socket, sys\n"
    "held = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
    "print(flush=True)\n"
    "sys.stdin.read()\n"
)


def config(*places: str, index: int = 0) -> dict[str, object]:
    return {"cluster": {"worker": list(places)}, "task": {"type": "worker", "index": index}}


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


@pytest.fixture
def peer(server: socket.socket) -> Iterator[int]:
    """Yield the pid of another process, which is connected to the server."""
    words = [sys.executable, "-c", CONNECT, "127.0.0.1", str(server.getsockname()[1])]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child.pid
        child.kill()


def observed(
    made: contacts.Contacts, pids: set[int], seconds: float = 20.0, makes_steps: bool = True
) -> float:
    """Observe a rank for some seconds, and return for how long it was alone.

    The kernel's tables are read only once, because they do not change and reading them is slow.
    """
    now = 100.0
    with (
        mock.patch.object(sockets, "listed", functools.cache(sockets.listed)),
        mock.patch.object(ports, "is_listening", functools.cache(ports.is_listening)),
    ):
        while now <= 100.0 + seconds:
            if made.due(now, makes_steps):
                made.observe(pids, lambda: pids, now, makes_steps)
                processes.wait_until(lambda: made._addresses is not None, 5.0)
            now += 0.5
    return made.seconds_alone(now)


def test_a_rank_without_a_connection_is_alone(server: socket.socket) -> None:
    port = server.getsockname()[1]
    places = (f"127.0.0.1:{port}", "127.0.0.1:1")
    assert observed(contacts.Contacts(1, config(*places, index=1)), {os.getpid()}) >= 20
    # A rank that listens may exchange data rarely, unless it has loaded TensorFlow.
    assert observed(contacts.Contacts(port, config(*places)), {os.getpid()}, seconds=9) == 0
    assert observed(contacts.Contacts(port, config(*places)), {os.getpid()}) >= 20
    assert observed(contacts.Contacts(1, config(*places)), {os.getpid()}, seconds=1) == 0


def test_tensorflow_keeps_connections(
    server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = server.getsockname()[1]
    monkeypatch.setattr(contacts, "_has_tensorflow", lambda pids: True)
    made = contacts.Contacts(port, config(f"127.0.0.1:{port}", "127.0.0.1:1"))
    assert observed(made, {os.getpid()}, seconds=5) >= 5


def test_a_rank_of_tensorflow_without_known_steps(
    server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = server.getsockname()[1]
    gang = config(f"127.0.0.1:{port}", "127.0.0.1:1")
    for has_tensorflow, own, seconds, expected in (
        (True, port, 20, True),
        (True, port, 5, False),
        (True, 1, 20, False),
        (False, port, 20, False),
    ):
        monkeypatch.setattr(contacts, "_has_tensorflow", lambda pids, has=has_tensorflow: has)
        made = contacts.Contacts(own, gang)
        assert observed(made, {os.getpid()}, seconds, makes_steps=False) == 0
        assert made.ended_without_any() is expected
    # A rank that ended soon after its first steps, and never opened its port, was alone.
    for has_tensorflow, own, expected in ((True, 1, True), (True, port, False), (False, 1, False)):
        monkeypatch.setattr(contacts, "_has_tensorflow", lambda pids, has=has_tensorflow: has)
        made = contacts.Contacts(own, gang)
        assert observed(made, {os.getpid()}, seconds=0.5) == 0
        assert made.ended_without_any() is expected
    # Steps that begin late count from their beginning.
    made = contacts.Contacts(port, gang)
    observed(made, {os.getpid()}, 80, makes_steps=False)
    assert made.due(180.1, makes_steps=True)
    made.observe((), lambda: {os.getpid()}, 180.1, makes_steps=True)
    assert made.seconds_alone(190.0) == 0


def test_a_rank_that_waits_for_others_is_observed_often(
    server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contacts, "_has_tensorflow", lambda pids: True)
    port = server.getsockname()[1]
    made = contacts.Contacts(port, config(f"127.0.0.1:{port}", "127.0.0.1:1"))
    observed(made, {os.getpid()}, 80, makes_steps=False)
    assert made.due(180.5, makes_steps=False)
    observed(made, {os.getpid()}, 80)
    assert not made.due(181.0, makes_steps=True)


def test_a_connection_that_was_closed_just_now_counts_without_tensorflow(
    server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = server.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)):
        server.accept()[0].close()
    for own, place in ((port, 0), (1, 1)):
        gang = config(f"127.0.0.1:{port}", "127.0.0.1:1", index=place)
        assert observed(contacts.Contacts(own, gang), {os.getpid()}) == 0
    monkeypatch.setattr(contacts, "_has_tensorflow", lambda pids: True)
    assert observed(contacts.Contacts(port, gang), {os.getpid()}) >= 20


def test_a_connection_to_the_own_port_counts_from_any_address(
    server: socket.socket, peer: int
) -> None:
    port = server.getsockname()[1]
    with server.accept()[0]:
        gang = config(f"127.0.0.1:{port}", "192.0.2.1:1")
        assert observed(contacts.Contacts(port, gang), {os.getpid()}) == 0
        assert observed(contacts.Contacts(port, gang), {os.getpid(), peer}) >= 20


def test_both_ends_of_a_connection_are_contacts(server: socket.socket, peer: int) -> None:
    with server.accept()[0]:
        for pid in (os.getpid(), peer):
            made = contacts.Contacts(1, config("127.0.0.1:7", "127.0.0.1:8"))
            assert observed(made, {pid}) == 0
            assert not made.due(1000.0, True)


def test_a_connection_to_itself_is_none(server: socket.socket, peer: int) -> None:
    with server.accept()[0]:
        made = contacts.Contacts(1, config("127.0.0.1:7", "127.0.0.1:8"))
        assert observed(made, {os.getpid(), peer}) >= 20


def test_the_processes_are_listed_again_only_for_new_connections(
    server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = contacts.Contacts(1, config("127.0.0.1:7", "127.0.0.1:8"))
    pids = mock.Mock(return_value=set())
    place, listed = server.getsockname(), sockets.listed

    def own(*states: int) -> list[sockets.TcpSocket]:  # other tests have connections as well
        return [one for one in listed(*states) if place[1] in (one.local_port, one.remote_port)]

    monkeypatch.setattr(sockets, "listed", own)

    def listed_after(now: float) -> int:
        made.observe((), pids, now, makes_steps=True)
        processes.wait_until(lambda: made._addresses is not None, 5.0)
        return pids.call_count

    assert listed_after(0.0) == 0
    with socket.create_connection(place), server.accept()[0]:
        assert listed_after(1.0) == 1
        assert listed_after(2.0) == 1
        with socket.create_connection(place), server.accept()[0]:
            assert listed_after(3.0) == 2


def test_the_interval_grows_with_the_time_since_the_first_observation() -> None:
    made, times, now = contacts.Contacts(1, config("127.0.0.1:7", "127.0.0.1:8")), [], 0.0
    with mock.patch.object(sockets, "listed", return_value=[]):
        while now < 200:
            if made.due(now, makes_steps=True):
                times.append(now)
                made.observe((), set, now, makes_steps=True)
                processes.wait_until(lambda: made._addresses is not None, 5.0)
            now += 0.5
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.5, 5.0)
    assert sum(time <= 10 for time in times) >= 10


def test_ranks_that_need_no_contact() -> None:
    assert not contacts.Contacts(None, config("a:1", "b:1")).due(1.0, True)
    assert not contacts.Contacts(1, config("a:1")).due(1.0, True)
    assert not contacts.Contacts(1, {}).due(1.0, True)


def test_addresses_of_hosts() -> None:
    assert contacts.addresses_of(["10.0.0.2", "::1"]) == {bytes([10, 0, 0, 2]), bytes(15) + b"\1"}
