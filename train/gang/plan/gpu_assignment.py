"""Assigns the GPUs of a machine to its ranks, each GPU to one rank only.

By default, TensorFlow would take all GPUs of the machine for every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any

from train.gang.errors import UserError
from train.gang.job_records import PlannedRank
from train.gang.plan.planned_ranks import FactsByHost
from train.host import frameworks
from train.host.host_facts import BusyGpu, Gpu, HostFacts
from train.host.plain_text import is_number

AUTO = "auto"
NONE = "none"


@dataclass(frozen=True)
class _Device:
    """A GPU or one of its MIG instances, with the UUID of that GPU or instance."""

    gpu: int
    uuid: str
    whole: bool

    def __str__(self) -> str:
        return f"GPU {self.gpu}" if self.whole else f"{self.uuid} of GPU {self.gpu}"

    def overlaps(self, other: _Device) -> bool:
        return self.gpu == other.gpu and (self.whole or other.whole or self.uuid == other.uuid)


def share(
    ranks: Sequence[PlannedRank],
    hosts: FactsByHost,
    machine_of: Callable[[str], str] = lambda host: host,
) -> None:
    """Set ``gpus`` of each of ``ranks`` to its values for ``CUDA_VISIBLE_DEVICES``.

    GPUs that a rank lists are reserved for it. If a host has several ranks (train_job_ranks), its
    list is divided evenly among them. The machine's other GPUs are divided among its
    training ranks with ``auto``, in rank order: equal shares of adjacent GPUs. A remainder stays
    unused, so that all these ranks train with the same number. GPUs that other processes or jobs
    use are left out, unless too few remain and the job can wait for them. Raise UserError if a GPU
    does not exist, is in use or is listed for two ranks, or if there are too few for ``auto``.

    Args:
        machine_of: returns the inventory host whose variables a host has.
    """
    machines: dict[str, list[PlannedRank]] = {}
    for rank in ranks:
        machines.setdefault(hosts[rank["host"]]["machine"], []).append(rank)
    for members in machines.values():
        _share_machine(members, hosts, _lists(members, hosts, machine_of))


def visible(
    ranks: Sequence[PlannedRank], hosts: FactsByHost, framework: str
) -> dict[str, list[str] | None]:
    """Return the value of each host's rank for ``CUDA_VISIBLE_DEVICES``; None to leave it unset.

    A rank sees its own GPUs. With PyTorch, it sees those of all ranks of its machine, so that
    LOCAL_RANK is the index of a GPU, as with torchrun: first one GPU of each local rank, then the
    second ones. That requires that all of these ranks have as many GPUs.
    """
    seen = {rank["host"]: rank["gpus"] for rank in ranks}
    machines: dict[str, list[str]] = {}
    for host in seen if framework == frameworks.TORCH else ():
        machines.setdefault(hosts[host]["machine"], []).append(host)
    for members in machines.values():
        gpus = [_by_one_kind_of_name(seen[host] or [], hosts[host]) for host in members]
        if len(members) > 1 and gpus[0] and len({len(own) for own in gpus}) == 1:
            in_turns = [name for turn in zip(*gpus, strict=True) for name in turn]
            seen |= dict.fromkeys(members, in_turns)
    return seen


def _by_one_kind_of_name(names: Sequence[str], machine: HostFacts) -> list[str]:
    """Return GPUs by their UUIDs, because CUDA does not accept a mixture with indices."""
    uuids = {str(gpu["index"]): gpu["uuid"] for gpu in machine["gpus"]}
    return [uuids.get(name, name) for name in names]


def _lists(
    members: Sequence[PlannedRank], hosts: FactsByHost, machine_of: Callable[[str], str]
) -> dict[str, list[Any]]:
    """Return each rank's part of the list of GPUs of its inventory host, by host.

    Raise UserError if a list cannot be divided evenly.
    """
    sharing: dict[str, list[str]] = {}
    for rank in members:
        sharing.setdefault(machine_of(rank["host"]), []).append(rank["host"])
    parts = {}
    for machine, names in sharing.items():
        wanted = hosts[names[0]]["gpus_wanted"]
        if not isinstance(wanted, list) or len(names) == 1:
            continue
        each, rest = divmod(len(wanted), len(names))
        if rest:
            raise UserError(
                f"train_job_gpus of {machine} lists {_count(len(wanted), 'GPU')} for its "
                f"{len(names)} ranks (train_job_ranks), but each rank needs the same number: list "
                f"a multiple of {len(names)}, or set it to auto"
            )
        for place, name in enumerate(names):
            parts[name] = wanted[place * each : (place + 1) * each]
    return parts


def _share_machine(
    members: Sequence[PlannedRank], hosts: FactsByHost, lists: dict[str, list[Any]]
) -> None:
    taken: list[tuple[_Device, str]] = []
    waiting = []
    for rank in members:
        host, facts = rank["host"], hosts[rank["host"]]
        wanted, gpus = lists.get(host, facts["gpus_wanted"]), facts["gpus"]
        if wanted is None:
            rank["gpus"] = None
        elif wanted == AUTO and rank["type"] in ("chief", "worker") and gpus:
            waiting.append(rank)
        elif wanted in (AUTO, NONE):
            rank["gpus"] = [] if gpus else None
        else:
            named = _named(host, wanted, gpus)
            for device in named:
                _take(device, host, taken)
                for found in _busy(device, facts):
                    if not found["waits"]:
                        why, remedy = found["why"], found["remedy"]
                        raise UserError(f"{host} requests {device}, which is {why}: {remedy}")
            rank["gpus"] = _visible(named, wanted) if gpus else None
    if waiting:
        names = [rank["host"] for rank in waiting]
        free = _free(names, hosts[names[0]], {device.gpu for device, _ in taken})
        each = len(free) // len(waiting)
        for place, rank in enumerate(waiting):
            rank["gpus"] = [str(gpu) for gpu in free[place * each : (place + 1) * each]]


def _free(waiting: Sequence[str], machine: HostFacts, used: Set[int]) -> list[int]:
    """Return the indices of the GPUs to divide among the hosts ``waiting``.

    GPUs in ``used`` are excluded, because other ranks list them. Raise UserError if there are too
    few.
    """
    wholes = [_Device(gpu["index"], gpu["uuid"], True) for gpu in machine["gpus"]]
    busy = {device: _busy(device, machine) for device in wholes if device.gpu not in used}
    unused = [device.gpu for device, why_busy in busy.items() if not why_busy]
    awaited = [d.gpu for d, why_busy in busy.items() if all(reason["waits"] for reason in why_busy)]
    for free in (unused, awaited):
        if len(free) >= len(waiting):
            return free
    names, count = ", ".join(waiting), _count(len(wholes), "GPU")
    by_name = f", {len(used)} of them assigned to other ranks" if used else ""
    taken = [(device, why_busy[0]) for device, why_busy in busy.items() if why_busy]
    if taken:
        reasons = "; ".join(f"{device} is {why_busy['why']}" for device, why_busy in taken)
        raise UserError(
            f"{names}: too few GPUs are free. The machine has {count}{by_name}; {reasons}. "
            f"Remedy: {taken[0][1]['remedy']}"
        )
    remedy = (
        "set its train_job_gpus to none, or assign fewer GPUs to the other ranks"
        if len(waiting) == 1
        else "to train on CPUs, set train_job_gpus to none for all ranks; otherwise, remove "
        "ranks on this machine from the inventory, or lower its train_job_ranks"
    )
    raise UserError(
        f"{names}: too few GPUs for {_count(len(waiting), 'rank')} on one machine, which has "
        f"{count}{by_name}: {remedy}"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _busy(device: _Device, machine: HostFacts) -> list[BusyGpu]:
    """Return the reasons why a device, its GPU or one of its instances is busy."""
    gpu = next(gpu for gpu in machine["gpus"] if gpu["index"] == device.gpu)
    parts = [gpu["uuid"], *(gpu["instances"] if device.whole else [device.uuid])]
    return [machine["gpus_busy"][uuid] for uuid in parts if uuid in machine["gpus_busy"]]


def _named(host: str, wanted: Any, gpus: Sequence[Gpu]) -> list[_Device]:
    """Return the devices that ``train_job_gpus`` of a host lists. Raise UserError if invalid."""
    if not isinstance(wanted, list) or any(
        isinstance(name, bool) or not isinstance(name, int | str) for name in wanted
    ):
        raise UserError(
            f"train_job_gpus of {host} is {wanted!r}: use auto, none, or a list of indices "
            "or UUIDs such as [0, 1]"
        )
    known: dict[str, _Device] = {}
    for gpu in gpus:
        whole = _Device(gpu["index"], gpu["uuid"], True)
        known[str(whole.gpu)] = known[whole.uuid] = whole
        for uuid in gpu["instances"]:
            known[uuid] = _Device(whole.gpu, uuid, False)
    for name in wanted:
        if str(name) not in known:
            indices = ", ".join(str(gpu["index"]) for gpu in gpus)
            listed = f"GPU{'' if len(gpus) == 1 else 's'} {indices}" if gpus else "no GPUs"
            raise UserError(
                f"train_job_gpus of {host} contains GPU {name}, which does not exist: its "
                f"machine has {listed} (nvidia-smi -L lists GPUs with their UUIDs)"
            )
    return [known[str(name)] for name in wanted]


def _take(device: _Device, host: str, taken: list[tuple[_Device, str]]) -> None:
    for other, owner in taken:
        if (device, host) == (other, owner):
            raise UserError(
                f"train_job_gpus of {host} lists {device} twice: remove one of the entries"
            )
        if device.overlaps(other):
            raise UserError(
                f"{owner} requests {other}, and {host} requests {device} on the same machine, "
                "but only one rank can use a GPU or an instance of a GPU: change train_job_gpus"
            )
    taken.append((device, host))


def _visible(named: Sequence[_Device], wanted: Sequence[int | str]) -> list[str]:
    """Return the devices all as indices or all as UUIDs, because CUDA does not accept a mixture."""
    if all(is_number(str(name)) for name in wanted):
        return [str(device.gpu) for device in named]
    return [device.uuid for device in named]
