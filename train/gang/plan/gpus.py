"""Which GPUs of a machine each rank gets: no two ranks the same one.

TensorFlow itself would take all GPUs of the machine for every rank.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

from train.gang.plan.ranks import Hosts, PlanError
from train.gang.records import PlannedRank
from train.host.records import BusyGpu, Gpu, HostFacts

AUTO = "auto"
NONE = "none"


@dataclass(frozen=True)
class _Device:
    """A GPU, or a MIG instance of it; the UUID is that of the GPU or of the instance."""

    gpu: int
    uuid: str
    whole: bool

    def __str__(self) -> str:
        return f"GPU {self.gpu}" if self.whole else f"{self.uuid} of GPU {self.gpu}"

    def overlaps(self, other: _Device) -> bool:
        return self.gpu == other.gpu and (self.whole or other.whole or self.uuid == other.uuid)


def share(ranks: Sequence[PlannedRank], hosts: Hosts) -> None:
    """Plan the GPUs of each of ``ranks``, as ``CUDA_VISIBLE_DEVICES`` takes them.

    What ranks name is theirs. The other GPUs of a machine are dealt out to its ranks that say
    ``auto`` and train, in the order of the ranks: even shares, each of neighbouring GPUs. What is
    left of an uneven number stays unused, because a gang's ranks train with equal numbers. GPUs
    that others use are left out, unless too few are left and the job waits for them.

    Args:
        hosts: of them ``machine``; ``gpus``, those of the machine; ``gpus_wanted``, which is
            ``auto``, ``none``, a list, or None for a rank that is to be left alone; ``gpus_busy``,
            why some are not to be had.

    Raises:
        PlanError: a GPU that does not exist, is in use or in two ranks, or too few for the ranks
            that say ``auto``; the hosts are named.
    """
    machines: dict[str, list[PlannedRank]] = {}
    for rank in ranks:
        machines.setdefault(hosts[rank["host"]]["machine"], []).append(rank)
    for members in machines.values():
        _share_machine(members, hosts)


def _share_machine(members: Sequence[PlannedRank], hosts: Hosts) -> None:
    """Plan the GPUs of the ranks of one machine."""
    taken: list[tuple[_Device, str]] = []
    waiting = []
    for rank in members:
        host, wanted = rank["host"], hosts[rank["host"]]["gpus_wanted"]
        gpus = hosts[host]["gpus"]
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
                for found in _busy(device, hosts[host]):
                    if not found["waits"]:
                        why, remedy = found["why"], found["remedy"]
                        raise PlanError(f"{host} names {device}, which is {why}: {remedy}")
            rank["gpus"] = _visible(named, wanted) if gpus else None
    if not waiting:
        return

    used = {device.gpu for device, _ in taken}
    names = [rank["host"] for rank in waiting]
    free = _free(names, hosts[names[0]], used)
    each = len(free) // len(waiting)
    for place, rank in enumerate(waiting):
        rank["gpus"] = [str(gpu) for gpu in free[place * each : (place + 1) * each]]


def _free(waiting: Sequence[str], machine: HostFacts, used: Set[int]) -> list[int]:
    """Return the indices of the GPUs that are left for the ranks of the hosts ``waiting``, which
    say ``auto``, besides those ``used`` by name.
    """
    wholes = [_Device(gpu["index"], gpu["uuid"], True) for gpu in machine["gpus"]]
    left = [device for device in wholes if device.gpu not in used]
    busy = {device: _busy(device, machine) for device in left}
    unused = [device.gpu for device in left if not busy[device]]
    awaited = [device.gpu for device in left if all(found["waits"] for found in busy[device])]
    for free in (unused, awaited):
        if len(free) >= len(waiting):
            return free
    count = f"{len(wholes)} GPU{'s' if len(wholes) > 1 else ''}"
    by_name = f", of which other ranks name {len(used)}" if used else ""
    taken = [(device, found) for device, found in busy.items() if found]
    if taken:
        reasons = "; ".join(f"{device} is {found[0]['why']}" for device, found in taken)
        raise PlanError(
            f"{', '.join(waiting)}: there are too few free GPUs, the machine has {count}{by_name}; "
            f"{reasons}: {taken[0][1][0]['remedy']}"
        )
    raise PlanError(
        f"{', '.join(waiting)}: {len(waiting)} ranks of one machine want a GPU, and it has "
        f"{count}{by_name}: set train_job_gpus to none for all ranks, which then train on "
        "CPUs, or take ranks of this machine out of the inventory"
        if len(waiting) > 1
        else f"{waiting[0]} wants a GPU, and other ranks name all of its machine, {count}: set "
        "its train_job_gpus to none, or name fewer GPUs there"
    )


def _busy(device: _Device, machine: HostFacts) -> list[BusyGpu]:
    """Return why a device is not to be had, itself or what it is a part of or has as a part."""
    gpu = next(gpu for gpu in machine["gpus"] if gpu["index"] == device.gpu)
    parts = [gpu["uuid"], *(gpu["instances"] if device.whole else [device.uuid])]
    return [machine["gpus_busy"][uuid] for uuid in parts if uuid in machine["gpus_busy"]]


def _named(host: str, wanted: Any, gpus: Sequence[Gpu]) -> list[_Device]:
    """Return what a list names."""
    if not isinstance(wanted, list) or any(
        isinstance(name, bool) or not isinstance(name, int | str) for name in wanted
    ):
        raise PlanError(
            f"train_job_gpus of {host} is {wanted!r}: it takes auto, none, or a list of indices or "
            "UUIDs such as [0, 1]"
        )
    known: dict[str, _Device] = {}
    for gpu in gpus:
        whole = _Device(gpu["index"], gpu["uuid"], True)
        known[str(whole.gpu)] = known[whole.uuid] = whole
        for uuid in gpu["instances"]:
            known[uuid] = _Device(whole.gpu, uuid, False)
    named = []
    for name in wanted:
        if str(name) not in known:
            there = f"{len(gpus)} GPU{'s' if len(gpus) != 1 else ''}"
            listed = f", {', '.join(str(gpu['index']) for gpu in gpus)}" if gpus else ""
            raise PlanError(
                f"train_job_gpus of {host} names GPU {name}, which does not exist: its machine has "
                f"{there}{listed} (nvidia-smi -L lists them with their UUIDs)"
            )
        named.append(known[str(name)])
    return named


def _take(device: _Device, host: str, taken: list[tuple[_Device, str]]) -> None:
    for other, owner in taken:
        if device.overlaps(other):
            if device != other:
                clash = f"{owner} names {other}, {host} names {device}, a part of one another"
            elif owner == host:
                clash = f"{host} names {device} twice"
            else:
                clash = f"{owner} and {host}, ranks of one machine, both name {device}"
            raise PlanError(f"{clash}: a GPU belongs to one rank; change train_job_gpus")
    taken.append((device, host))


def _visible(named: Sequence[_Device], wanted: Sequence[int | str]) -> list[str]:
    """Return the devices all as indices or all as UUIDs: CUDA reads no mixture of them."""
    if all(str(name).isdigit() for name in wanted):
        return [str(device.gpu) for device in named]
    return [device.uuid for device in named]
