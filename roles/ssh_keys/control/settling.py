"""Deciding which hosts the cluster has: those that have answered, and those that others know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible.errors import AnsibleError

from .inventory import InputError, Place, is_loopback, place_of
from .records import HostError, Record, record_of


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
