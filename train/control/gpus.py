"""Which GPUs of a machine each rank gets: no two ranks the same one.

Pure functions over what the hosts said. TensorFlow itself would take all GPUs of the machine for
every rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from train.control.plan import PlanError, Rank

AUTO = "auto"
NONE = "none"


@dataclass(frozen=True)
class _Device:
    """A GPU or a MIG instance of one.

    Attributes:
        gpu: the index of the GPU.
        uuid: of the GPU, or of the instance.
        whole: whether it is the GPU.
    """

    gpu: int
    uuid: str
    whole: bool

    def __str__(self) -> str:
        return f"GPU {self.gpu}" if self.whole else f"{self.uuid} of GPU {self.gpu}"

    def overlaps(self, other: _Device) -> bool:
        return self.gpu == other.gpu and (self.whole or other.whole or self.uuid == other.uuid)


def share(ranks: Sequence[Rank], hosts: Mapping[str, Mapping[str, Any]]) -> list[Rank]:
    """Return ``ranks`` with the GPUs of each, as ``CUDA_VISIBLE_DEVICES`` takes them.

    What ranks name is theirs. The other GPUs of a machine are dealt out to its ranks that say
    ``auto`` and train, in the order of the ranks: even shares, each of neighbouring GPUs. What is
    left of an uneven number stays unused, because a gang's ranks train with equal numbers.

    Args:
        hosts: what ``rank_preflight`` said of every inventory host: ``machine``; ``gpus``, those of
            the machine; ``gpus_wanted``, which is ``auto``, ``none``, a list, or None for a rank
            that is to be left alone.

    Raises:
        PlanError: a GPU that does not exist or is in two ranks, or too few for the ranks that say
            ``auto``; the hosts are named.
    """
    machines: dict[str, list[Rank]] = {}
    for rank in ranks:
        machines.setdefault(hosts[rank.host]["machine"], []).append(rank)
    given: dict[str, tuple[str, ...] | None] = {}
    for members in machines.values():
        given.update(_share_machine(members, hosts))
    return [replace(rank, gpus=given[rank.host]) for rank in ranks]


def _share_machine(
    members: Sequence[Rank], hosts: Mapping[str, Mapping[str, Any]]
) -> dict[str, tuple[str, ...] | None]:
    """Return the GPUs of the ranks of one machine, by inventory host."""
    given: dict[str, tuple[str, ...] | None] = {}
    taken: list[tuple[_Device, str]] = []
    waiting = []
    for rank in members:
        host, wanted = rank.host, hosts[rank.host]["gpus_wanted"]
        gpus = hosts[host]["gpus"]
        if wanted is None:
            given[host] = None
        elif wanted == AUTO and rank.type in ("chief", "worker") and gpus:
            waiting.append(host)
        elif wanted in (AUTO, NONE):
            given[host] = () if gpus else None
        else:
            named = _named(host, wanted, gpus)
            for device in named:
                _take(device, host, taken)
            given[host] = _visible(named, wanted) if gpus else None
    if not waiting:
        return given

    gpus = [gpu["index"] for gpu in hosts[waiting[0]]["gpus"]]
    used = {device.gpu for device, _ in taken}
    free = [gpu for gpu in gpus if gpu not in used]
    each = len(free) // len(waiting)
    if not each:
        count = f"{len(gpus)} GPU{'s' if len(gpus) > 1 else ''}"
        by_name = f", of which other ranks name {len(used)}" if used else ""
        raise PlanError(
            f"{', '.join(waiting)}: {len(waiting)} ranks of one machine want a GPU, and it has "
            f"{count}{by_name}: set train_job_gpus to none for all ranks, which then train on "
            "CPUs, or take ranks of this machine out of the inventory"
            if len(waiting) > 1
            else f"{waiting[0]} wants a GPU, and other ranks name all of its machine, {count}: set "
            "its train_job_gpus to none, or name fewer GPUs there"
        )
    for place, host in enumerate(waiting):
        given[host] = tuple(str(gpu) for gpu in free[place * each : (place + 1) * each])
    return given


def _named(host: str, wanted: Any, gpus: Sequence[Mapping[str, Any]]) -> list[_Device]:
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


def _visible(named: Sequence[_Device], wanted: Sequence[int | str]) -> tuple[str, ...]:
    """Return the devices all as indices or all as UUIDs: CUDA reads no mixture of them."""
    if all(str(name).isdigit() for name in wanted):
        return tuple(str(device.gpu) for device in named)
    return tuple(device.uuid for device in named)
