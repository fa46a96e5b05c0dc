"""Settles on the control node what every host must have; the task that uses it runs once.

What one host needs of all others is the same text for all of them: it is made once, from what the
hosts have told, and compared with the digests that they have told, too.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import ipaddress
import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase

#: Of a key, what holds without knowing who uses it: no forwarding, no ~/.ssh/rc. Commands and
#: terminals are what it is for.
KEY_OPTIONS = "restrict,pty"
HOST_KEY_TYPES = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "ssh-rsa",
)
# Neither ssh's patterns nor a second line can be made of these.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*")
USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*")

Record = dict[str, Any]


class InputError(Exception):
    """What is wrong in the inventory; the message names the offender and the remedy."""


class HostError(Exception):
    """What is wrong in a host's answer."""


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


@dataclass
class Settled:
    """What is to be done.

    Attributes:
        records: what is known of each machine, in the order of the inventory.
        answers: the answers that were used, by inventory host.
        missing: inventory hosts that gave none.
        unknown: those of the missing of whom nothing is known.
        pending: hosts with a next key.
        refused: hosts whose answer was refused, each with the reason.
    """

    records: list[Record] = field(default_factory=list)
    answers: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


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


def find_known(known: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return what hosts hold about others, the newest first."""
    usable = [
        found
        for found in known
        if isinstance(found.get("written"), int) and isinstance(found.get("hosts"), list)
    ]
    usable.sort(key=lambda found: -int(found["written"]))
    return [
        record
        for found in usable
        for record in found["hosts"]
        if isinstance(record, Mapping) and isinstance(record.get("names"), list)
    ]


def find_answers(
    order: Iterable[str],
    played: Sequence[str],
    hostvars: Mapping[str, Mapping[str, Any]],
    sources: Sequence[str],
) -> tuple[dict[str, Place], dict[str, Mapping[str, Any]]]:
    """Return where each host is, and what those of the play have told.

    Raises:
        InputError: the inventory is wrong.
    """
    in_play = set(played)
    places: dict[str, Place] = {}
    answers: dict[str, Mapping[str, Any]] = {}
    for name in order:
        variables = hostvars[name]
        try:
            places[name] = place_of(name, variables)
        except AnsibleError as error:  # a template of the inventory
            raise InputError(f"{name}: {error}") from None
        if name in in_play:
            given = (variables.get(source) for source in sources)
            # There is a result as well of a task that was skipped or has failed.
            answer = next((a for a in given if isinstance(a, Mapping) and "digests" in a), None)
            if answer is not None:
                answers[name] = answer
    lonely = [name for name in played if is_loopback(places[name].address)]
    if answers and lonely:
        raise InputError(
            f"{', '.join(lonely)}: {places[lonely[0]].address} is another machine on each host: "
            "set ssh_keys_address (or train_job_address) to an address that every host knows"
        )
    return places, answers


def add_machine(machines: dict[tuple[str, int], Record], record: Record) -> None:
    """Add what a host has told to the machines, of which it may be one already.

    Raises:
        InputError: it cannot be told from another one.
    """
    (address, port), name = record["endpoints"][0], record["names"][0]
    first = machines.setdefault((address, port), record)
    if first is record:
        return
    both = f"{first['names'][0]} and {name} are"
    if first["host_keys"] != record["host_keys"]:
        raise InputError(
            f"{both} two machines with one address, {address} port {port}: set ssh_keys_address or "
            "ssh_keys_port"
        )
    if first["user"] != record["user"]:
        raise InputError(
            f"{both} one machine, {address} port {port}, with two users, {first['user']} and "
            f"{record['user']}: log in as one"
        )
    first["names"].append(name)


def recall(
    missing: Sequence[str], places: Mapping[str, Place], known: Iterable[Mapping[str, Any]]
) -> list[Record]:
    """Return the records of missing hosts, as far as others know them."""
    waiting = dict.fromkeys(missing)
    records = []
    for told in find_known(known):
        names = list(dict.fromkeys(str(name) for name in told["names"] if str(name) in waiting))
        if not names:
            continue
        try:
            record = record_of(names[0], places[names[0]], told)
        except HostError:
            continue
        if record["key"]:
            records.append({**record, "names": names})
            for name in names:
                waiting.pop(name, None)
    return records


def settle(
    members: Sequence[str],
    played: Sequence[str],
    hostvars: Mapping[str, Mapping[str, Any]],
    sources: Sequence[str],
    known: Iterable[Mapping[str, Any]] = (),
) -> Settled:
    """Return what is to be done. The variables of each host are asked for once.

    Args:
        members: the inventory hosts of the cluster.
        played: the inventory hosts of the play, also those that have failed.
        hostvars: the variables of each.
        sources: names of variables with a host's answer, the newest first.
        known: what hosts hold about hosts that are missing.

    Raises:
        InputError: the inventory is wrong.
    """
    order = {name: number for number, name in enumerate(dict.fromkeys([*members, *played]))}
    places, answers = find_answers(order, played, hostvars, sources)
    settled = Settled()
    machines: dict[tuple[str, int], Record] = {}
    for name, answer in answers.items():
        try:
            record = record_of(name, places[name], answer)
            if not isinstance(answer["digests"], Mapping) or "written" not in answer:
                raise HostError("what it tells is not complete")
        except HostError as error:
            settled.refused[name] = str(error)
            continue
        settled.answers[name] = answer
        if record["next"]:
            settled.pending.append(name)
        add_machine(machines, record)

    for name, place in places.items():
        if name in settled.answers or is_loopback(place.address):
            continue
        # Another rank of a machine that has answered.
        machine = next((machines[e] for e in place.endpoints if e in machines), None)
        if machine is not None and name not in settled.refused:
            machine["names"].append(name)
        else:
            settled.missing.append(name)

    recalled = recall(settled.missing, places, known)
    found = {name for record in recalled for name in record["names"]}
    settled.unknown = [name for name in settled.missing if name not in found]
    records = [*machines.values(), *recalled]
    owners = Counter(tuple(endpoint) for record in records for endpoint in record["endpoints"])
    for record in records:
        record["names"].sort(key=order.__getitem__)
        # Behind one gateway, several hosts may have Ansible's address in common.
        first, *others = record["endpoints"]
        record["endpoints"] = [first, *(e for e in others if owners[tuple(e)] == 1)]
    settled.records = sorted(records, key=lambda record: order[record["names"][0]])
    return settled


def known_as(record: Record) -> list[tuple[str, int]]:
    """Return the names and addresses of a machine, each with its port."""
    port = record["endpoints"][0][1]
    named = [(name, port) for name in record["names"]]
    return list(dict.fromkeys([*named, *((name, port) for name, port in record["endpoints"])]))


def render_authorized_keys(records: Sequence[Record], cluster: str) -> str:
    """Return the cluster's lines of ``authorized_keys``: each key only from its own machine."""
    return "".join(
        f'from="{",".join(record["from"])}",{KEY_OPTIONS} {key} {cluster}:{record["names"][0]}\n'
        for record in records
        for key in (record["key"], record["next"])
        if key
    )


def render_known_hosts(records: Sequence[Record]) -> str:
    """Return the file of host keys."""
    lines = []
    for record in records:
        names = [name if port == 22 else f"[{name}]:{port}" for name, port in known_as(record)]
        lines += [f"{','.join(names)} {key}\n" for key in record["host_keys"]]
    return "".join(lines)


def render_config(records: Sequence[Record], cluster: str) -> str:
    """Return the client's configuration."""
    identities = [f"    IdentityFile ~/.ssh/{cluster}/id_ed25519"]
    if any(record["next"] for record in records):
        # While keys change: ssh reads the public half first, and the private one later.
        identities.append(f"    IdentityFile ~/.ssh/{cluster}/id_ed25519.next")
    lines = ["# Made by the role ssh_keys: changes are lost."]
    for record in records:
        address, port = record["endpoints"][0]
        names = [name for name, its_port in known_as(record) if its_port == port]
        lines += [
            "",
            f"Host {' '.join(record['names'])}",
            f"    HostName {address}",
            f"Host {' '.join(names)}",
            f"    Port {port}",
            f"    User {record['user']}",
            "    StrictHostKeyChecking yes",
            f"    UserKnownHostsFile ~/.ssh/{cluster}/known_hosts",
            # ssh would add what it learns to our file.
            "    CheckHostIP no",
            "    UpdateHostKeys no",
            # Whoever logs in as another user does so with keys of their own.
            f"Match originalhost {','.join(names)} user {record['user']}",
            *identities,
            "    IdentitiesOnly yes",
        ]
    return "\n".join(lines) + "\n"


def content_of(records: Sequence[Record], cluster: str) -> dict[str, str]:
    """Return all that a host must have."""
    return {
        "authorized_keys": render_authorized_keys(records, cluster),
        "known_hosts": render_known_hosts(records),
        "config": render_config(records, cluster),
        "hosts": json.dumps(records, sort_keys=True, separators=(",", ":")),
    }


def digests_of(content: Mapping[str, str]) -> dict[str, str]:
    """Return the digests that the module tells of a host that has ``content``."""
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in content.items()}
    return {**digests, "include": "yes", "modes": "", "spare": "no"}


