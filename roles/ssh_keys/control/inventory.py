"""Where a host is, as the inventory tells: for the other hosts, and for Ansible."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Neither ssh's patterns nor a second line can be made of these.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*")


class InputError(Exception):
    """What is wrong in the inventory; the message names the offender and the remedy."""


@dataclass(frozen=True)
class Place:
    """Where a host of the inventory is: for the others, and for Ansible.

    Attributes:
        address: a name or an address, under which the others reach it.
        outer: the address of Ansible's own connection; empty where it has none.
        sources: more addresses that it may be seen under, also networks.
    """

    address: str
    port: int
    outer: str
    outer_port: int
    sources: tuple[str, ...]

    @property
    def endpoints(self) -> list[tuple[str, int]]:
        """Return address and port, of both kinds."""
        outer = [(self.outer, self.outer_port)] if self.outer else []
        return list(dict.fromkeys([(self.address, self.port), *outer]))


def is_loopback(address: str) -> bool:
    """Tell whether an address or a name means another machine on each host."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost" or address.endswith(".localhost")


def place_of(name: str, variables: Mapping[str, Any]) -> Place:
    """Return where an inventory host is.

    Raises:
        InputError: a variable is wrong.
    """

    def text(*names: str) -> str:
        values = (variables.get(key) for key in names)
        return next((str(value) for value in values if value), "")

    def port(*names: str) -> int:
        value = text(*names) or "22"
        if not value.isdecimal() or not 0 < int(value) < 65536:
            raise InputError(f"{name}: {' or '.join(names)} is {value}, not a port: set a number")
        return int(value)

    outer = text("ansible_host") or name
    address = text("ssh_keys_address", "train_job_address") or outer
    for value in (name, address, outer):
        if not NAME.fullmatch(value):
            raise InputError(
                f"{name}: ssh can take no host {value!r}: use letters, digits, dots, dashes and "
                "underscores, or an IP address without a zone"
            )
    sources = variables.get("ssh_keys_from") or []
    if isinstance(sources, str):
        raise InputError(f"{name}: ssh_keys_from is a text: make it a list")
    for source in sources:
        try:
            ipaddress.ip_network(str(source), strict=False)
        except ValueError:
            raise InputError(
                f"{name}: ssh_keys_from has {source!r}: use IP addresses and networks"
            ) from None
    return Place(
        address,
        port("ssh_keys_port", "ansible_port"),
        "" if is_loopback(outer) else outer,
        port("ansible_port"),
        tuple(str(source) for source in sources),
    )
