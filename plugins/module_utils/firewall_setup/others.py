"""Other firewalls of the host, which can block traffic that this role's table accepts."""

from __future__ import annotations

import ipaddress
import json
import re
import shutil
from typing import Iterator, List, NamedTuple, Optional, Tuple

from .rules import (
    TABLE,
    FirewallError,
    Network,
    Range,
    parse_network,
    parse_ports,
    show,
    show_ports,
)
from .table import SEARCH_PATH, read, run

#: Sources and ports that a firewall allows.
Opening = Tuple[List[Network], List[Range]]
ANYONE = [ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0")]  # type: List[Network]
ANY_PORT = [(1, 65535)]
FAMILIES = ((4, "ip", "iptables"), (6, "ip6", "ip6tables"))
#: Rules that accept connections, as listed by nft and by iptables-legacy.
NFT_RULE = re.compile(
    r"(?:ip6? saddr (\{[^}]*\}|\S+) ?)?(?:meta l4proto tcp )?(?:tcp dport (\{[^}]*\}|\S+) ?)?"
    r"(?:counter packets \d+ bytes \d+ )?accept"
)
LEGACY_RULE = re.compile(r"-A INPUT(?: -s (\S+))?(?: -p tcp -m tcp --dport (\S+))? -j ACCEPT")
CLOSED = re.compile(r"(counter .* )?(drop|reject)( .*)?|-A INPUT -j (DROP|REJECT).*")


class Other(NamedTuple):
    """A firewall that blocks by default: its openings, and the command that adds an opening."""

    name: str
    openings: List[Opening]
    command: str
    separator: str = ","
    versions: Tuple[int, ...] = (4, 6)


def warnings_of(nft: str, networks: List[Network], ports: List[Range]) -> Iterator[str]:
    """Yield a warning, with the remedy, for each firewall that blocks members of the cluster."""
    for other in find_others(nft):
        known = [network for network in networks if network.version in other.versions]
        refused = [show(network) for network in known if not allows(other.openings, network, ports)]
        named = other.name, ", ".join(refused), ", ".join(show_ports(ports))
        if refused:
            yield (
                "%s blocks connections from %s to the ports %s of this host. Ranks cannot connect,"
                " and the rules of this role cannot change that. To allow the members permanently,"
                " run on the host: " % named
            ) + other.command % other.separator.join(refused)


def allows(openings: List[Opening], network: Network, ports: List[Range]) -> bool:
    """Return whether every address of a network may connect to each of the ports."""
    first, last = int(network.network_address), int(network.broadcast_address)
    ranges = [
        pair
        for sources, pairs in openings
        for source in sources
        for pair in pairs
        if source.version == network.version
        and int(source.network_address) <= first
        and last <= int(source.broadcast_address)
    ]
    return all(any(low <= a and b <= high for low, high in ranges) for a, b in ports)


def find_others(nft: str) -> Iterator[Other]:
    """Yield the firewalls of the host that block by default."""
    firewalld, ufw = firewalld_openings(), ufw_openings()
    if firewalld is not None:
        add = "sudo firewall-cmd --permanent --zone=trusted --add-source=%s"
        command = add + " && sudo firewall-cmd --reload"
        yield Other("firewalld", firewalld, command, " --add-source=")
    if ufw is not None:
        yield Other("ufw", ufw, "sudo ufw allow from %s", " && sudo ufw allow from ")
    managed = firewalld is not None or ufw is not None
    for version, _, program in FAMILIES:
        lines = [] if managed else legacy_rules(program)
        if "-P INPUT DROP" in lines or is_closed(lines):
            command = "sudo " + program + "-legacy -I INPUT -s %s -j ACCEPT"
            openings = parse_rules(LEGACY_RULE, lines)
            yield Other("The chain INPUT of %s" % program, openings, command, versions=(version,))
    for family, table, chain, drops in input_chains(nft):
        by_iptables = table == "filter" and family != "inet"
        if table in (TABLE, "firewalld") or (managed and by_iptables):
            continue
        lines = run(nft, "list", "chain", family, table, chain, check=False).stdout.split("\n")
        lines = [line.strip() for line in lines if line.startswith("\t\t")]
        if not drops and not is_closed(lines):
            continue
        name = "The chain %s of the table %s %s" % (chain, family, table)
        openings = parse_rules(NFT_RULE, lines)
        for version, own, program in FAMILIES:
            command = "sudo nft insert rule %s %s %s %s" % (family, table, chain, own)
            command += " saddr '{ %s }' accept"
            if by_iptables:
                command = "sudo " + program + " -I INPUT -s %s -j ACCEPT"
            if family in (own, "inet"):
                yield Other(name, openings, command, versions=(version,))


def firewalld_openings() -> Optional[List[Opening]]:
    """Return the openings of firewalld, or None if it is not running.

    The default zone and zones with interfaces are assumed to apply to everyone.
    """
    if run("systemctl", "is-active", "firewalld", check=False).stdout.strip() != "active":
        return None
    default = run("firewall-cmd", "--get-default-zone", check=False).stdout.strip()
    openings = []  # type: List[Opening]
    for block in run("firewall-cmd", "--list-all-zones", check=False).stdout.split("\n\n"):
        fields = dict(re.findall(r"^  ([a-z-]+): *(.*)$", block, re.MULTILINE))
        ports = parse_range(*re.findall(r"(\S+)/tcp", fields.get("ports", "")))
        if fields.get("target") == "ACCEPT":
            ports = ANY_PORT
        openings.append((parse_sources(*fields.get("sources", "").split()), ports))
        if fields.get("interfaces") or block.split()[:1] == [default]:
            openings.append((ANYONE, ports))
            trusted = re.findall(r'rule.* source address="(\S+)" accept$', block, re.MULTILINE)
            openings.append((parse_sources(*trusted), ANY_PORT))
    return openings


def ufw_openings() -> Optional[List[Opening]]:
    """Return the openings of ufw, or None if it is inactive or allows everything."""
    if not shutil.which("ufw", path=SEARCH_PATH):
        return None
    status = run("ufw", "status", "verbose", check=False).stdout
    if "Status: active" not in status or "Default: allow (incoming)" in status:
        return None
    rule = r"^ufw allow (?:from (\S+))?(?: to any port )?([\d:,]+)?(?: proto tcp|/tcp)?$"
    added = run("ufw", "show", "added", check=False).stdout
    return [
        (parse_sources(source) if source else ANYONE, parse_range(port) if port else ANY_PORT)
        for source, port in re.findall(rule, added, re.MULTILINE)
    ]


def legacy_rules(program: str) -> List[str]:
    """Return the rules of iptables-legacy, which are not part of nftables."""
    legacy = shutil.which(program + "-legacy", path=SEARCH_PATH)
    # Listing a table would load it.
    used = read("/proc/net/%s_names" % program.replace("tables", "_tables")).split()
    if not legacy or "filter" not in used:
        return []
    return run(legacy, "-S", "INPUT", check=False).stdout.splitlines()


def input_chains(nft: str) -> Iterator[Tuple[str, str, str, bool]]:
    """Yield each chain for incoming packets: family, table, name, whether it drops by default."""
    listed = run(nft, "-j", "list", "chains", check=False).stdout if nft else ""
    for entry in json.loads(listed or '{"nftables": []}')["nftables"]:
        chain = entry.get("chain", {})
        if chain.get("hook") == "input" and chain.get("type") == "filter":
            yield chain["family"], chain["table"], chain["name"], chain.get("policy") == "drop"


def is_closed(lines: List[str]) -> bool:
    """Return whether the last rule of a chain blocks everything."""
    return bool(lines) and bool(CLOSED.fullmatch(lines[-1]))


def parse_rules(pattern: "re.Pattern[str]", lines: List[str]) -> List[Opening]:
    """Return the openings in the rules of a chain; rules that do not match are ignored."""
    openings = []
    for match in filter(None, map(pattern.fullmatch, lines)):
        sources, ports = (re.findall(r"[^{}, ]+", text or "") for text in match.groups())
        who = parse_sources(*sources) if sources else ANYONE
        openings.append((who, parse_range(*ports) if ports else ANY_PORT))
    return openings


def parse_sources(*texts: str) -> List[Network]:
    """Return the texts that are addresses or networks; skip all others."""
    return [network for network in map(parse_network, texts) if network]


def parse_range(*texts: str) -> List[Range]:
    """Parse ports and ranges in the notation of other firewalls.

    Return an empty list if one of them is the name of a service.
    """
    try:
        return parse_ports(part.replace(":", "-") for text in texts for part in text.split(","))
    except FirewallError:
        return []
