"""Lists this host's TCP sockets as the kernel reports them.

The kernel's list in ``/proc/net/tcp`` includes all sockets. To print it, the kernel looks at every
entry of a table whose size depends on the machine's memory, which takes several milliseconds even
if there are no connections. Netlink returns only sockets in given states (``sock_diag(7)``):
listening ones in microseconds, others in a fraction of the time. ``/proc`` is for hosts without
netlink, such as some containers.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import Iterator, List, NamedTuple, Sequence

from . import processes

#: States of a socket (include/net/tcp_states.h).
ESTABLISHED, LISTEN = 1, 10
#: FIN_WAIT1, FIN_WAIT2, TIME_WAIT, CLOSE_WAIT, LAST_ACK and CLOSING: recently open.
CLOSING = (4, 5, 6, 8, 9, 11)
#: The prefix of an IPv4 address in an IPv6 one.
_MAPPED = bytes(10) + b"\xff\xff"
#: Constants of linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h.
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_REQUEST_ALL = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_ERROR, _DONE = 2, 3
#: The header of a message: length, type, flags, sequence number, port id.
_HEADER = struct.Struct("=IHHII")
#: struct inet_diag_req_v2: family, protocol, extensions, padding, states, socket.
_REQUEST = struct.Struct("=BBBBI48x")
#: Parts of struct inet_diag_msg: family, state, timer, retransmissions, both ports and both
#: addresses; and the inode, which is the last field.
_ENDS, _INODE = struct.Struct("!BBxxHH16s16s"), struct.Struct("=68xI")
#: The error code at the beginning of a last message, which is negative.
_CODE = struct.Struct("=i")
#: Bytes to receive at once, and seconds to wait for them.
_BUFFER, _ANSWER_S = 65_536, 1.0


class TcpSocket(NamedTuple):
    """A TCP socket. Addresses are packed; IPv4 addresses have four bytes also in IPv6 sockets."""

    state: int
    local: bytes
    local_port: int
    remote: bytes
    remote_port: int
    inode: str  # "0" if no process has it any more


def listed(*states: int) -> List[TcpSocket]:
    """Return this host's TCP sockets in one of ``states``."""
    try:
        return [
            found
            for family in (socket.AF_INET, socket.AF_INET6)
            for found in _from_netlink(family, states)
        ]
    except (OSError, struct.error):
        return _from_proc(states)


def _from_netlink(family: int, states: Sequence[int]) -> Iterator[TcpSocket]:
    """Yield the TCP sockets of a family. Raise OSError or struct.error if they are unknown."""
    wanted = sum(1 << state for state in states)
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, wanted)
    header = _HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _REQUEST_ALL, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(_ANSWER_S)
        kernel.send(header + request)
        while True:
            messages = kernel.recv(_BUFFER)
            if not messages:
                raise OSError("the kernel's answer is incomplete")
            while messages:
                length, kind, *_ = _HEADER.unpack_from(messages)
                message = messages[_HEADER.size : length]
                if kind == _DONE and _CODE.unpack_from(message)[0] >= 0:
                    return
                if kind in (_DONE, _ERROR) or length < _HEADER.size:
                    raise OSError("the kernel does not list its sockets")
                yield _parsed(message)
                messages = messages[(length + 3) & ~3 :]  # messages are aligned to four bytes


def _parsed(message: bytes) -> TcpSocket:
    family, state, local_port, remote_port, local, remote = _ENDS.unpack_from(message)
    if family == socket.AF_INET:
        local, remote = local[:4], remote[:4]
    inode = str(_INODE.unpack_from(message)[0])
    return TcpSocket(state, unmapped(local), local_port, unmapped(remote), remote_port, inode)


def _from_proc(states: Sequence[int]) -> List[TcpSocket]:
    found = []
    for table in ("net/tcp", "net/tcp6"):
        for line in processes.read_text(processes.PROC, table).splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and int(fields[3], 16) in states:
                local, _, local_port = fields[1].partition(":")
                remote, _, remote_port = fields[2].partition(":")
                ends = (_packed(local), int(local_port, 16), _packed(remote), int(remote_port, 16))
                found.append(TcpSocket(int(fields[3], 16), *ends, fields[9]))
    return found


def _packed(text: str) -> bytes:
    """Parse an address in the format of /proc: hexadecimal words in the machine's byte order."""
    data = bytes.fromhex(text)
    if sys.byteorder == "little":
        data = b"".join(data[at : at + 4][::-1] for at in range(0, len(data), 4))
    return unmapped(data)


def unmapped(address: bytes) -> bytes:
    """Return a packed address, as IPv4 if it is an IPv4 address in IPv6."""
    return address[12:] if address.startswith(_MAPPED) else address
