"""Who may connect, and to which ports: what the operator wrote, parsed and looked up."""

from __future__ import annotations

import concurrent.futures
import ipaddress
import socket
from typing import Iterable, List, Optional, Tuple, Union

from .programs import FirewallError

Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]


def parse_ports(texts: Iterable[str]) -> List[Tuple[int, int]]:
    """Return ports and ranges as sorted pairs that neither meet nor overlap.

    Raises:
        FirewallError: one is no port.
    """
    pairs = []
    for text in texts:
        first, _, last = str(text).replace(" ", "").partition("-")
        try:
            pair = int(first), int(last or first)
        except ValueError:
            pair = (0, 0)
        if not 1 <= pair[0] <= pair[1] <= 65535:
            raise FirewallError(
                "port %r: use a number from 1 to 65535 or a range such as 20000-20010" % str(text)
            )
        pairs.append(pair)
    merged: List[Tuple[int, int]] = []
    for first_port, last_port in sorted(pairs):
        if merged and first_port <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], last_port)
        else:
            merged.append((first_port, last_port))
    return merged


def parse_network(text: str) -> Optional[Network]:
    """Return an address or network; None where it is a name."""
    try:
        return ipaddress.ip_network(text.strip("[]").partition("%")[0], strict=False)
    except ValueError:
        return None


def resolve(name: str) -> List[Network]:
    """Return the addresses of a name or an address; none where it has none."""
    network = parse_network(name)
    if network:
        return [network]
    try:
        answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        return []
    return [ipaddress.ip_network(str(answer[4][0]).partition("%")[0]) for answer in answers]


def find_members(members: List[List[str]], sources: List[str]) -> List[Network]:
    """Return the networks of all members and sources, sorted, without those of this host alone.

    Raises:
        FirewallError: one has no address.
    """
    groups = members + [[source] for source in sources]
    names = sorted({name for group in groups for name in group})
    # At once: a name server that is slow, or down, is so for every name.
    with concurrent.futures.ThreadPoolExecutor(max_workers=16) as pool:
        unknown = [name for name in names if not parse_network(name)]
        answers = {name: pool.submit(resolve, name) for name in unknown}
    found = {name: answers[name].result() if name in answers else resolve(name) for name in names}
    for kind, remedy in (
        (members, "set train_job_address of those ranks to an address that every host knows"),
        ([[source] for source in sources], "correct firewall_extra_sources"),
    ):
        lost = [" or ".join(group) for group in kind if not any(found[name] for name in group)]
        if lost:
            raise FirewallError("this host cannot resolve %s: %s" % (", ".join(lost), remedy))
    networks = {
        network
        for group in groups
        for name in group
        for network in found[name]
        if not network.is_loopback
    }
    v4 = ipaddress.collapse_addresses(n for n in networks if isinstance(n, ipaddress.IPv4Network))
    v6 = ipaddress.collapse_addresses(n for n in networks if isinstance(n, ipaddress.IPv6Network))
    return [*v4, *v6]
