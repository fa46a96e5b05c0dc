"""Lists the TCP ports on which processes of this host listen, and checks whether a port is free.

The kernel's list in ``/proc/net/tcp`` includes all connections. To print it, the kernel looks at
every entry of a table whose size depends on the machine's memory, which takes several milliseconds
even if there are no connections. Netlink returns only the listening sockets, in microseconds
(``sock_diag(7)``). ``/proc`` is for hosts without it, such as some containers.
"""

from __future__ import annotations

import socket
import struct
from typing import Dict, Iterator, Optional, Set, Tuple

from . import processes

#: The state of a listening socket: in /proc/net/tcp, and for netlink.
_LISTEN_TEXT, _LISTEN = "0A", 10
#: Constants of linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h.
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_REQUEST_ALL = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_ERROR, _DONE = 2, 3
#: The header of a message: length, type, flags, sequence number, port id.
_HEADER = struct.Struct("=IHHII")
#: struct inet_diag_req_v2: family, protocol, extensions, padding, states, socket.
_REQUEST = struct.Struct("=BBBBI48x")
#: Parts of struct inet_diag_msg: the port after family, state, timer and retransmissions, and the
#: inode, which is the last field.
_PORT, _INODE = struct.Struct("!4xH"), struct.Struct("=68xI")
#: The error code at the beginning of a last message, which is negative.
_CODE = struct.Struct("=i")
#: Bytes to receive at once, and seconds to wait for them.
_BUFFER, _ANSWER_S = 65_536, 1.0


def _sockets() -> Dict[int, Set[str]]:
    """Return the inodes of listening TCP sockets by port."""
    found: Dict[int, Set[str]] = {}
    try:
        for family in (socket.AF_INET, socket.AF_INET6):
            for port, inode in _from_netlink(family):
                found.setdefault(port, set()).add(str(inode))
    except (OSError, struct.error):
        return _from_proc()
    return found


def _from_netlink(family: int) -> Iterator[Tuple[int, int]]:
    """Yield port and inode of each listening TCP socket of a family. Raise OSError if unknown."""
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, 1 << _LISTEN)
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
                yield _PORT.unpack_from(message)[0], _INODE.unpack_from(message)[0]
                messages = messages[(length + 3) & ~3 :]  # messages are aligned to four bytes


def _from_proc() -> Dict[int, Set[str]]:
    found: Dict[int, Set[str]] = {}
    for table in ("net/tcp", "net/tcp6"):
        for line in processes.read_text(processes.PROC, table).splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN_TEXT:
                port = int(fields[1].rpartition(":")[2], 16)
                found.setdefault(port, set()).add(fields[9])
    return found


def listening() -> Set[int]:
    """Return the TCP ports on which processes of this host listen, at any address."""
    return set(_sockets())


def is_listening(port: int) -> bool:
    """Return whether a process of this host listens on TCP ``port``, at any address."""
    return port in _sockets()


def listener(port: int) -> str:
    """Return the process that listens on TCP ``port``, such as ``pid 12 (python3 x.py)``.

    Only root can see processes of other users.
    """
    wanted = {"socket:[%s]" % inode for inode in _sockets().get(port, set())}
    for pid in processes.pids():
        if any(path in wanted for path in processes.opened(pid)):
            return "pid %d (%s)" % (pid, processes.command(pid)[:120])
    return "a process of another user"


def is_free(port: int, known: Optional[Set[int]] = None) -> bool:
    """Return whether a server can bind TCP ``port`` on all addresses, as TensorFlow's does.

    ``known`` are the ports in use, to read them once for many ports; see ``listening``.
    """
    if port in (listening() if known is None else known):
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        # As in gRPC: connections in TIME_WAIT do not count.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
