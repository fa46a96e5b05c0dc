"""Connections made of raw packets, in forms that a firewall may fail to recognize.

``python -m tests.support.packets``, in a network namespace whose kernel does not own the source
address: it would answer the target's packets itself. Prints how the target answered.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

ICMPV6, TCP, UDP, FRAGMENT, HOP_BY_HOP, ROUTING, OPTIONS = 58, 6, 17, 44, 0, 43, 60
FIN, SYN, RST, PSH, ACK, URG, ECE, CWR = (1 << place for place in range(8))
#: Answers of the target to the packet that opens a connection.
OPEN, REFUSED, UNANSWERED = "open", "refused", "unanswered"
_IDENTIFICATION = int.from_bytes(os.urandom(2), "big")
_SKIPPED_OPTION = 0x1E
_PART = 1400  # bytes of a fragment: a multiple of eight


@dataclass(frozen=True)
class Path:
    """The ends of a connection: addresses of one family, ports, and addresses for Ethernet."""

    interface: str
    ethernet: bytes
    source: str
    target: str
    source_port: int
    target_port: int

    @property
    def is_v6(self) -> bool:
        return ":" in self.source

    @property
    def addresses(self) -> bytes:
        return b"".join(ipaddress.ip_address(text).packed for text in (self.source, self.target))


def checksum(data: bytes) -> int:
    words = struct.unpack(f"!{len(data) // 2 + len(data) % 2}H", data + b"\0" * (len(data) % 2))
    total: int = sum(words)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def segment(path: Path, flags: int, number: int, ack: int, data: bytes = b"") -> bytes:
    """Return a TCP segment."""
    ports = path.source_port, path.target_port
    header = struct.pack("!HHIIBBHHH", *ports, number, ack, 5 << 4, flags, 64_000, 0, 0)
    pseudo = path.addresses + struct.pack("!II", len(header + data), TCP)
    return header[:16] + struct.pack("!H", checksum(pseudo + header + data)) + header[18:] + data


def packet(path: Path, payload: bytes, header: int = TCP, offset: int = 0, more: int = 0) -> bytes:
    """Return an IP packet; ``header`` is the number of the payload's first header.

    ``offset`` and ``more`` (fragments follow) are for IPv4: IPv6 has a separate header for them.
    """
    if path.is_v6:
        return struct.pack("!IHBB", 6 << 28, len(payload), header, 64) + path.addresses + payload
    options = b"\x01" * 4 if header == OPTIONS else b""  # four times "no operation"
    words = 5 + len(options) // 4
    length, place = 4 * words + len(payload), more << 13 | offset >> 3
    fields = (4 << 4 | words, 0, length, _IDENTIFICATION, place, 64, TCP, 0)
    start = struct.pack("!BBHHHBBH", *fields)
    total = checksum(start + path.addresses + options)
    return start[:10] + struct.pack("!H", total) + path.addresses + options + payload


def options(following: int, size: int = 8) -> bytes:
    """Return an options header that hosts ignore.

    Linux rejects long padding, and more than eight options in a header.
    """
    rest, skipped = size - 2, b""
    while rest:
        length = rest if rest <= 257 else min(257, rest - 2)
        skipped += struct.pack("BB", _SKIPPED_OPTION, length - 2) + bytes(length - 2)
        rest -= length
    return struct.pack("BB", following, size // 8 - 1) + skipped


def routing(following: int) -> bytes:
    """Return a routing header of an experimental type, with no segments left."""
    return struct.pack("BBBBI", following, 0, 253, 0, 0)


def fragments(
    path: Path, payload: bytes, following: int, *ends: int, later: int | None = None
) -> list[bytes]:
    """Return the packets of a payload that is split at ``ends``.

    Args:
        following: number of the payload's first header.
        later: the number in all fragments but the first, if it differs.
    """
    packets = []
    for start, end in zip((0, *ends), (*ends, len(payload)), strict=True):
        more = int(end < len(payload))
        if path.is_v6:
            number = following if start == 0 or later is None else later
            header = struct.pack("!BBHI", number, 0, start | more, _IDENTIFICATION)
            packets.append(packet(path, header + payload[start:end], FRAGMENT))
        else:
            packets.append(packet(path, payload[start:end], TCP, start, more))
    return packets


# Deliveries: ways to send the segment that opens a connection.


def plain(path: Path, tcp: bytes) -> list[bytes]:
    return [packet(path, tcp)]


def within_options(path: Path, tcp: bytes) -> list[bytes]:
    """Split an options header: the first fragment has no TCP header."""
    return fragments(path, options(TCP, 16) + tcp, OPTIONS, 8)


def between_options(path: Path, tcp: bytes) -> list[bytes]:
    """Split between two options headers: nothing in the first fragment names TCP."""
    return fragments(path, options(OPTIONS) + options(TCP) + tcp, OPTIONS, 8)


def backwards(path: Path, tcp: bytes) -> list[bytes]:
    return between_options(path, tcp)[::-1]


def routing_header(path: Path, tcp: bytes) -> list[bytes]:
    """Split after a routing header with no segments left, which names another header."""
    return fragments(path, routing(OPTIONS) + options(TCP) + tcp, ROUTING, 8)


def twice(path: Path, tcp: bytes) -> list[bytes]:
    """Nest fragments in fragments."""
    inner = fragments(path, options(OPTIONS) + options(TCP) + tcp, OPTIONS, 8)
    return [part for one in inner for part in fragments(path, one[40:], FRAGMENT, 8)]


def other_protocol_later(path: Path, tcp: bytes) -> list[bytes]:
    """Name UDP, which is not checked, in all fragments but the first."""
    return fragments(path, options(OPTIONS) + options(TCP) + tcp, OPTIONS, 8, later=UDP)


def other_protocol_first(path: Path, tcp: bytes) -> list[bytes]:
    """Name UDP in the first fragment, and TCP in the others."""
    return fragments(path, tcp, UDP, 8, later=TCP)


def within_tcp(path: Path, tcp: bytes) -> list[bytes]:
    """Split the TCP header after the ports: the flags are in the second fragment."""
    return fragments(path, tcp, TCP, 8)


def within_tcp_behind_options(path: Path, tcp: bytes) -> list[bytes]:
    return fragments(path, options(TCP) + tcp, OPTIONS, 16)


def overlapping(path: Path, tcp: bytes) -> list[bytes]:
    """Send an ACK, then replace its second part with that of the opening segment."""
    ack = tcp[:13] + bytes([ACK]) + tcp[14:]
    whole = fragments(path, ack, TCP, 16)
    return [whole[0], fragments(path, tcp, TCP, 8)[1], whole[1]]


def atomic(path: Path, tcp: bytes) -> list[bytes]:
    """Send an unfragmented packet with a fragment header."""
    return fragments(path, tcp, TCP)


def many_options(path: Path, tcp: bytes) -> list[bytes]:
    """Put the TCP header after many others in an unfragmented packet."""
    chain = options(ROUTING) + routing(OPTIONS)
    chain += options(OPTIONS, 64) * 16 + options(TCP)
    return [packet(path, chain + tcp, HOP_BY_HOP if path.is_v6 else OPTIONS)]


def many_atomic(path: Path, tcp: bytes) -> list[bytes]:
    """Put several fragment headers into an unfragmented packet."""
    headers = b"".join(struct.pack("!BBHI", kind, 0, 0, 1) for kind in (OPTIONS, TCP))
    return [packet(path, headers[:8] + options(FRAGMENT) + headers[8:] + tcp, FRAGMENT)]


def ip_options(path: Path, tcp: bytes) -> list[bytes]:
    """Put options into the IPv4 header."""
    return [packet(path, tcp, OPTIONS)]


def far(path: Path, tcp: bytes) -> list[bytes]:
    """Put the TCP header after 60,000 bytes of options, in many fragments."""
    sizes = [2048] * 29 + [608]
    chain = b"".join(options(OPTIONS, size) for size in sizes[:-1]) + options(TCP, sizes[-1])
    payload = chain + tcp
    return fragments(path, payload, OPTIONS, *range(_PART, len(payload), _PART))


V6: dict[str, Callable[[Path, bytes], list[bytes]]] = {
    made.__name__: made
    for made in (
        *(plain, within_options, between_options, backwards, routing_header, twice),
        *(other_protocol_later, other_protocol_first, within_tcp, within_tcp_behind_options),
        *(overlapping, atomic, many_options, many_atomic, far),
    )
}
V4 = {made.__name__: made for made in (plain, within_tcp, overlapping, ip_options)}


class Wire:
    """An interface that sends and receives whole frames."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self._socket.bind((path.interface, 0))

    def send(self, packets: list[bytes]) -> None:
        kind = struct.pack("!H", 0x86DD if self._path.is_v6 else 0x0800)
        for each in packets:
            self._socket.send(self._path.ethernet + kind + each)

    def answers(self, seconds: float) -> Iterator[tuple[int, int]]:
        """Yield flags and sequence number of the target's segments on this connection."""
        start = 14 + (40 if self._path.is_v6 else 20)
        ports = struct.pack("!HH", self._path.target_port, self._path.source_port)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([self._socket], [], [], left)[0]:
                frame = self._socket.recv(65_536)
                if frame[start : start + 4] == ports and len(frame) >= start + 20:
                    yield frame[start + 13], struct.unpack_from("!I", frame, start + 4)[0]


