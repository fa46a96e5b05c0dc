"""The TCP sockets of a host, as the kernel lists them."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from train.host import processes, sockets


def has_netlink() -> bool:
    try:
        list(sockets._from_netlink(socket.AF_INET, (sockets.LISTEN,)))
    except OSError:
        return False
    return True


@pytest.fixture(params=["netlink", "/proc"])
def source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make only one of the kernel's two lists available, and return its name."""

    def from_netlink(_: int, __: object) -> Iterator[sockets.TcpSocket]:
        raise OSError(errno.EPROTONOSUPPORT, os.strerror(errno.EPROTONOSUPPORT))

    def from_proc(_: object) -> list[sockets.TcpSocket]:
        raise AssertionError("netlink is available")

    if request.param == "netlink" and not has_netlink():
        pytest.skip("this machine has no netlink for sockets")
    if request.param == "netlink":
        monkeypatch.setattr(sockets, "_from_proc", from_proc)
    else:
        monkeypatch.setattr(sockets, "_from_netlink", from_netlink)
    return str(request.param)


def of_port(port: int, *states: int) -> list[sockets.TcpSocket]:
    return [one for one in sockets.listed(*states) if port in (one.local_port, one.remote_port)]


@pytest.mark.parametrize(
    ("address", "packed"),
    [
        ("127.0.0.1", bytes([127, 0, 0, 1])),
        ("::1", bytes(15) + b"\1"),
        ("::ffff:127.0.0.1", bytes([127, 0, 0, 1])),
    ],
)
@pytest.mark.usefixtures("source")
def test_both_ends_of_a_connection_until_it_is_closed(address: str, packed: bytes) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    if family == socket.AF_INET6 and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    mapped = address.startswith("::ffff:")
    place = ("::" if mapped else address, 0)
    with socket.create_server(place, family=family, dualstack_ipv6=mapped) as server:
        port = server.getsockname()[1]
        with socket.create_connection((address, port)) as client:
            end, _ = server.accept()
            inodes = [os.stat(f"/proc/self/fd/{one.fileno()}").st_ino for one in (client, end)]
            own = client.getsockname()[1]
            assert sorted(of_port(port, sockets.ESTABLISHED)) == sorted(
                sockets.TcpSocket(sockets.ESTABLISHED, packed, here, packed, there, str(inode))
                for here, there, inode in ((own, port, inodes[0]), (port, own, inodes[1]))
            )
            (listening,) = of_port(port, sockets.LISTEN)
            assert (listening.state, listening.local_port) == (sockets.LISTEN, port)
            assert len(of_port(port, sockets.ESTABLISHED, sockets.LISTEN)) == 3
            assert not of_port(port, *sockets.CLOSING)
        end.close()
        (closed,) = of_port(port, *sockets.CLOSING)
        assert (closed.remote, closed.remote_port, closed.inode) == (packed, port, "0")
        assert not of_port(port, sockets.ESTABLISHED)


#: Answers of a kernel that does not list its sockets: none, an error, a last message with the error
#: ENOENT, and one that is cut off.
ANSWERS = (
    b"",
    sockets._HEADER.pack(20, 2, 0, 1, 0) + sockets._CODE.pack(-2),
    sockets._HEADER.pack(20, 3, 2, 1, 0) + sockets._CODE.pack(-2),
    b"short",
)


@pytest.mark.parametrize("message", ANSWERS)
def test_without_a_list_from_netlink_that_of_proc_is_used(message: bytes) -> None:
    kernel = mock.MagicMock()
    kernel.__enter__.return_value.recv.return_value = message
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        mock.patch.object(socket, "socket", return_value=kernel),
    ):
        assert of_port(server.getsockname()[1], sockets.LISTEN)


def test_the_kernels_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net/tcp").write_text("head\n 0: 0100007F:1F90 0200000A:0050 01 0 0 0 0 0 77 1\n")
    mapped = "0000000000000000FFFF00000200000A"
    (tmp_path / "net/tcp6").write_text(f"head\n 0: {mapped}:0001 {mapped}:0002 01 0 0 0 0 0 78 1\n")
    monkeypatch.setattr(processes, "PROC", str(tmp_path))
    four, six = sockets._from_proc([sockets.ESTABLISHED])
    assert (four.local, four.local_port) == (bytes([127, 0, 0, 1]), 8080)
    assert (four.remote, four.inode) == (bytes([10, 0, 0, 2]), "77")
    assert six.local == six.remote == bytes([10, 0, 0, 2])
