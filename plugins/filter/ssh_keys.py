"""Ansible filters: the records that all hosts of a cluster need about each other.

The records are computed once, from the hosts' reports. Every host trusts them. Therefore names,
ports and, if known, addresses come from the inventory: no host can impersonate another, or grant
itself access from anywhere. What the hosts remember of a machine that did not report counts only if
most of them agree.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible.utils.display import Display

# No ssh patterns or line breaks are possible with these characters.
NAME = r"[A-Za-z0-9_][A-Za-z0-9_.:-]*"
USER = r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*"
KEY = r"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI[A-Za-z0-9+/]{43}"
HOST_KEY = r"(?:ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)) AAAA[A-Za-z0-9+/]{40,}={0,2}"
AUTHORIZED = re.compile(rf'from="([^" ]*)",restrict,pty ({KEY}) ([a-z0-9-]+):({USER})@({NAME})')
KNOWN = re.compile(rf"\[?({NAME})(?:\]:[0-9]+)?(?:,\S+)? ({HOST_KEY})")


def is_loopback(name: str) -> bool:
    """Return whether a name or an address means a different machine on each host."""
    return name == "localhost" or name.endswith(".localhost") or bool(re.match(r"127\.|::1$", name))


def addresses_of(names: Iterable[str]) -> list[str]:
    """Return those of ``names`` that are IP addresses and can be used from other hosts."""
    found = []
    for name in names:
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            continue
        if not (address.is_loopback or address.is_link_local or address.is_unspecified):
            found.append(str(address))
    return found


def place_of(member: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names, addresses and port at which the other hosts and Ansible reach a machine."""
    name = member["name"]
    ansible_host = str(member.get("ansible_host") or variables.get("ansible_host") or name)
    ansible_port = int(member.get("ssh_port") or variables.get("ansible_port") or 22)
    address = str(variables.get("ssh_keys_address") or member.get("address") or ansible_host)
    port = int(variables.get("ssh_keys_port") or ansible_port)
    place: dict[str, Any] = {
        "names": list(member.get("names") or [name]),
        "endpoints": list(dict.fromkeys([(address, port), (ansible_host, ansible_port)])),
        "sources": variables.get("ssh_keys_from") or [],
        "has_names": len(addresses_of({address, ansible_host})) < len({address, ansible_host}),
    }
    for host in [*place["names"], address, ansible_host]:
        if not re.fullmatch(NAME, host):
            raise AnsibleFilterError(
                f"{name}: ssh cannot use the host name {host!r}: use letters, digits, dots, dashes "
                "and underscores, or an IP address without a zone"
            )
    try:
        _ = [ipaddress.ip_network(source, strict=False) for source in place["sources"]]
    except ValueError as error:
        raise AnsibleFilterError(
            f"{name}: ssh_keys_from: {error}: use a list of IP addresses and networks"
        ) from None
    return place


def ssh_keys_places(
    members: Sequence[Mapping[str, Any]], played: Sequence[str], hostvars: Mapping[str, Any]
) -> dict[str, Any]:
    """Return by name the place of each machine (see ``place_of``).

    Machines that others cannot reach are excluded. Raise AnsibleFilterError if the role runs on
    such a machine and on others, or if two machines have the same address.

    Args:
        members: the machines of the cluster; if empty, those that the role runs on.
        played: the inventory hosts that the role runs on.
        hostvars: the variables of all hosts.
    """
    members = members or [{"name": host} for host in played]
    every = {m["name"]: place_of(m, hostvars[m["name"]]) for m in members}
    places = {name: p for name, p in every.items() if not is_loopback(p["endpoints"][0][0])}
    lonely = [name for name in played if name not in places]
    if lonely and set(places) & set(played):
        raise AnsibleFilterError(
            f"{', '.join(lonely)}: the host is not in ssh_keys_members, or its address leads to "
            "a different machine on each host. Add it to ssh_keys_members, or set "
            "ssh_keys_address to an address that every host can reach"
        )
    uses = Counter(endpoint for place in places.values() for endpoint in place["endpoints"])
    first: dict[Any, str] = {}
    for name, place in places.items():
        main, *rest = place["endpoints"]
        if first.setdefault(main, name) != name:
            raise AnsibleFilterError(
                f"{first[main]} and {name} have the same address, {main[0]} port {main[1]}: set "
                "ssh_keys_address or ssh_keys_port; if they are the same machine, list it as "
                "one member"
            )
        # Several hosts behind a gateway may share Ansible's address.
        place["endpoints"] = [main, *(e for e in rest if uses[e] == 1 and not is_loopback(e[0]))]
    return places


