"""Finds the network interface for gloo, with which JAX and PyTorch exchange data of CPUs.

By default, gloo uses the address to which the host's name resolves. If that is the loopback
address, as on Debian (127.0.1.1), or belongs to another network, other hosts cannot connect to it.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Collection

from . import probe

#: The port of a socket that only looks up a route; nothing is sent.
_ANY_PORT = 9


def own_address() -> str:
    """Return the address that gloo uses by default, or an empty string if it finds none."""
    with contextlib.suppress(OSError, UnicodeError):
        for family, kind, _, _, place in socket.getaddrinfo(
            socket.gethostname(), None, type=socket.SOCK_STREAM
        ):
            with contextlib.suppress(OSError), socket.socket(family, kind) as server:
                server.bind(place)
                return str(place[0])
    return ""


def address_toward(hosts: Collection[str]) -> str:
    """Return this host's address on the path to another one of ``hosts``.

    Return an empty string if all of them are this machine, or if none can be resolved.
    """
    for host in sorted(hosts):
        with contextlib.suppress(OSError, UnicodeError):  # the latter for an impossible name
            if probe.is_own(host):
                continue
            family, _, _, _, place = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as asked:
                asked.connect(place)
                return str(asked.getsockname()[0])
    return ""


def interface_toward(hosts: Collection[str]) -> str:
    """Return the interface that gloo has to use for ``hosts``; empty if its own choice is right."""
    address = address_toward(hosts)
    if not address or address == own_address():
        return ""
    names = (name for _, name in socket.if_nameindex())
    return next((name for name in names if probe.address_of(name) == address), "")
