"""Plans the ranks of a job, and the folders of their checkpoints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from train.gang import suggestions
from train.gang.errors import UserError
from train.gang.job_records import PlannedRank
from train.host import records
from train.host.host_facts import HostFacts

#: Facts about every participating inventory host, as reported by ``host_check``.
FactsByHost = Mapping[str, HostFacts]


def plan_ranks(groups: Mapping[str, Sequence[str]], hosts: FactsByHost) -> list[PlannedRank]:
    """Return the ranks of the job, chief first.

    ``groups`` has the hosts of each task type, in the order of their indices. Raise UserError if
    the ranks cannot form a cluster.
    """
    members = [(kind, host) for kind in records.TASK_TYPES for host in groups.get(kind, ())]
    if not groups.get("worker") and not groups.get("chief"):
        raise UserError("the inventory groups chief and worker are empty: add a host")
    for _, host in members:
        kinds = [kind for kind, name in members if name == host]
        if len(kinds) > 1:
            raise UserError(
                f"host {host} is in the groups {' and '.join(kinds)}, but each inventory host is "
                "one rank: to run a second rank on this machine, add another inventory host "
                "with the same ansible_host"
            )
    for kind in ("chief", "evaluator"):
        if len(groups.get(kind, ())) > 1:
            named = ", ".join(groups[kind])
            raise UserError(f"group {kind} has {named}, but TensorFlow supports at most one {kind}")
    _check_ports(members, hosts)
    _check_versions(hosts)

    cluster_size = sum(kind != "evaluator" for kind, _ in members)
    # Without a chief to coordinate them, workers with parameter servers train by themselves.
    served = bool(groups.get("ps")) and bool(groups.get("chief"))
    machines = Counter(hosts[host]["machine"] for _, host in members)
    return [
        PlannedRank(
            host=host,
            task=f"{kind}-{groups[kind].index(host)}",
            type=kind,
            index=groups[kind].index(host),
            port=hosts[host]["port"] if kind != "evaluator" and cluster_size > 1 else None,
            non_training=kind in ("ps", "evaluator") or (served and kind == "worker"),
            ranks_on_machine=machines[hosts[host]["machine"]],
            gpus=None,
            results_dir="",
            checkpoint_copy=False,
        )
        for kind, host in members
    ]


def _check_ports(members: Sequence[tuple[str, str]], hosts: FactsByHost) -> None:
    taken: dict[tuple[str, int | None], str] = {}
    for host in (host for kind, host in members if kind != "evaluator"):
        address, port = hosts[host]["address"], hosts[host]["port"]
        for place in (address, hosts[host]["machine"]):
            other = taken.setdefault((place, port), host)
            if other != host:
                raise UserError(
                    f"the ranks {other} and {host} have the same address and port, "
                    f"{address}:{port}: set a different train_job_port for each"
                )


def _check_versions(hosts: FactsByHost) -> None:
    versions: dict[str, list[str]] = {}
    for host, facts in hosts.items():
        if facts["tensorflow"] is not None:
            versions.setdefault(facts["tensorflow"], []).append(host)
    if len(versions) > 1:
        found = "; ".join(f"{v} on {', '.join(names)}" for v, names in sorted(versions.items()))
        raise UserError(
            f"the hosts have different versions of TensorFlow ({found}): run "
            f"`{suggestions.command('setup', tags='tensorflow')}`"
        )


def keep_checkpoints(
    ranks: Sequence[PlannedRank], hosts: FactsByHost, results_dirs: Mapping[str, str], copy: bool
) -> None:
    """Set the checkpoint folder of each rank and, with ``copy``, the rank that keeps a copy.

    A folder is named after the first task that its host had in the job (``results_dirs``). The copy
    is kept by the first training rank that is not on the chief's machine. If the chief's machine is
    lost, this rank becomes the chief.
    """
    chief = hosts[ranks[0]["host"]]["machine"]
    for rank in ranks:
        rank["results_dir"] = results_dirs.get(rank["host"], rank["task"])
        is_apart = hosts[rank["host"]]["machine"] != chief
        rank["checkpoint_copy"] = copy and is_apart and not rank["non_training"]
        copy = copy and not rank["checkpoint_copy"]
