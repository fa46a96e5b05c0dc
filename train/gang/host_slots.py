"""Host lists with slots in the formats of MPI and DeepSpeed. Each slot of a host is a rank.

A list comes from a file (``--hostfile``), from the command line (``--hosts a:2,b:2``) or from the
allocation of a batch system. It is passed to Ansible as an inventory source in one line, which the
inventory plugin ``host_slots`` reads, so that later commands do not need the file.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from train.gang.errors import UserError

#: The port of a host's first rank if the list sets none. The other ranks have the ports after it.
FIRST_PORT = 12345
#: Maximum number of slots of a host, and of bytes of a file.
MAX_SLOTS = 256
_MAX_SIZE = 1 << 20
_LAST_PORT = 65535

_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252})")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\$?")
_COUNT = re.compile(r"[0-9]{1,9}")
#: The indices of GPUs. They are not separated by commas, which separate the hosts of a list.
_GPUS = re.compile(r"[0-9]{1,3}(?:\+[0-9]{1,3}){0,255}")
#: The spellings of Open MPI's, Intel MPI's and DeepSpeed's files, and their meanings.
_KEYS = {
    **dict.fromkeys(("slots", "slot", "cpus", "cpu", "count"), "slots"),
    **dict.fromkeys(("max_slots", "max-slots", "slots_max", "slots-max"), "max_slots"),
    **dict.fromkeys(("user", "username", "user-name", "user_name"), "user"),
    "port": "port",
    "gpus": "gpus",
}


@dataclass(frozen=True)
class HostSlots:
    """A host in a list.

    Attributes:
        host: a name or an address.
        slots: the number of its ranks.
        user: the login user, or empty.
        port: the TCP port of its first rank; 0 for the default.
        gpus: the indices of the GPUs to divide among its ranks. Empty if all GPUs can be used.
    """

    host: str
    slots: int = 1
    user: str = ""
    port: int = 0
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class SlotRank:
    """An inventory host for a rank: its name and its variables."""

    name: str
    variables: dict[str, str | int | list[int]]


def read_file(path: Path) -> list[HostSlots]:
    """Return the hosts in a file. Raise OSError, or UserError with the place of the error."""
    with path.open("rb") as stream:
        data = stream.read(_MAX_SIZE + 1)
    if len(data) > _MAX_SIZE:
        raise UserError(f"{path} is larger than {_MAX_SIZE >> 20} MiB, so it is not a host file")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text, so it is not a host file") from None
    return parse_file(text, str(path))


def parse_file(text: str, name: str) -> list[HostSlots]:
    """Return the hosts in the text of a host file, each once, in the order of their first lines.

    Another line for the same host without ``slots=`` adds slots, as in MPI. Raise UserError, which
    names the file (``name``) and the line, if the text is invalid.
    """
    lines = ((number, line.partition("#")[0]) for number, line in enumerate(text.split("\n"), 1))
    entries = ((f"{name}, line {number}", line) for number, line in lines if line.strip())
    hosts = _merged(entries)
    if not hosts:
        raise UserError(f"{name} lists no hosts: write one on each line, such as node-1 slots=4")
    return hosts


def parse_list(text: str) -> list[HostSlots]:
    """Return the hosts in a list such as ``a:2,b:2``. Raise UserError if an entry is invalid."""
    hosts = _merged((repr(entry.strip()), entry) for entry in text.split(",") if entry.strip())
    if not hosts:
        raise UserError("the list has no hosts: write their names, such as node-1,node-2")
    return hosts


def source_of(hosts: Sequence[HostSlots]) -> str:
    """Return an inventory source for a list of hosts.

    If no host has options or several slots, it is a plain list (``a,b,``), which Ansible reads
    without the plugin.
    """
    if all(entry == HostSlots(entry.host) for entry in hosts):
        return "".join(f"{entry.host}," for entry in hosts)
    return "".join(f"{_written(entry)}," for entry in hosts)


def is_source(source: str) -> bool:
    """Return whether an inventory source is a list with slots."""
    return "," in source and re.search(r"\sslots=", source) is not None


def ranks_of(hosts: Sequence[HostSlots]) -> list[SlotRank]:
    """Return the ranks of a list in order: all ranks of a host come before those of the next.

    Raise UserError if two ranks would have the same name.
    """
    ranks: dict[str, SlotRank] = {}
    for entry in hosts:
        for slot in range(entry.slots):
            name = entry.host if entry.slots == 1 else f"{entry.host}-slot-{slot}"
            variables: dict[str, str | int | list[int]] = {"ansible_host": entry.host}
            if entry.slots > 1 or entry.port:
                variables["train_job_port"] = (entry.port or FIRST_PORT) + slot
            if entry.user:
                variables["ansible_user"] = entry.user
            if entry.gpus:
                ends = [len(entry.gpus) * number // entry.slots for number in (slot, slot + 1)]
                indices = list(map(int, entry.gpus[slice(*ends)]))
                variables["train_job_gpus"] = indices or "none"
            if name in ranks:
                raise UserError(
                    f"a slot of {entry.host} and another host of the list would both be called "
                    f"{name}: use an inventory, in which you choose the names"
                )
            ranks[name] = SlotRank(name, variables)
    return list(ranks.values())


def add_ranks(inventory: Any, hosts: Sequence[HostSlots]) -> None:
    """Add the ranks of a list to Ansible's inventory. Raise UserError as ``ranks_of`` does."""
    ranks = ranks_of(hosts)
    inventory.add_group("worker")
    for rank in ranks:
        inventory.add_host(rank.name, group="worker")
        for name, value in rank.variables.items():
            inventory.set_variable(rank.name, name, value)


