"""What stands in the file of a machine's leases, and the rules for it.

An entry is a lease or a place in the queue; docs/formats.md describes the fields. All functions
work on the state that lease_file.LeaseFile yields. Standard library only, Python 3.8 and newer.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from . import processes
from .lease_file import user_name

#: What expires later than this is not believed.
_LONGEST_S = 86_400.0
_LONGEST_TEXT = 300

_NUMBER = (int, float)
_COMMON: Dict[str, Any] = {
    "created_at": _NUMBER,
    "job": str,
    "task": str,
    "attempt": int,
    "user": str,
    "since": _NUMBER,
    "expires": _NUMBER,
    "boot_id": str,
}
_LEASE = dict(
    _COMMON,
    resource=str,
    net=str,
    token=int,
    pid_ns=str,
    pid=(int, type(None)),
    start=(int, type(None)),
)
_TICKET = dict(_COMMON, resources=list, net=str)


class Holder(NamedTuple):
    """The rank that wants or has a lease. ``created_at`` and ``job`` are the same in all attempts
    and on all machines, and the order of the queue.
    """

    created_at: float
    job: str
    task: str
    attempt: int


def overlap(one: str, other: str) -> bool:
    """Tell whether two resources are the same, or one a part of the other."""
    return one == other or one.startswith(other + "/") or other.startswith(one + "/")


def uptime() -> float:
    """Return the seconds since the machine's start, which are the same in all its containers."""
    return round(time.clock_gettime(time.CLOCK_BOOTTIME), 3)


def namespace(kind: str) -> str:
    """Return the kernel's name of this process' namespace, such as ``net:[4026531840]``."""
    return os.readlink("/proc/self/ns/" + kind)


def new_entry(holder: Holder, seconds: float) -> Dict[str, Any]:
    """Return what a lease and a ticket have in common; it expires after ``seconds``."""
    return dict(
        holder._asdict(),
        user=user_name(os.getuid()),
        since=round(time.time(), 3),
        expires=uptime() + seconds,
        boot_id=processes.boot_id(),
        net=namespace("net"),
    )


def rank_of(entry: Dict[str, Any]) -> Tuple[float, str, str]:
    """Return whose an entry is, as the first three fields of Holder."""
    return entry["created_at"], entry["job"], entry["task"]


def order_of(entry: Dict[str, Any]) -> Tuple[float, str]:
    """Return the job of an entry, which is its place in the order of all jobs."""
    return entry["created_at"], entry["job"]


def is_here(lease: Dict[str, Any]) -> bool:
    """Tell whether a lease concerns this process: a port is one of a network namespace."""
    return lease["net"] == namespace("net") or not lease["resource"].startswith("port/")


def prune(state: Dict[str, Any]) -> None:
    """Take out what is void, and what is no lease or ticket at all."""
    now, boot_id, pid_ns = uptime(), processes.boot_id(), namespace("pid")

    def sound(entry: Any, fields: Dict[str, Any]) -> bool:
        if not isinstance(entry, dict):
            return False
        if not all(isinstance(entry.get(name), kind) for name, kind in fields.items()):
            return False
        # They are shown to people, and another user wrote them.
        texts = [value for value in entry.values() if isinstance(value, str)]
        if not all(text.isprintable() and len(text) < _LONGEST_TEXT for text in texts):
            return False
        return bool(entry["boot_id"] == boot_id and entry["expires"] < now + _LONGEST_S)

    def holds(lease: Dict[str, Any]) -> bool:
        if lease["pid"] is not None and lease["pid_ns"] == pid_ns:
            return _lives(lease["pid"], lease["start"], lease["expires"] > now)
        return bool(lease["expires"] > now)

    leases = [{name: e[name] for name in _LEASE} for e in state["leases"] if sound(e, _LEASE)]
    tickets = [{name: e[name] for name in _TICKET} for e in state["queue"] if sound(e, _TICKET)]
    state["leases"] = [lease for lease in leases if holds(lease)]
    state["queue"] = [ticket for ticket in tickets if ticket["expires"] > now]


def _lives(pid: int, started: Optional[int], renewed: bool) -> bool:
    if processes.is_alive(pid, started):
        return True
    if processes.start_time(pid) is not None:
        return False
    # The processes of other users may be hidden (hidepid).
    try:
        os.kill(pid, 0)
    except PermissionError:
        return renewed
    except (OSError, OverflowError):
        return False
    return False


def blockers_of(
    state: Dict[str, Any], resources: Dict[str, str], holder: Holder
) -> List[Dict[str, Any]]:
    """Return who is in the way of ``holder``; see leases.wait."""
    found = []
    queue = [t for t in state["queue"] if order_of(t) < holder[:2]]
    for resource, label in resources.items():
        jobs = set()  # that have it; some still have their place in the queue, too
        for entry in [*state["leases"], *queue]:
            queued = "resources" in entry
            names = entry["resources"] if queued else [entry["resource"]]
            if queued and order_of(entry) in jobs:
                continue
            same_net = entry["net"] == namespace("net") or not resource.startswith("port/")
            if not same_net or not any(overlap(resource, str(name)) for name in names):
                continue
            if order_of(entry) == holder[:2] and _yields(entry, holder):
                continue
            found.append(dict(tell(entry), label=label))
            jobs.add(order_of(entry))
    return found


def tell(entry: Dict[str, Any]) -> Dict[str, Any]:
    """Return what is told of a lease or a ticket."""
    fields = ("job", "task", "attempt", "user", "since", "created_at")
    queued = "resources" in entry
    told = {name: entry[name] for name in fields}
    return dict(told, queued=queued, started=not queued and entry["pid"] is not None)


def _yields(lease: Dict[str, Any], holder: Holder) -> bool:
    """Tell whether a lease of the same job gives way: one of an earlier attempt, or not started."""
    return bool(
        lease["attempt"] < holder.attempt
        or (lease["attempt"] == holder.attempt and lease["pid"] is None)
    )


def grant(
    state: Dict[str, Any], resources: Dict[str, str], holder: Holder, seconds: float
) -> Dict[str, int]:
    """Note the leases, in place of those of the job that they overlap, and return their tokens."""
    tokens: Dict[str, int] = {}
    net = namespace("net")
    for resource in resources:
        for lease in list(state["leases"]):
            same_net = lease["net"] == net or not resource.startswith("port/")
            if same_net and overlap(resource, lease["resource"]):
                state["leases"].remove(lease)
        state["last_token"] += 1
        tokens[resource] = state["last_token"]
        entry = new_entry(holder, seconds)
        entry.update(resource=resource, token=tokens[resource], pid=None, start=None)
        state["leases"].append(dict(entry, pid_ns=namespace("pid")))
    return tokens


def leave(state: Dict[str, Any], holder: Holder) -> None:
    """Take a rank out of the queue."""
    state["queue"] = [ticket for ticket in state["queue"] if rank_of(ticket) != holder[:3]]