def ssh_keys_report(
    user: str, keys: Sequence[str], host_keys: Sequence[str], addresses: Sequence[str]
) -> dict[str, Any]:
    """Check a host's report about itself, and return it without the comments of keys."""
    found = [" ".join(key.split()[:2]) for key in keys if key]
    host = [" ".join(key.split()[:2]) for key in host_keys]
    host = sorted({key for key in host if re.fullmatch(HOST_KEY, key)})
    if not re.fullmatch(USER, user) or not all(re.fullmatch(KEY, key) for key in found):
        raise AnsibleFilterError(f"ssh cannot use this user or key: {user[:60]!r}, {found!r}")
    if not host:
        raise AnsibleFilterError(
            "the host has no public host key: set up sshd (sudo ssh-keygen -A), or set"
            " ssh_keys_host_keys if the keys are in another folder"
        )
    # Once the new key is in use, it is the same as the old one.
    keys = list(dict.fromkeys(found))
    return {"user": user, "keys": keys, "host_keys": host, "addresses": addresses_of(addresses)}


def recall(names: Sequence[str], cluster: str, files: Mapping[str, str]) -> dict[str, Any] | None:
    """Restore the report of a machine from another host's ``files``, which were written from it.

    Return None if they do not contain the machine, or if its addresses are not valid.

    Args:
        names: the machine's names.
        cluster: the name of the cluster in the comments of keys.
        files: the contents of ``authorized_keys`` and ``known_hosts``.
    """
    lines = map(AUTHORIZED.fullmatch, files["authorized_keys"].splitlines())
    mine = [m.groups() for m in lines if m and m[3] == cluster and m[5] in names]
    host = [
        m[2] for m in map(KNOWN.fullmatch, files["known_hosts"].splitlines()) if m and m[1] in names
    ]
    if not mine or not host:
        return None
    sources = mine[0][0].split(",")
    try:
        _ = [ipaddress.ip_network(source, strict=False) for source in sources]
    except ValueError:
        return None
    return ssh_keys_report(mine[0][3], [m[1] for m in mine], host, sources)


def recall_by_majority(
    name: str, place: Mapping[str, Any], cluster: str, kept: Mapping[str, Mapping[str, str]]
) -> dict[str, Any] | None:
    """Return the report of a machine on which most of the hosts that know it agree.

    A single host could replace the machine's keys, and it controls the times of its files.
    Therefore no host's files take precedence. Return None, with a warning, if there is no
    majority.

    Args:
        name: the machine's name.
        place: its place (see ``place_of``).
        cluster: the name of the cluster in the comments of keys.
        kept: the files of each host that is present (see ``recall``).
    """
    votes: dict[str, dict[str, Any]] = {}
    for host, files in kept.items():
        report = recall(place["names"], cluster, files)
        if report:
            # Of other machines, the inventory has the addresses.
            votes[host] = report if place["has_names"] else {**report, "addresses": []}
    for report in votes.values():
        if 2 * list(votes.values()).count(report) > len(votes):
            return report
    if votes:
        Display().warning(
            f"{name} did not report its keys, and the files of {', '.join(votes)} differ about "
            "them, so the other hosts no longer know it. Run the role on all hosts together. If "
            "nobody has changed these files, check whether one of these hosts is compromised."
        )
    return None


def ssh_keys_records(
    places: Mapping[str, Any], present: Sequence[str], hostvars: Mapping[str, Any], cluster: str
) -> list[dict[str, Any]]:
    """Return the records of all machines, which every host needs.

    For a machine that is not present, the record is based on the files of those that are (see
    ``recall_by_majority``).
    """
    here = {name: hostvars[name] for name in present if name in places}
    kept = {n: v["__ssh_keys_kept"] for n, v in here.items() if v.get("__ssh_keys_kept")}
    records = []
    for name, place in places.items():
        report = here.get(name, {}).get("__ssh_keys_report")
        report = report or recall_by_majority(name, place, cluster, kept)
        if not report:
            continue
        # Only the host knows what its names resolve to.
        endpoints = [(address, port) for address, port in place["endpoints"]]
        sources = {*addresses_of(address for address, _ in endpoints), *place["sources"]}
        sources |= set(report["addresses"] if place["has_names"] else [])
        if not sources and name not in here:
            continue
        if not sources:
            raise AnsibleFilterError(f"{name} has no known address: set ssh_keys_from")
        address, port = endpoints[0]
        known = list(dict.fromkeys([*((n, port) for n in place["names"]), *endpoints]))
        records.append(
            {
                **report,
                "names": place["names"],
                "address": address,
                "port": port,
                "patterns": [n for n, its_port in known if its_port == port],
                "known_as": [n if its_port == 22 else f"[{n}]:{its_port}" for n, its_port in known],
                "sources": sorted(sources),
            }
        )
    return records


class FilterModule:
    """The role's filters."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {f.__name__: f for f in (ssh_keys_places, ssh_keys_report, ssh_keys_records)}
