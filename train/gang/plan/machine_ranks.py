"""Chooses the ranks of hosts that have several (``train_job_ranks``).

A host is a machine, and its first rank. Each further rank becomes an inventory host in memory, such
as ``node-1-slot-1``, with the variables of its machine. From then on, all code works with one rank
for each inventory host.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from train.gang import connections, reports
from train.gang.errors import UnreachableError, UserError
from train.gang.host_slots import MAX_SLOTS
from train.gang.job_records import read_manifest
from train.gang.login_failures import names_of
from train.gang.variables import job_variables
from train.gang.variables.typed_values import at, shown

RANKS, PORT, GPUS = "train_job_ranks", "train_job_port", "train_job_gpus"
#: The value of train_job_ranks for one rank for each GPU.
AUTO = "auto"
#: The variable in which the ranks of a play are registered.
REGISTERED = "__train_job_machine_ranks"
#: The groups whose hosts may have several ranks.
_KINDS = ("worker", "spare")
_LAST_PORT = 65535
#: Prints the number of GPUs, which is 0 without nvidia-smi or a driver.
_COUNT_GPUS = (
    """printf '{"gpus": %d}' "$(timeout 60 nvidia-smi -L 2>/dev/null | grep -c '^GPU ')" """
)
#: Variables of a machine that are copied to its ranks. None is secret.
_COPIED = (
    *("ansible_connection", "ansible_host", "ansible_port", "ansible_user"),
    "train_job_address",
)
#: Maximum number of hosts to ask at the same time.
_AT_ONCE = 50


def choose(play: connections.Play, args: connections.Args) -> dict[str, object]:
    """Return the ``ranks`` to add to the inventory: their names, machines, slots and groups.

    ``warnings`` are about hosts whose number of GPUs is unknown. If a job ``starts``, raise
    UserError if a value is invalid, or if the ranks of a machine cannot have their names or ports.
    """
    kinds = {h: kind for kind, hosts in args["groups"].items() for h in hosts if h in play.hosts}
    machines = [host for host in kinds if play.machine_of(host) == host]
    wanted, problems = {}, []
    for host in machines:
        wanted[host], problem = _wanted(play, host, kinds[host])
        problems += [(host, problem)] if problem else []
    if args["starts"]:
        job_variables.refuse(job_variables.shared(problems))
    counts, warnings = _counts(play, wanted, args)
    if args["starts"]:
        ports = _port_problems(play, counts, kinds)
        job_variables.refuse([*ports, *_name_problems(play, counts)])
    ranks = []
    for host, count in counts.items():
        groups = [name for name in play.groups_of(host) if name != "ungrouped"]
        for slot in range(1, count):
            rank = {"name": name_of(host, slot), "machine": host, "slot": slot, "groups": groups}
            ranks += [] if play.has(name_of(host, slot)) else [rank]
    return {"ranks": ranks, "warnings": warnings}


def add(play: connections.Play, args: connections.Args) -> connections.Returned:
    """Add a rank of a machine to the inventory, and return the task's result.

    The addresses are copied, because ``hostvars`` of a rank cannot render references.
    """
    machine = str(args["machine"])
    values = {
        "ansible_host": machine,
        **play.values(machine, *_COPIED),
        connections.MACHINE: machine,
        connections.SLOT: int(args["slot"]),
    }
    names = [name for name in play.names_of_variables(machine) if name not in values]
    return play.add_host(args["name"], args["groups"], references(names), values)


def references(names: Sequence[str]) -> dict[str, str]:
    """Return, for each name of a machine's variables, a template that refers to the variable.

    A rank has its machine's variables through these templates. Their values, such as passwords, are
    not copied, and templates in them are rendered for the machine. A host's facts may have any
    name, so names that are not identifiers are left out.
    """
    return {
        name: f"{{{{ hostvars[{connections.MACHINE}]['{name}'] }}}}"
        for name in names
        if name.isidentifier() and not name.startswith("__train_job_")
    }


def name_of(machine: str, slot: int) -> str:
    """Return the inventory host of a machine's rank. The first rank, slot 0, is the machine."""
    return f"{machine}-slot-{slot}" if slot else machine


def in_order(hosts: Sequence[str], machine_of: Callable[[str], str]) -> list[str]:
    """Return the hosts of a group with all ranks of a machine together, in the order of slots."""
    machines = {host: machine_of(host) for host in hosts}
    places = {machine: place for place, machine in enumerate(dict.fromkeys(machines.values()))}
    return sorted(hosts, key=lambda host: places[machines[host]])