def _written(entry: HostSlots) -> str:
    words = [entry.host, f"slots={entry.slots}"]
    words += [f"user={entry.user}"] if entry.user else []
    words += [f"port={entry.port}"] if entry.port else []
    words += [f"gpus={'+'.join(entry.gpus)}"] if entry.gpus else []
    return " ".join(words)


def _merged(entries: Iterator[tuple[str, str]]) -> list[HostSlots]:
    """Return the hosts in ``entries``, which are pairs of a place and a text, each host once.

    Raise UserError, which names the place, if an entry is invalid or contradicts an earlier one.
    """
    hosts: dict[str, HostSlots] = {}
    places: dict[str, str] = {}
    for place, text in entries:
        try:
            entry, has_key = _parse(text)
            earlier = hosts.get(entry.host)
            if earlier is not None:
                if has_key:
                    raise UserError(
                        f"{entry.host} is listed twice with a number of slots (first in "
                        f"{places[entry.host]}): keep one of the entries"
                    )
                for name in ("user", "port", "gpus"):
                    if getattr(entry, name) and getattr(entry, name) != getattr(earlier, name):
                        raise UserError(
                            f"{entry.host} has another {name} than in {places[entry.host]}: "
                            "use an inventory for that"
                        )
                entry = replace(earlier, slots=earlier.slots + entry.slots)
            _check(entry)
        except UserError as error:
            raise UserError(f"{place}: {error}") from None
        hosts[entry.host] = entry
        places.setdefault(entry.host, place)
    return list(hosts.values())


def _parse(text: str) -> tuple[HostSlots, bool]:
    """Return the host in an entry, and whether the entry sets its slots with ``slots=``.

    Raise UserError if the entry is invalid.
    """
    first, *words = re.sub(r"[ \t]*=[ \t]*", "=", text).split()
    user, at, address = first.rpartition("@")
    if at and not user:
        raise UserError(f"{first} has no user before the @")
    host, slots = _split(address)
    options: dict[str, str] = {"user": user} if at else {}
    if slots:
        options["slots"] = slots
    has_key = False
    for word in words:
        key, equals, value = word.partition("=")
        option = _KEYS.get(key)
        if not equals or option is None:
            raise UserError(
                f"{word} is unknown: use slots=N, max_slots=N, user=NAME, port=N or gpus=0+1 "
                "after the host"
            )
        if option in options:
            raise UserError(f"{option} is given twice")
        options[option] = value
        has_key |= option == "slots"
    numbers = {
        name: _number(name, options[name])
        for name in ("slots", "max_slots", "port")
        if name in options
    }
    most = numbers.pop("max_slots", None)
    if "gpus" in options and not _GPUS.fullmatch(options["gpus"]):
        raise UserError(f"gpus is {options['gpus']!r}, but must be indices such as 0+1")
    gpus = tuple(options["gpus"].split("+")) if "gpus" in options else ()
    entry = HostSlots(host, user=options.get("user", ""), gpus=gpus, **numbers)
    if "user" in options and not _USER.fullmatch(entry.user):
        raise UserError(f"{entry.user!r} is not a valid user name")
    if most is not None and most < entry.slots:
        raise UserError(f"max_slots={most} is less than the {entry.slots} slots of {host}")
    return entry, has_key


def _split(text: str) -> tuple[str, str]:
    """Return a host and the number of slots after its colon, or an empty string without one.

    An IPv6 address contains colons, so it needs brackets if a number follows. Raise UserError if
    the text is invalid.
    """
    if text.startswith("["):
        address, bracket, rest = text[1:].partition("]")
        if not bracket or not _is_address(address) or (rest and not rest.startswith(":")):
            raise UserError(f"{text} is not an address in brackets, such as [2001:db8::1]:2")
        slots = rest[1:]
        if rest and not slots:
            raise UserError(f"{text} has no number of slots after the colon")
        return address, slots
    if _is_address(text):
        return text, ""
    host, colon, slots = text.partition(":")
    if not _NAME.fullmatch(host):
        raise UserError(f"{host or text} is not a host name or an address")
    if ":" in slots:
        raise UserError(f"{text} is not HOST:SLOTS; an IPv6 address needs brackets before a colon")
    if colon and not slots:
        raise UserError(f"{text} has no number of slots after the colon")
    return host, slots


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _number(name: str, text: str) -> int:
    if not _COUNT.fullmatch(text) or int(text) < 1:
        raise UserError(f"{name} is {text!r}, but must be a whole number of 1 or more")
    return int(text)


def _check(entry: HostSlots) -> None:
    """Raise UserError if a host has too many slots, or too few ports for them."""
    if entry.slots > MAX_SLOTS:
        raise UserError(
            f"{entry.host} has {entry.slots} slots, but a host has at most {MAX_SLOTS} ranks; "
            f"the number is not a port: for an SSH port use -i {entry.host}:{entry.slots},"
        )
    if entry.port and not 1024 <= entry.port <= _LAST_PORT + 1 - entry.slots:
        raise UserError(
            f"port={entry.port} with {entry.slots} slots is outside of 1024 to {_LAST_PORT}"
        )
