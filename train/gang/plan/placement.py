"""Chooses the inventory hosts of an attempt and their tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from train.gang.errors import UserError
from train.gang.login_failures import names_of
from train.host import records

#: The inventory group of hosts that replace lost ones.
SPARE = "spare"


class Placement(TypedDict):
    """The inventory hosts of one attempt."""

    groups: dict[str, list[str]]  # hosts of each task type, in the order of their indices
    hosts: list[str]  # all participating hosts, chief first
    left_out: dict[str, str]  # why a host is missing, by host; spare hosts are omitted


def choose(
    groups: Mapping[str, Sequence[str]],
    missing: Mapping[str, str],
    *,
    least: int = 0,
    earlier: Sequence[str] = (),
) -> Placement:
    """Return the hosts of an attempt. Spare hosts replace missing ones.

    If there are not enough spare hosts, the job gets smaller if ``least`` allows that. Otherwise
    UserError is raised. The remaining hosts move up, so that indices have no gaps. If the chief is
    missing, the first worker becomes the chief. The number of parameter servers cannot shrink. A
    missing evaluator is left out if the job may shrink.

    Args:
        groups: the inventory hosts of each task type, and of ``spare``.
        missing: why a host cannot participate, by host.
        least: minimum number of chief and workers together; 0 for all of them.
        earlier: the hosts of the previous attempt, chief first. They keep their order, so that the
            rank with the newest checkpoint stays the chief. Returning hosts come after them.
    """
    known = {kind: list(groups.get(kind, ())) for kind in (*records.TASK_TYPES, SPARE)}
    there = {kind: [host for host in hosts if host not in missing] for kind, hosts in known.items()}
    wanted = known["chief"] + known["worker"]
    # A spare host of the previous attempt has its files. Original hosts come before new spare ones.
    kept = [host for host in earlier if host in wanted or host in there[SPARE]]
    order = list(dict.fromkeys([*kept, *wanted, *there[SPARE]]))
    free = sorted(there[SPARE], key=lambda host: host not in kept)
    lost_servers = len(known["ps"]) - len(there["ps"])
    servers, free = there["ps"] + free[:lost_servers], free[lost_servers:]
    trainers = there["chief"] + there["worker"]
    trainers += free[: len(wanted) - len(trainers)]
    trainers.sort(key=order.index)

    lost = {host: why for host, why in missing.items() if host not in known[SPARE]}
    named = "; ".join(f"{names_of(hosts)}: {why}" for why, hosts in by_reason(lost).items())
    if len(servers) < len(known["ps"]):
        raise UserError(
            f"{named}: no spare host can replace the parameter server; add hosts to the "
            f"inventory group {SPARE}"
        )
    if len(trainers) < min(least or len(wanted), len(wanted)):
        limit = f"at least {least}" if least else f"all {len(wanted)}"
        raise UserError(
            f"{named}: the job has {len(trainers)} of {len(wanted)} workers left and needs "
            f"{limit} (train_job_min_workers); add hosts to the inventory group {SPARE} to "
            "replace lost hosts"
        )
    if there["evaluator"] != known["evaluator"] and not least:
        raise UserError(f"{named}: set train_job_min_workers to continue without an evaluator")
    chiefs = len(known["chief"])
    return {
        "groups": {
            "chief": trainers[:chiefs],
            "worker": trainers[chiefs:],
            "ps": servers,
            "evaluator": there["evaluator"],
        },
        "hosts": [*trainers, *servers, *there["evaluator"]],
        "left_out": lost,
    }


def by_reason(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the hosts for each reason. The order of the hosts and reasons is kept."""
    hosts: dict[str, list[str]] = {}
    for host, why in reasons.items():
        hosts.setdefault(why, []).append(host)
    return hosts


def aliases(machines: Mapping[str, str], reached: Mapping[str, str]) -> list[str]:
    """Return warnings about machines that inventory hosts reach at different addresses.

    playbooks/setup.yml treats them as several machines.

    Args:
        machines: id of the machine by host.
        reached: address of the connection by host.
    """
    named: dict[str, dict[str, str]] = {}
    for host, machine in machines.items():
        named.setdefault(machine, {}).setdefault(reached[host], host)
    return [
        f"{' and '.join(names.values())} connect to the same machine at different addresses "
        f"({', '.join(names)}), so playbooks/setup.yml treats them as {len(names)} machines: set "
        "the same ansible_host and ansible_port for them"
        for names in named.values()
        if len(names) > 1
    ]