def check_added(play: connections.Play, values: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise UserError if hosts have several ranks that were not added to the inventory.

    Args:
        values: the values of the role's variables by machine.
    """
    lacking = [
        host
        for host, variables in values.items()
        if variables.get(RANKS, 1) not in (1, "1")
        and "ranks" not in play.registered(host, REGISTERED)
    ]
    if lacking:
        raise UserError(
            f"{names_of(lacking)} would have one rank, although {RANKS} is set: run the role with "
            "`tasks_from: ranks` in a play before this one, as playbooks/ranks.yml does"
        )


def _number(value: Any) -> int:
    """Return a number of ranks, or 0 if the value is not a valid number."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if is_number or (isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value)):
        return int(value) if 1 <= int(value) <= MAX_SLOTS else 0
    return 0


def _wanted(play: connections.Play, host: str, kind: str) -> tuple[Any, str]:
    """Return train_job_ranks of a host in a group, and the problem with it or an empty string.

    If there is a problem, the value is 1.
    """
    try:
        value = play.values(host, RANKS).get(RANKS, 1)
    except UserError as error:
        return 1, str(error)
    problem = _problem(value, kind)
    if not problem:
        return value, ""
    place = at(play.given(host, [RANKS]).places.get(RANKS, ""))
    return 1, problem.replace("{place}", place)


def _problem(value: Any, kind: str) -> str:
    """Return the problem with the train_job_ranks of a host in a group, or an empty string.

    It contains the placeholders ``{hosts}`` and ``{place}``.
    """
    if value != AUTO and not _number(value):
        return (
            f"{RANKS} of {{hosts}} is {shown(value)}{{place}}, expected {AUTO} or a whole number "
            f"from 1 to {MAX_SLOTS}: correct the value (the default is 1), or remove the variable"
        )
    if kind not in _KINDS and (value == AUTO or _number(value) > 1):
        remedy = (
            "move the host to the group worker (without a chief, worker 0 is the chief)"
            if kind == "chief"
            else f"set {RANKS} for the group worker only"
        )
        return (
            f"{RANKS} of {{hosts}} is {value}{{place}}, but a host of the group {kind} has one "
            f"rank; only hosts of the groups {' and '.join(_KINDS)} can have several: {remedy}, "
            "or set it to 1"
        )
    return ""


def _counts(
    play: connections.Play, wanted: Mapping[str, Any], args: connections.Args
) -> tuple[dict[str, int], list[str]]:
    """Return the number of ranks of each machine, and warnings about those that do not answer.

    Later attempts of a job have the same number of ranks as the first.
    """
    counts = {host: _number(value) for host, value in wanted.items()}
    autos = [host for host, value in wanted.items() if value == AUTO]
    earlier = _earlier(args) if autos else []
    asked = []
    for host in autos:
        slots = [slot for slot in range(MAX_SLOTS) if name_of(host, slot) in earlier]
        gpus = _chosen_gpus(play, host)
        if slots:
            counts[host] = max(slots) + 1
        elif gpus is not None:
            counts[host] = max(1, gpus)
        else:
            asked.append(host)
    if not asked:
        return counts, []
    with ThreadPoolExecutor(min(len(asked), _AT_ONCE)) as pool:
        found = dict(zip(asked, pool.map(lambda host: _gpus_of(play, host), asked), strict=True))
    counts |= {host: max(1, number or 0) for host, number in found.items()}
    unknown = [host for host, number in found.items() if number is None]
    if not unknown:
        return counts, []
    warning = f"{names_of(unknown)} did not report GPUs: one rank is assumed ({RANKS}: {AUTO})"
    return counts, [warning]


def _chosen_gpus(play: connections.Play, host: str) -> int | None:
    """Return the number of GPUs that train_job_gpus lists, or None if it lists none."""
    try:
        chosen = play.values(host, GPUS).get(GPUS)
    except UserError:  # reported when the job's variables are checked
        return 0
    return len(chosen) if isinstance(chosen, list) else 0 if chosen == "none" else None


def _gpus_of(play: connections.Play, host: str) -> int | None:
    """Return the number of GPUs of a host, or None if it did not answer."""
    try:
        answer = play.run(host, "gpus", ["sh", "-c", _COUNT_GPUS], "/")
        return int(reports.integer(0, MAX_SLOTS)(answer.get("gpus")))
    except (UnreachableError, OSError, ValueError):
        return None


def _earlier(args: connections.Args) -> list[str]:
    """Return the hosts of the job's earlier attempts, if this control node has its manifest."""
    if not args["job"]:
        return []
    try:
        manifest = read_manifest(Path(str(args["runs_dir"])).expanduser() / str(args["job"]))
    except (OSError, ValueError):
        return []
    return list(manifest["results_dirs"]) if manifest else []


def _port_problems(
    play: connections.Play, counts: Mapping[str, int], kinds: Mapping[str, str]
) -> Iterator[str]:
    """Yield a problem for each machine whose ranks cannot have consecutive ports."""
    if max(counts.values(), default=1) == 1:
        return
    default = job_variables.default_of(PORT)
    ports = {}
    for host, count in counts.items():
        if kinds[host] == "evaluator":
            continue
        first = str(play.values(host, PORT).get(PORT, default))
        if first.isdecimal():  # other values are reported when the job's variables are checked
            ports[host] = range(int(first), int(first) + count)
    beside = play.neighbors()
    for host, own in ports.items():
        count = counts[host]
        if count > 1 and own[-1] > _LAST_PORT:
            yield (
                f"{host} has {count} ranks ({RANKS}), whose ports would be {own[0]} to {own[-1]}, "
                f"but the last port is {_LAST_PORT}: set {PORT} to at most {_LAST_PORT + 1 - count}"
            )
    for host, other in itertools.combinations(ports, 2):
        if max(counts[host], counts[other]) == 1 or other not in beside[host]:
            continue
        shared = sorted(set(ports[host]) & set(ports[other]))
        if shared:
            yield (
                f"{host} and {other} are on the same machine, and both have port {shared[0]}, "
                f"because a host with several ranks ({RANKS}) has consecutive ports from {PORT}: "
                f"set another {PORT} for one of them"
            )


def _name_problems(play: connections.Play, counts: Mapping[str, int]) -> Iterator[str]:
    """Yield a problem for each rank whose name another host of the inventory has."""
    for host, count in counts.items():
        for name in (name_of(host, slot) for slot in range(1, count)):
            if play.has(name) and play.machine_of(name) != host:
                yield (
                    f"a rank of {host} ({RANKS}) would be called {name}, but the inventory has "
                    "another host of this name: rename one of these hosts"
                )
