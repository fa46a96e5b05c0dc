"""Under which addresses the other hosts see this one."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from typing import Any, List


def is_address(name: str) -> bool:
    """Tell whether a name is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_usable(address: str) -> bool:
    """Tell whether another host can see this one under an address."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:  # with a zone, fe80::1%eth0
        return False
    return not (found.is_loopback or found.is_link_local or found.is_unspecified)


def find_addresses(names: List[str]) -> List[str]:
    """Return the addresses of those names that are none.

    Many hosts know their own name as 127.0.1.1 only. If no name tells an address that others see,
    the one that Ansible has connected to is taken, or else the one that leads out of this host.
    """
    found: List[Any] = []
    for name in names:
        if not is_address(name):
            with contextlib.suppress(OSError, UnicodeError):
                found += socket.getaddrinfo(name, None, 0, socket.SOCK_STREAM)
    addresses = {str(entry[4][0]) for entry in found if is_usable(str(entry[4][0]))}
    if addresses or any(is_usable(name) for name in names):
        return sorted(addresses)
    connection = os.environ.get("SSH_CONNECTION", "").split()
    if len(connection) == 4 and is_usable(connection[2]):
        return [connection[2]]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return []
        address = probe.getsockname()[0]
    return [address] if is_usable(address) else []
