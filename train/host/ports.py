"""Lists the TCP ports on which processes of this host listen, and checks whether a port is free."""

from __future__ import annotations

import socket
from typing import Optional, Set

from . import processes, sockets


def listening() -> Set[int]:
    """Return the TCP ports on which processes of this host listen, at any address."""
    return {one.local_port for one in sockets.listed(sockets.LISTEN)}


def is_listening(port: int) -> bool:
    """Return whether a process of this host listens on TCP ``port``, at any address."""
    return port in listening()


def listener(port: int) -> str:
    """Return the process that listens on TCP ``port``, such as ``pid 12 (python3 x.py)``.

    Only root can see processes of other users.
    """
    listed = sockets.listed(sockets.LISTEN)
    wanted = {"socket:[%s]" % one.inode for one in listed if one.local_port == port}
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
