"""Translates a job's host names into those of this play.

The job may have been started with an inventory that has other names for the same machines. A host
is identified by the ranks that it reports, or by its address if it does not answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from train.gang import connections, reports
from train.gang.errors import UserError
from train.gang.job_records import Attempt, Manifest, PlannedRank
from train.host.records import RankInfo

_Value = TypeVar("_Value")


class Inventory(NamedTuple):
    """The inventory hosts of this play, with their reports and addresses."""

    names: Sequence[str]
    ranks: Mapping[str, Sequence[RankInfo]]  # the job's ranks that each host reports
    addresses: Mapping[str, str]  # of their connections


def inventory_of(
    play: connections.Play, names: Sequence[str], reported: Mapping[str, Sequence[Any]]
) -> Inventory:
    """Return the hosts of a play with the ranks that they ``reported``; None for a missing rank.

    Raise ReportError if a report is malformed.
    """
    ranks = {
        name: [reports.rank(rank) for rank in found if rank] for name, found in reported.items()
    }
    addresses = {name: play.connection(name)[1] for name in names if name in play.hosts}
    return Inventory(names, ranks, addresses)


def in_names_of(manifest: Manifest, inventory: Inventory) -> Manifest:
    """Return the manifest with the host names of an inventory.

    Hosts that are not in the inventory keep their names. If no name changes, return the same
    object. Raise UserError if several hosts report the same rank.
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
    """Return values by new host name. If two hosts get the same name, keep the first value."""
    found: dict[str, _Value] = {}
    for host, value in by_host.items():
        found.setdefault(new.get(host, host), value)
    return found


def _name_of(
    manifest: Manifest, rank: PlannedRank, inventory: Inventory, taken: Sequence[str]
) -> str:
    """Return the host of a rank by its name in the inventory, or by its old name if not found.

    Raise UserError if several hosts report the rank. Of several hosts at the rank's address that do
    not report ranks, prefer one that is not in ``taken``.
    """
    host, about = rank["host"], (manifest["job"], rank["task"], manifest["attempt"])
    reporting = {
        name: (reported["place"], reported["rank_dir"])
        for name, ranks in inventory.ranks.items()
        for reported in ranks
        if (reported["job"], reported["task"], reported["attempt"]) == about
    }
    if host in reporting or (not reporting and host in inventory.names):
        return host
    facts: Any = manifest.get("hosts", {}).get(host, {})
    address = facts.get("address")
    if reporting:
        # Hosts at the rank's address are trusted first, so that another host cannot claim the rank.
        there = {name: key for name, key in reporting.items() if _is_at(address, name, inventory)}
        reporting = there or reporting
        if len(set(reporting.values())) > 1:
            raise UserError(
                f"several hosts report {rank['task']} of job {manifest['job']}: use the "
                "inventory that the job was started with"
            )
        return next(iter(reporting))
    candidates = [name for name in inventory.names if not inventory.ranks.get(name)]
    candidates = [name for name in candidates if _is_at(address, name, inventory)]
    free = [name for name in candidates if name not in taken]
    return next(iter([*free, *candidates]), host)


def _is_at(address: object, name: str, inventory: Inventory) -> bool:
    return bool(address) and inventory.addresses.get(name) == address
