"""Measures the network paths between this host and others, in rounds of disjoint pairs.

All hosts know the same schedule. In each round, a host has one peer or none. Both hosts of a pair
connect to each other's port, so that each direction is tested. Each direction is measured on the
connection to the receiver. A host that is still busy with its previous round makes its peer wait,
so the hosts need no common clock. Received bytes are counted and discarded. A connection that does
not begin with the run's token is closed.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import statistics
import struct
import threading
import time
from typing import Any, Dict, List, Mapping, Optional, Tuple, TypedDict

from . import processes
from .call_types import CallResult, Params
from .probe import REFUSED, connect

#: Time limits in seconds: for a connection; for a peer that does not answer, for one that may not
#: have begun yet, and for one that is busy with its previous round; for the next bytes; for a
#: connection that the peer has reported; for a round without a peer; for all bytes of a peer.
CONNECT_S, NO_ANSWER_S, START_S, BUSY_S, STALL_S, MEET_S = 2.0, 4.0, 15.0, 40.0, 4.0, 0.3
BYE_S, RECEIVE_S = 0.5, 15.0
_BLOCK = 65_536
#: Maximum number of round trips, and the milliseconds after which only one more is made.
_PINGS, _PINGS_MS = 15, 500.0
#: Size of the send buffer in bytes: more would take long on a slow path.
_UNSENT = 512 * 1024


class Link(TypedDict, total=False):
    """The results for the path to a peer. Fields that were not measured are absent."""

    out: str  # result of a connection to the peer's port, see probe.py
    met: str  # the host that answered there, if not the peer
    local: str  # the local address of the connection
    rtt_ms: float  # the median round-trip time
    least_rtt_ms: float
    sent_mbit: float  # Mbit/s to the peer; 0 if only small packets arrive
    got_mbit: float  # Mbit/s from the peer
    both_mbit: float  # Mbit/s to the peer while the peer sends, too
    resent: float  # the share of retransmitted segments to the peer
    mtu: int  # bytes of a packet on the path, as the kernel knows it
    waited: float  # the share of the time in which this host had no free core


class _Host:
    def __init__(self, params: Params) -> None:
        self.name, self.token = str(params["name"]), str(params["token"])
        self.seconds, self.both = float(params["seconds"]), bool(params["both"])
        self.peers: Mapping[str, Tuple[str, int]] = params["peers"]
        self._began = time.monotonic()
        self._waiting: Dict[str, socket.socket] = {}
        self._arrived = threading.Condition()

    def listen(self, port: int) -> str:
        """Accept connections in the background; return an error, or an empty string."""
        try:
            both = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if both else socket.AF_INET
            server = socket.create_server(
                ("", port), family=family, backlog=128, dualstack_ipv6=both
            )
        except OSError as error:
            return str(error.strerror)
        threading.Thread(target=self._accept, args=(server,), daemon=True).start()
        return ""

    def _accept(self, server: socket.socket) -> None:
        while True:
            connection = server.accept()[0]
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        """Keep a connection for its round if it belongs to this run and this host."""
        with contextlib.suppress(OSError, ValueError):
            connection.settimeout(CONNECT_S)
            asked = _read_line(connection)
            if asked.get("token") == self.token:
                _send_line(connection, {"name": self.name})
                if asked.get("to") == self.name:
                    with self._arrived:
                        self._waiting[str(asked.get("from"))] = connection
                        self._arrived.notify_all()
                    return
        connection.close()

    def _call(self, peer: str) -> Tuple[Link, Optional[socket.socket]]:
        """Connect to a peer, which may not have begun yet; return results and the connection."""
        address, port = self.peers[peer]
        while True:
            result, connection = connect(address, port, CONNECT_S)
            if result != REFUSED or time.monotonic() > self._began + START_S:
                break
            time.sleep(0.2)
        found: Link = {"out": result}
        if connection is None:
            return found, None
        met = "a program other than the doctor"
        with contextlib.suppress(OSError, ValueError):
            _send_line(connection, {"token": self.token, "from": self.name, "to": peer})
            met = str(_read_line(connection).get("name"))
        if met != peer:
            connection.close()
            return {"out": result, "met": met}, None
        return found, connection

    def _wait(self, peer: str, seconds: float) -> Optional[socket.socket]:
        """Return the connection of a peer, or None if it does not connect in time."""
        with self._arrived:
            self._arrived.wait_for(lambda: peer in self._waiting, seconds)
            return self._waiting.get(peer)

    def round(self, peer: str) -> Link:
        """Measure the path to a peer in one round. The host whose name sorts first leads."""
        link, outgoing = self._call(peer)
        first = time.monotonic() < self._began + START_S
        limit = START_S if first and outgoing is None else NO_ANSWER_S
        # The peer may be another program that sends arbitrary data.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            if self.name < peer:
                used = outgoing or self._wait(peer, limit)
                if used is not None:
                    self._lead(peer, used, link)
            else:
                used = self._spoken_to(peer, outgoing, BUSY_S if outgoing is not None else limit)
                if used is not None:
                    self._follow(used, outgoing or used, link)
        for connection in (outgoing, self._waiting.pop(peer, None)):
            if connection is not None:
                connection.close()
        return link

    def _spoken_to(
        self, peer: str, own: Optional[socket.socket], seconds: float
    ) -> Optional[socket.socket]:
        """Return the connection on which the leading peer sends first, or None.

        That is ``own``, which this host opened, or the connection that the peer opened.
        """
        began = time.monotonic()
        while True:
            theirs = self._wait(peer, 0.1 if own is not None else seconds)
            end = began + (seconds if theirs is None else BUSY_S)
            open_ones = [connection for connection in (theirs, own) if connection is not None]
            ready = select.select(open_ones, [], [], 0.1)[0]
            if ready or time.monotonic() > end:
                return ready[0] if ready else None

    def _lead(self, peer: str, out: socket.socket, found: Link) -> None:
        out.settimeout(BUSY_S)
        _send_line(out, {"go": True})
        _read_line(out)  # the peer is also in this round
        theirs = self._wait(peer, MEET_S)
        _send_line(out, {"back": theirs is not None})
        out.settimeout(STALL_S)
        times: List[float] = []
        last = False
        while not last:
            began = time.monotonic()
            last = len(times) == _PINGS - 1 or sum(times) > _PINGS_MS
            out.sendall(b"\0" if last else b"\1")
            _read(out)
            times.append(1e3 * (time.monotonic() - began))
        found["rtt_ms"] = round(statistics.median_high(times), 3)
        found["least_rtt_ms"] = round(min(times), 3)
        self._transfer(out, theirs or out, found, sends_first=True)

    def _follow(self, theirs: socket.socket, own: socket.socket, found: Link) -> None:
        theirs.settimeout(STALL_S)
        _read_line(theirs)
        _send_line(theirs, {"here": True})
        back = own if _read_line(theirs)["back"] else theirs
        for _ in range(_PINGS):
            ping = _read(theirs)
            theirs.sendall(ping)
            if ping == b"\0":
                break
        self._transfer(back, theirs, found, sends_first=False)

    def _transfer(
        self, out: socket.socket, back: socket.socket, found: Link, sends_first: bool
    ) -> None:
        """Measure both directions, each on the connection that its sender opened if possible."""
        out.settimeout(STALL_S)
        back.settimeout(STALL_S)
        found["local"] = str(out.getsockname()[0]).replace("::ffff:", "")
        began, waited = time.monotonic(), processes.waited("thread-self")
        for sends in (sends_first, not sends_first):
            if sends:
                self._send_counted(out, found)
            else:
                found["got_mbit"] = _receive(back)
                _send_line(back, {"got": found["got_mbit"]})
        waited = processes.waited("thread-self") - waited
        found["waited"] = round(waited / (time.monotonic() - began), 3)
        if self.both:
            counted: List[float] = []
            reader = threading.Thread(target=_append, args=(counted, back), daemon=True)
            reader.start()
            _send(out, self.seconds)
            reader.join(2 * STALL_S)
            # Each host sends its result.
            _send_line(back, {"got": counted[0] if counted else 0.0})
            found["both_mbit"] = _got(out)

    def _send_counted(self, out: socket.socket, found: Link) -> None:
        before, began = _counts(out), time.monotonic()
        try:
            _send(out, self.seconds)
            found["sent_mbit"] = _got(out)
        except OSError:
            # Full packets arrive slowly, or not at all.
            arrived = _counts(out)["acked"] - before["acked"]
            rate = 8e-6 * arrived / (time.monotonic() - began)
            found["sent_mbit"] = round(rate, 3) if arrived > _BLOCK else 0.0
            raise
        finally:
            after = _counts(out)
            found["mtu"] = after["mtu"]
            resent, sent = (after[name] - before[name] for name in ("resent", "sent"))
            found["resent"] = round(resent / max(1, sent), 4)


def _append(counted: List[float], connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        counted.append(_receive(connection))


def _send_line(connection: socket.socket, value: Mapping[str, Any]) -> None:
    connection.sendall(json.dumps(value).encode() + b"\n")


def _read_line(connection: socket.socket) -> Dict[str, Any]:
    """Read a short line of JSON, without any bytes after it."""
    line = b""
    while not line.endswith(b"\n") and len(line) < 500:
        line += _read(connection)
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError("no object")
    return value


def _read(connection: socket.socket) -> bytes:
    byte = connection.recv(1)
    if not byte:
        raise ConnectionError("the peer closed the connection")
    return byte


def _send(connection: socket.socket, seconds: float) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNSENT)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end = time.monotonic() + seconds
    more, last = b"\1" + bytes(_BLOCK - 1), bytes(_BLOCK)
    while time.monotonic() < end:
        connection.sendall(more)
    connection.sendall(last)


def _got(connection: socket.socket) -> float:
    """Return the rate in Mbit/s that the peer reports. Raise ValueError if it is not a rate."""
    rate = _read_line(connection)["got"]
    if not isinstance(rate, (int, float)) or not 0 <= rate < 1e9:
        raise ValueError("no rate")
    return float(rate)


def _receive(connection: socket.socket) -> float:
    """Receive blocks up to the first one that begins with 0; return the rate in Mbit/s."""
    received, block = 0, memoryview(bytearray(_BLOCK))
    began = time.monotonic()
    while received == 0 or received % _BLOCK or block[0]:
        count = connection.recv_into(block[received % _BLOCK :])
        if not count:
            raise ConnectionError("the peer closed the connection")
        received += count
        if time.monotonic() > began + RECEIVE_S:
            raise TimeoutError("the peer did not finish")
    return round(8e-6 * received / max(1e-6, time.monotonic() - began), 2)


def _counts(connection: socket.socket) -> Dict[str, int]:
    """Return values of the kernel's struct tcp_info; 0 if this kernel lacks them.

    They are the numbers of segments ``sent`` and ``resent``, of bytes ``acked``, and the path's
    ``mtu``.
    """
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
    places = {"resent": ("I", 100), "sent": ("I", 136), "mtu": ("I", 60), "acked": ("Q", 120)}
    if len(info) < 140:
        return dict.fromkeys(places, 0)
    return {name: struct.unpack_from(kind, info, at)[0] for name, (kind, at) in places.items()}


def measure(params: Params) -> CallResult:
    """Measure the paths to this host's peers and return ``links`` by peer, see ``Link``.

    Args:
        params: ``name`` of this host; ``token`` of the run; ``port`` to listen on; ``peers``,
            the address and port of each by name; ``rounds``, the peer of each round or None;
            ``seconds`` of each transfer; ``both``, whether to measure also while both hosts send.
    """
    host = _Host(params)
    listen_error = host.listen(int(params["port"]))
    links = {}
    for peer in params["rounds"]:
        if peer is not None:
            links[peer] = host.round(peer)
        else:
            time.sleep(BYE_S)  # others are in a round, and one may connect here by mistake
    return {"links": links, "listen_error": listen_error}