def connect(path: Path, delivery: str, flags: int, data: bytes) -> str:
    """Open a connection with a segment with these flags and send data; return the answer."""
    deliver = (V6 if path.is_v6 else V4)[delivery]
    wire, number = Wire(path), int.from_bytes(os.urandom(3), "big")
    wire.send(deliver(path, segment(path, flags, number, 0)))
    for answered, theirs in wire.answers(0.4):
        if answered & RST:
            return REFUSED
        if answered & (SYN | ACK) == SYN | ACK:
            wire.send(plain(path, segment(path, ACK, number + 1, theirs + 1)))
            wire.send(plain(path, segment(path, ACK | PSH, number + 1, theirs + 1, data)))
            for acknowledged, _ in wire.answers(2):
                if not acknowledged & (SYN | RST):
                    return OPEN
    return UNANSWERED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("interface", "source", "target", "delivery", "data"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--macs", nargs=2, required=True, help="of the target and of the source")
    parser.add_argument("--ports", nargs=2, type=int, required=True)
    parser.add_argument("--flags", type=int, default=SYN)
    given = parser.parse_args()
    ethernet = bytes.fromhex("".join(given.macs).replace(":", ""))
    path = Path(given.interface, ethernet, given.source, given.target, *given.ports)
    print(connect(path, given.delivery, given.flags, given.data.encode()))


if __name__ == "__main__":
    main()
