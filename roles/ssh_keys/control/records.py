"""What is known of a host, from what it tells: checked, as all the others are to trust it."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .inventory import Place

HOST_KEY_TYPES = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "ssh-rsa",
)
USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*")
Record = dict[str, Any]


class HostError(Exception):
    """What is wrong in a host's answer."""


def check_key(text: Any, types: Sequence[str]) -> str:
    """Return a public key as it was given.

    Raises:
        HostError: it is no key of these types.
    """
    kind, _, encoded = str(text).partition(" ")
    try:
        blob = base64.b64decode(encoded, validate=True)
    except (ValueError, binascii.Error):
        blob = b""
    begin = len(kind).to_bytes(4, "big") + kind.encode()
    if kind not in types or not blob.startswith(begin) or len(blob) < len(begin) + 32:
        raise HostError(f"it tells a public key that is none: {str(text)[:60]!r}")
    return f"{kind} {encoded}"


def literal(addresses: Iterable[str]) -> list[str]:
    """Return those names that are addresses."""
    found = []
    for address in addresses:
        try:
            found.append(str(ipaddress.ip_address(address)))
        except ValueError:
            continue
    return found


def record_of(name: str, place: Place, told: Mapping[str, Any]) -> Record:
    """Return the record of a host from what it, or another one, has told of it.

    All hosts are to trust it. So names, ports and, as far as they are there, addresses come from
    the inventory: no host can call itself another one, and none can let itself in from anywhere.

    Raises:
        HostError: ssh would not read it as it is meant, or it is not enough.
    """
    user, key, following = (str(told.get(field)) for field in ("user", "key", "next"))
    host_keys, addresses = told.get("host_keys"), told.get("addresses")
    if not isinstance(host_keys, list) or not host_keys or not isinstance(addresses, list):
        raise HostError("what it tells is not complete")
    if not USER.fullmatch(user):
        raise HostError(f"ssh can take no user {user!r}")
    names = {place.address, place.outer} - {""}
    sources = literal(names)
    # What names stand for, only the host knows.
    resolved = literal(map(str, addresses)) if len(sources) < len(names) else []
    if not sources and not resolved and not place.sources:
        raise HostError(
            f"no address is known from which {place.address} logs in: set ssh_keys_from"
        )
    return {
        "names": [name],
        "endpoints": [list(endpoint) for endpoint in place.endpoints],
        "user": user,
        "from": sorted({*sources, *resolved, *place.sources}),
        "addresses": sorted(resolved),
        "host_keys": sorted(check_key(text, HOST_KEY_TYPES) for text in host_keys),
        "key": check_key(key, ["ssh-ed25519"]) if key else "",
        "next": check_key(following, ["ssh-ed25519"]) if following else "",
    }
