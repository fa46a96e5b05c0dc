"""Plans the ranks of a job, and the folders of their checkpoints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from train.gang import framework_versions, suggestions
from train.gang.errors import UserError
from train.gang.job_records import PlannedRank
from train.gang.login_failures import names_of
from train.host import frameworks, records
from train.host.host_facts import HostFacts

#: Facts about every participating inventory host, as reported by ``gang_check``.
FactsByHost = Mapping[str, HostFacts]


def check_groups(groups: Mapping[str, Sequence[str]], framework: str) -> None:
    """Raise UserError if an inventory group with hosts has a meaning only for TensorFlow."""
    if framework == frameworks.TENSORFLOW:
        return
    for kind in records.TASK_TYPES:
        if kind != "worker" and groups.get(kind):
            raise UserError(
                f"group {kind} has {', '.join(groups[kind])}, but only TensorFlow has the task "
                f"type {kind}, and train_job_framework is {framework}: move the hosts to the group "
                "worker, or empty the group"
            )


def plan_ranks(
    groups: Mapping[str, Sequence[str]],
    hosts: FactsByHost,
    framework: str = frameworks.TENSORFLOW,
) -> list[PlannedRank]:
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
    _check_versions(hosts, framework)

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


def _check_versions(hosts: FactsByHost, framework: str) -> None:
    for package, several in framework_versions.of_all(hosts).items():
        if len(several) == 1:
            continue
        by_version: dict[str, list[str]] = {version: [] for version in several}
        for host, facts in hosts.items():
            if package in framework_versions.of_host(facts):
                by_version[framework_versions.of_host(facts)[package]].append(host)
        found = "; ".join(f"{v} on {', '.join(names)}" for v, names in by_version.items())
        name = frameworks.NAMES[framework] if package == framework else package
        remedy = (
            f"run `{suggestions.command('setup', tags='tensorflow')}`"
            if framework == frameworks.TENSORFLOW
            else "install the same version on all of them, or set train_job_python to "
            "interpreters with the same version"
        )
        raise UserError(f"the hosts have different versions of {name} ({found}): {remedy}")


def check_gloo(ranks: Sequence[PlannedRank], hosts: FactsByHost) -> None:
    """Raise UserError if ranks of JAX on CPUs could not be reached by those of other machines.

    With JAX, gloo always listens on the address to which the host's name resolves.
    """
    if len({hosts[rank["host"]]["machine"] for rank in ranks}) == 1:
        return
    addresses = {
        rank["host"]: hosts[rank["host"]].get("gloo_address", "")
        for rank in ranks
        if not rank["gpus"]
    }
    unreachable = [host for host, address in addresses.items() if address.startswith("127.")]
    if unreachable:
        raise UserError(
            f"the ranks on {names_of(unreachable)} could not exchange data with the others: the "
            f"host's own name resolves to {addresses[unreachable[0]]}, on which JAX would listen. "
            "Map the name to the host's address in its /etc/hosts"
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