def who_knows(settled: Settled) -> list[str]:
    """Return one host of each state of the files that is about: they are asked for the missing."""
    ask: dict[tuple[str, str], str] = {}
    for name, answer in settled.answers.items() if settled.missing else ():
        if answer["written"]:
            ask.setdefault((str(answer["digests"].get("hosts")), str(answer["written"])), name)
    return list(ask.values())


def notes_on(settled: Settled, lost: Sequence[str]) -> list[str]:
    """Return what the user should know."""
    notes = []
    if settled.unknown:
        notes.append(
            f"{', '.join(settled.unknown)} did not take part and is not known yet: run the role "
            "on all hosts together"
        )
    waited = [*settled.missing, *lost]
    if settled.pending and waited:
        notes.append(
            f"the new keys of {', '.join(settled.pending)} are not in use yet, the old ones still "
            f"are: {', '.join(waited)} has to know the new ones first; run the role again when it "
            "answers, or take it out of the inventory"
        )
    return notes


class ActionModule(ActionBase):  # type: ignore[misc]
    """Settles keys and files; its arguments are those of roles/ssh_keys/tasks/main.yml."""

    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return what there is to do, and what it takes.

        ``work`` tells whether there is anything; ``ask`` names the hosts that are to tell what they
        know of the ``missing`` ones; ``make`` the hosts that need a key. ``content`` and
        ``digests`` are those of a host that is ready. ``notes`` is for the user.
        """
        result: dict[str, Any] = super().run(tmp, task_vars)
        args, variables = self._task.args, task_vars or {}
        cluster = str(args["name"])
        hostvars = variables["hostvars"]
        members = [str(name) for name in args["hosts"]]
        unheard = [name for name in members if name not in hostvars]
        if unheard:
            raise AnsibleActionFail(
                f"ssh_keys_hosts names {', '.join(unheard)}, and the inventory has no such host"
            )
        played = [str(name) for name in variables["ansible_play_hosts_all"]]
        asked = [str(name) for name in args.get("asked", ())]
        known = [hostvars[name].get("__ssh_keys_known", {}) for name in asked]
        try:
            settled = settle(
                members,
                played,
                hostvars,
                args["sources"],
                known,
            )
        except InputError as error:
            raise AnsibleActionFail(str(error)) from None
        batch = [str(name) for name in variables["ansible_play_batch"]]
        result.update(self._result(settled, cluster, batch, args))
        return result

    def _result(
        self, settled: Settled, cluster: str, batch: Sequence[str], args: Mapping[str, Any]
    ) -> dict[str, Any]:
        content = content_of(settled.records, cluster)
        digests = digests_of(content)
        answers = settled.answers
        make = [name for name in answers if args["rekey"] or not answers[name]["key"]]
        ask = who_knows(settled)
        differing = any(answer["digests"] != digests for answer in answers.values())
        lost = [name for name in answers if name not in batch]
        result = {
            "changed": False,
            "work": bool(make or ask or differing or settled.pending or settled.refused),
            "make": make,
            "ask": ask,
            "missing": settled.missing,
            "refused": settled.refused,
            "pending": settled.pending,
            "switch": bool(settled.pending) and not settled.missing and not lost,
            "digests": digests,
            "notes": notes_on(settled, lost),
        }
        # Only who changes something needs the texts, and they grow with the cluster.
        if "asked" in args:
            result["content"] = {**content, "written": int(time.time())}
            result["asked"] = args["asked"]
        return result
