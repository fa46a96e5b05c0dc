"""The ports on which processes of a host listen, as the kernel lists them."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from tests.support.lab import free_port
from train.host import ports, processes


@pytest.fixture(params=["netlink", "/proc"], autouse=True)
def source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make only one of the kernel's two lists available, and return its name."""

    def from_netlink(_: int) -> Iterator[tuple[int, int]]:
        raise OSError(errno.EPROTONOSUPPORT, os.strerror(errno.EPROTONOSUPPORT))

    def from_proc() -> dict[int, set[str]]:
        raise AssertionError("netlink is available")

    try:
        list(ports._from_netlink(socket.AF_INET))
    except OSError:
        if request.param == "netlink":
            pytest.skip("this machine has no netlink for sockets")
    if request.param == "netlink":
        monkeypatch.setattr(ports, "_from_proc", from_proc)
    else:
        monkeypatch.setattr(ports, "_from_netlink", from_netlink)
    return str(request.param)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_who_listens_on_a_port(family: socket.AddressFamily) -> None:
    if family == socket.AF_INET6 and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    address = "127.0.0.1" if family == socket.AF_INET else "::1"
    with socket.create_server((address, 0), family=family) as server:
        port = server.getsockname()[1]
        assert ports.is_listening(port)
        assert not ports.is_free(port)
        said = ports.listener(port)
        assert said.startswith(f"pid {os.getpid()} ({processes.command(os.getpid())[:40]}")
    assert not ports.is_listening(port)
    assert ports.is_free(port)
    assert ports.listener(port) == "a process of another user"


def test_a_port_that_is_bound_without_listening_is_not_free() -> None:
    with socket.socket() as bound:
        bound.bind(("0.0.0.0", 0))
        port = bound.getsockname()[1]
        assert not ports.is_listening(port)
        assert not ports.is_free(port)


def test_all_of_many_listening_sockets_are_listed() -> None:
    """The list needs several messages. Other tests do not get these ports from the kernel."""
    wanted = {free_port() for _ in range(300)}
    with contextlib.ExitStack() as stack:
        for port in wanted:
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
        assert wanted <= ports.listening()


def test_a_connection_is_no_listener() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        assert not ports.is_listening(client.getsockname()[1])


#: Answers of a kernel that does not list its sockets: none, an error, a last message with the error
#: ENOENT, and one that is cut off.
ANSWERS = (
    b"",
    ports._HEADER.pack(20, 2, 0, 1, 0) + ports._CODE.pack(-2),
    ports._HEADER.pack(20, 3, 2, 1, 0) + ports._CODE.pack(-2),
    b"short",
)


@pytest.mark.parametrize("message", ANSWERS)
def test_without_a_list_from_netlink_that_of_proc_is_used(
    message: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = mock.MagicMock()
    kernel.__enter__.return_value.recv.return_value = message
    monkeypatch.undo()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        mock.patch.object(socket, "socket", return_value=kernel),
    ):
        assert ports.is_listening(server.getsockname()[1])
