"""Translates the hosts of a job into those of this play: the job may have been started under an
inventory with other names for the same machines. A host is found by the ranks that it reports, and
one that does not answer by its address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from train.gang import connections, reports
from train.gang.plan.ranks import PlanError
from train.gang.records import Attempt, Manifest, PlannedRank
from train.host.records import RankInfo

_Value = TypeVar("_Value")


class Inventory(NamedTuple):
    """The inventory hosts of this play, and what is known of each."""

    names: Sequence[str]
    ranks: Mapping[str, Sequence[RankInfo]]  # those that it reports of the job
    addresses: Mapping[str, str]  # of its connection


def inventory_of(
    play: connections.Play, names: Sequence[str], reported: Mapping[str, Sequence[Any]]
) -> Inventory:
    """Return the hosts of a play with the ranks that they ``reported``, None for no rank.
    ReportError: a report is malformed.
    """
    ranks = {
        name: [reports.rank(rank) for rank in found if rank] for name, found in reported.items()
    }
    addresses = {name: play.connection(name)[1] for name in names if name in play.hosts}
    return Inventory(names, ranks, addresses)


def in_names_of(manifest: Manifest, inventory: Inventory) -> Manifest:
    """Return a manifest in which hosts have the names that they have in an inventory; those that
    are not found there keep theirs. It is the same object if all names stay. PlanError: several
    hosts report the same rank.
    """
    new: dict[str, str] = {}
    tasks: dict[str, str] = {}
    for rank in manifest["ranks"]:
        name = _name_of(manifest, rank, inventory, taken=list(tasks.values()))
        tasks[rank["task"]] = name
        new.setdefault(rank["host"], name)
    if all(tasks[rank["task"]] == rank["host"] for rank in manifest["ranks"]):
        return manifest
    *earlier, last = manifest["attempts"]
    attempts: list[Attempt] = [
        {**one, "ranks": {task: new.get(host, host) for task, host in one["ranks"].items()}}
        for one in earlier
    ]
    ranks = {task: tasks.get(task, host) for task, host in last["ranks"].items()}
    renamed: Manifest = {
        **manifest,
        "ranks": [{**rank, "host": tasks[rank["task"]]} for rank in manifest["ranks"]],
        "attempts": [*attempts, {**last, "ranks": ranks}],
        "results_dirs": _keyed(manifest["results_dirs"], new),
        "hosts": _keyed(manifest.get("hosts", {}), new),
    }
    if "rank_arguments" in manifest:
        renamed["rank_arguments"] = _keyed(manifest["rank_arguments"], new)
    return renamed


def _keyed(by_host: Mapping[str, _Value], new: Mapping[str, str]) -> dict[str, _Value]:
    """Return values by the new names of hosts; of two hosts with one new name, the first counts."""
    found: dict[str, _Value] = {}
    for host, value in by_host.items():
        found.setdefault(new.get(host, host), value)
    return found


def _name_of(
    manifest: Manifest, rank: PlannedRank, inventory: Inventory, taken: Sequence[str]
) -> str:
    """Return the inventory host of a rank."""
    host, about = rank["host"], (manifest["job"], rank["task"], manifest["attempt"])
    found = {
        name: (one["place"], one["rank_dir"])
        for name, ranks in inventory.ranks.items()
        for one in ranks
        if (one["job"], one["task"], one["attempt"]) == about
    }
    if host in found or (not found and host in inventory.names):
        return host
    facts: Any = manifest.get("hosts", {}).get(host, {})
    address = facts.get("address")
    if found:
        # No host speaks for another one.
        there = {name: key for name, key in found.items() if _is_at(address, name, inventory)}
        found = there or found
        if len(set(found.values())) > 1:
            raise PlanError(
                f"several hosts report {rank['task']} of job {manifest['job']}: use the inventory "
                "that it was started with"
            )
        return next(iter(found))
    silent = [name for name in inventory.names if not inventory.ranks.get(name)]
    silent = [name for name in silent if _is_at(address, name, inventory)]
    free = [name for name in silent if name not in taken]
    return next(iter([*free, *silent]), host)


def _is_at(address: object, name: str, inventory: Inventory) -> bool:
    return bool(address) and inventory.addresses.get(name) == address
