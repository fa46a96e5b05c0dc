"""A host's check of its rank's connections, train/host/probe.py."""

from __future__ import annotations

import socket

import pytest

from train.host import probe, ranks


@pytest.mark.parametrize("ends", [False, True])
def test_a_rank_that_ends_while_its_host_looks_does_not_listen(
    monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    peers = {"worker-0": ("127.0.0.1", port)}
    monkeypatch.setattr(ranks, "observe", lambda _: {"task": "worker-0", "port": port, "pid": None})

    def reach(*_: object) -> dict[str, str]:
        if ends:
            server.close()
        return {"worker-0": probe.OPEN}

    monkeypatch.setattr(probe, "reach", reach)
    found = probe.check("", peers, 1.0)
    server.close()
    assert found["listening"] is not ends
    assert found["own"]


def test_what_connections_come_to() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        peers = {
            "open": ("127.0.0.1", server.getsockname()[1]),
            "refused": ("127.0.0.1", closed.getsockname()[1]),
            "unresolvable": ("nowhere.invalid", 1),
        }
        found = probe.reach(peers, 2.0)
    assert found == {name: name for name in peers}


def test_connections_are_tried_for_real() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        peers = {
            "worker-0": ("127.0.0.1", server.getsockname()[1]),
            "worker-1": ("127.0.0.1", bound.getsockname()[1]),
            "worker-2": ("no.such.host.invalid", 1),
        }
        found = probe.reach(peers, 2.0)
    assert found == {"worker-0": "open", "worker-1": "refused", "worker-2": "unresolvable"}


def test_addresses_of_this_host() -> None:
    assert probe.is_own("127.0.0.1")
    assert not probe.is_own("192.0.2.7")
    # An interface may vanish meanwhile, such as the network of another test's containers.
    for address in probe.own_addresses():
        assert probe.is_own(address) or address not in probe.own_addresses()
