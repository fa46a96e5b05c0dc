"""The paths between hosts, which are simulated by threads on loopback addresses."""

from __future__ import annotations

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.lab import free_port
from train.gang.doctor import examine
from train.host import links

NAMES = ["a", "b", "c", "d"]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"NO_ANSWER_S": 1.0, "START_S": 1.5, "BUSY_S": 5.0, "STALL_S": 1.0, "BYE_S": 0.1}
    for name, value in limits.items():
        monkeypatch.setattr(links, name, value)


Places = dict[str, tuple[str, int]]


def measure(places: Places, absent: str = "", seen: Places | None = None) -> dict[str, Any]:
    """Measure between hosts; ``seen`` replaces some addresses of the peers of host ``a``."""
    schedule = examine.rounds(NAMES)

    def one(name: str) -> Any:
        peers = {**places, **(seen or {} if name == "a" else {})}
        params = {"name": name, "token": "t", "port": places[name][1], "peers": peers}
        more = {"rounds": schedule[name], "seconds": 0.02, "both": True}
        return links.measure({**params, **more})["links"]

    hosts = [name for name in NAMES if name not in absent]
    with ThreadPoolExecutor(len(hosts)) as pool:
        return dict(zip(hosts, pool.map(one, hosts), strict=True))


@pytest.fixture
def there() -> Places:
    return {name: ("127.0.0.1", free_port()) for name in NAMES}


def test_everyone_measures_everyone(there: Places) -> None:
    found = measure(there)
    for name, of in found.items():
        assert set(of) == set(NAMES) - {name}
        for peer, link in of.items():
            assert link["out"] == "open"
            assert min(link[name] for name in ("sent_mbit", "got_mbit", "both_mbit")) > 0
            assert ("rtt_ms" in link) == (name < peer)
            assert "met" not in link


def test_an_address_of_another_host(there: Places) -> None:
    found = measure(there, seen={"b": there["c"]})
    assert found["a"]["b"]["met"] == "c"
    # The other direction is open, and both measurements use it.
    assert found["b"]["a"]["out"] == "open"
    assert found["a"]["b"]["sent_mbit"] > 0
    assert all("met" not in link for name in "bcd" for link in found[name].values())


def test_a_peer_that_never_comes_and_one_that_is_no_doctor(there: Places) -> None:
    with socket.create_server(("127.0.0.1", there["d"][1])) as stranger:

        def answer() -> None:
            for _ in range(3):
                connection = stranger.accept()[0]
                connection.recv(10)
                connection.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
                connection.close()

        threading.Thread(target=answer, daemon=True).start()
        found = measure(there, absent="cd")
    assert found["a"]["c"] == {"out": "refused"}
    assert found["a"]["d"] == {"out": "open", "met": "a program other than the doctor"}
    assert found["a"]["b"]["sent_mbit"] > 0


def test_a_stranger_learns_nothing(there: Places) -> None:
    about = {"name": "a", "token": "t", "seconds": 0.1, "both": True, "peers": there}
    host = links._Host(about)
    assert host.listen(there["a"][1]) == ""
    for said in (b'{"token": "x", "from": "b", "to": "a"}\n', b"[]\n", b"\n", b"x" * 600):
        with socket.create_connection(there["a"], 5) as connection:
            connection.sendall(said)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(100) == b""
    assert host._waiting == {}
    assert links._Host(about).listen(there["a"][1]), "the port is in use"
