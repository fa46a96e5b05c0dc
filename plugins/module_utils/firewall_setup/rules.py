"""The rules as text: who may connect, and to which ports."""

from __future__ import annotations

import concurrent.futures
import ipaddress
import re
import socket
from typing import Iterable, List, Optional, Tuple, Union

TABLE = "train"
PORT = re.compile("[0-9]{1,5}")
Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]
Range = Tuple[int, int]

RULES_TEXT = """\
#
# Ansible managed: role firewall
#
# The table is replaced by this one in one transaction.
table inet {table}
delete table inet {table}
table inet {table} {{
{sets}
\tchain input {{
\t\ttype filter hook input priority filter - 5; policy accept;
\t\tiifname "lo" accept
\t\tip saddr @members4 accept
\t\tip6 saddr @members6 accept
\t\t# Only packets that open a connection. Open connections stay open and are not tracked.
\t\ttcp dport @ports tcp flags & (fin | syn | rst | ack) == syn counter reject with tcp reset
\t\t# This hook sees IPv6 fragments before they are joined; TCP ports may be in a later one.
\t\t# All but UDP, ESP, ICMPv6 and SCTP may belong to TCP. (IPv4 fragments are joined already.)
\t\tfrag nexthdr != {{ 17, 50, 58, 132 }} counter drop
\t}}
}}
"""


class FirewallError(Exception):
    """The rules cannot be created or loaded. The message contains the cause and the remedy."""


def rules_text(networks: List[Network], ports: List[Range]) -> str:
    """Return the contents of the rules file. The same members and ports give the same text."""
    addresses = [(network.version, show(network)) for network in networks]
    sets = [
        set_text("members4", "ipv4_addr", [text for version, text in addresses if version == 4]),
        set_text("members6", "ipv6_addr", [text for version, text in addresses if version == 6]),
        set_text("ports", "inet_service", show_ports(ports)),
    ]
    return RULES_TEXT.format(table=TABLE, sets="\n".join(sets))


def set_text(name: str, kind: str, elements: List[str]) -> str:
    """Return a set in nft syntax."""
    lines = ["\tset %s {" % name, "\t\ttype %s" % kind, "\t\tflags interval"]
    if elements:
        lines.append("\t\telements = {\n\t\t\t%s\n\t\t}" % ",\n\t\t\t".join(elements))
    return "\n".join([*lines, "\t}"])


def show(network: Network) -> str:
    """Format a network; a single address has no prefix length."""
    return str(network.network_address if network.num_addresses == 1 else network)


def show_ports(ports: List[Range]) -> List[str]:
    """Format ports and ranges."""
    return ["%d" % a if a == b else "%d-%d" % (a, b) for a, b in ports]


def parse_ports(texts: Iterable[str]) -> List[Range]:
    """Parse ports and ranges into sorted pairs, with overlapping and adjacent ones merged.

    Raises:
        FirewallError: a text is not a valid port or range.
    """
    pairs = []
    for text in texts:
        first, _, last = str(text).replace(" ", "").partition("-")
        # int() alone accepts digits of other scripts, signs and underscores.
        good = all(PORT.fullmatch(end) for end in (first, last or first))
        pair = (int(first), int(last or first)) if good else (0, 0)
        if not 1 <= pair[0] <= pair[1] <= 65535:
            raise FirewallError(
                "port %r: use a number from 1 to 65535 or a range such as 20000-20010" % str(text)
            )
        pairs.append(pair)
    merged = []  # type: List[Range]
    for first_port, last_port in sorted(pairs):
        if merged and first_port <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], last_port)
        else:
            merged.append((first_port, last_port))
    return merged


def parse_network(text: str) -> Optional[Network]:
    """Parse an address or network; return None for a name."""
    try:
        return ipaddress.ip_network(text.strip("[]").partition("%")[0], strict=False)
    except ValueError:
        return None


def resolve(name: str) -> List[Network]:
    """Return the addresses of a name, or an empty list if it cannot be resolved."""
    network = parse_network(name)
    if network:
        return [network]
    try:
        answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        return []
    return [ipaddress.ip_network(str(answer[4][0]).partition("%")[0]) for answer in answers]


def find_networks(members: List[List[str]], sources: List[str]) -> List[Network]:
    """Return the networks of all members and sources, sorted, without loopback addresses.

    Raises:
        FirewallError: a member or source cannot be resolved.
    """
    single = [[source] for source in sources]
    names = sorted({str(name) for group in members + single for name in group})
    # In parallel, because a name server that is slow or down delays every name.
    with concurrent.futures.ThreadPoolExecutor(max_workers=16) as pool:
        found = dict(pool.map(lambda name: (name, resolve(name)), names))
    for groups, remedy in (
        (members, "use a name that every host can resolve (train_job_address, firewall_members)"),
        (single, "correct firewall_extra_sources"),
    ):
        lost = [" or ".join(map(str, g)) for g in groups if not any(found[str(n)] for n in g)]
        if lost:
            raise FirewallError("this host cannot resolve %s: %s" % (", ".join(lost), remedy))
    networks = {n for name in names for n in found[name] if not n.is_loopback}
    v4 = ipaddress.collapse_addresses(n for n in networks if isinstance(n, ipaddress.IPv4Network))
    v6 = ipaddress.collapse_addresses(n for n in networks if isinstance(n, ipaddress.IPv6Network))
    return [*v4, *v6]
