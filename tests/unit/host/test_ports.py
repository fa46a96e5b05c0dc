"""The ports on which processes of a host listen, as the kernel lists them."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import pytest

from tests.support.lab import free_port
from train.host import ports, processes


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
