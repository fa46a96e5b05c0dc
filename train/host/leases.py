"""Leases of a machine's ports and GPUs: two jobs never share one by accident.

    python3 -S -E -m host.leases REQUEST

A rank holds a lease for its port (``port/12345``) and for each of its GPUs (``gpu/GPU-...``, and
``gpu/GPU-.../MIG-...`` for an instance of one, which the whole GPU excludes). It takes all of them
or none, before it starts, for some seconds; its supervisor then holds them for as long as it lives.
After a kill of everything or a restart of the machine they are void by themselves: what counts is
whether the supervisor (pid, start time, boot) is there. Where that cannot be seen, in another
container that shares the folder, it is whether the supervisor has renewed them.

Each lease has a token, a number that grows. Who finds another token in its place has lost the
lease, and ends. A later attempt of a job takes over what an earlier one holds.

Jobs that wait stand in a queue, in the order in which the jobs were made (``created_at``, job id),
which is the same on all machines. A waiting job holds nothing; train/control/leasing.py takes all
machines at once when all are free. A job that does not wait does not pass those that do.

Expiry is counted in seconds since the machine's start, which nobody sets back. Standard library
only, Python 3.8 and newer.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Collection, Dict, List, Optional

from . import lease_entries as entries
from . import lease_file, processes, records
from .lease_entries import Holder as Holder  # these are parts of this module, too
from .lease_file import LeaseError as LeaseError
from .lease_file import LeaseFile

#: Seconds that a lease lasts which was taken for a rank that has not started.
TAKEN_S = 120.0
#: Seconds that a lease lasts after its supervisor has renewed it, where it cannot be looked at.
HELD_S = 30.0
RENEW_S = 10.0
#: Seconds that a place in the queue lasts. The control node asks for it again all the time.
QUEUED_S = 60.0
#: Seconds that a job waits for a later one that came first here and will not start.
PATIENCE_S = 15.0
_POLL_S = 0.25
#: Seconds that a supervisor waits for the file; it has other things to see to.
_BRIEF_S = 0.5


class HeldError(LeaseError):
    """Others have what is wanted; ``blockers`` is what ``wait`` returns."""

    def __init__(self, blockers: List[Dict[str, Any]]) -> None:
        super().__init__("; ".join(describe(blocker) for blocker in blockers))
        self.blockers = blockers


def wanted(
    port: Optional[int], gpus: Optional[List[str]], machine_gpus: List[Dict[str, Any]]
) -> Dict[str, str]:
    """Return the resources of a rank and what people call them.

    Args:
        port: its TCP port; None for none.
        gpus: what it sees, by index or UUID; None where it chooses by itself.
        machine_gpus: those of its machine, as host.gpus.look returned them.
    """
    found = {} if port is None else {"port/%d" % port: "port %d" % port}
    for gpu in machine_gpus:
        parent = "gpu/" + gpu["uuid"]
        names = {str(gpu["index"]): (parent, "GPU %d" % gpu["index"])}
        names[gpu["uuid"]] = names[str(gpu["index"])]
        for uuid in gpu["instances"]:
            names[uuid] = (parent + "/" + uuid, "%s of GPU %d" % (uuid, gpu["index"]))
        found.update(names[name] for name in gpus or [] if name in names)
    return found


def holders(folder: str) -> List[Dict[str, Any]]:
    """Return the leases of this machine that hold, and change nothing.

    Returns:
        As ``wait``, with ``resource`` in place of ``label``.

    Raises:
        LeaseError: the file cannot be used.
    """
    state = LeaseFile(folder).read()
    entries.prune(state)
    here = (lease for lease in state["leases"] if entries.is_here(lease))
    return [dict(entries.tell(lease), resource=lease["resource"]) for lease in here]


def take(
    folder: str,
    resources: Dict[str, str],
    holder: Holder,
    seconds: float = TAKEN_S,
    patience: float = PATIENCE_S,
    stay: bool = False,
) -> Dict[str, int]:
    """Take all of ``resources`` for a rank that is about to start, and return their tokens.

    What an earlier attempt of the job holds is taken over. Of two jobs that come at once to several
    machines, and each first to some, the later one fails at once and gives back what it has; the
    earlier one waits for that.

    Args:
        resources: as ``wanted`` returned them.
        seconds: how long the leases last if the rank does not start.
        patience: the most seconds to wait for a later job that has not started.
        stay: whether the rank keeps its place in the queue.

    Raises:
        HeldError: another job has one of them or waits for it; none is taken.
        LeaseError: the file cannot be used.
    """
    if not resources:
        return {}
    deadline = time.monotonic() + patience
    while True:
        with LeaseFile(folder).locked() as state:
            entries.prune(state)
            blockers = entries.blockers_of(state, resources, holder)
            if not blockers:
                if not stay:
                    entries.leave(state, holder)
                return entries.grant(state, resources, holder, seconds)
        certain = [
            blocker
            for blocker in blockers
            if blocker["started"] or blocker["queued"] or entries.order_of(blocker) <= holder[:2]
        ]
        if certain or time.monotonic() > deadline:
            raise HeldError(blockers)
        time.sleep(_POLL_S)


def wait(
    folder: str, resources: Dict[str, str], holder: Holder, seconds: float
) -> List[Dict[str, Any]]:
    """Stand in the queue for ``resources``, and return who is in the way: nobody, or those that
    still are after ``seconds``. What was taken for this rank is given back.

    Returns:
        For each resource and job: ``label`` (of the resource), ``job``, ``task``, ``attempt``,
        ``user``, ``since`` (Unix time), ``created_at``, ``started``, and ``queued``, whether it
        waits as well.

    Raises:
        LeaseError: the file cannot be used.
    """
    deadline = time.monotonic() + seconds
    with LeaseFile(folder).locked() as state:
        entries.prune(state)
        place = dict(entries.new_entry(holder, QUEUED_S + seconds), resources=sorted(resources))
        for ticket in [t for t in state["queue"] if entries.rank_of(t) == holder[:3]]:
            place["since"] = ticket["since"]
            state["queue"].remove(ticket)
        state["queue"] = sorted([*state["queue"], place], key=entries.order_of)
        for lease in list(state["leases"]):
            if entries.rank_of(lease) == holder[:3] and lease["pid"] is None:
                state["leases"].remove(lease)
        blockers = entries.blockers_of(state, resources, holder)
    while blockers and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        with LeaseFile(folder).locked() as state:
            entries.prune(state)
            blockers = entries.blockers_of(state, resources, holder)
    return blockers


def give_back(
    folder: str,
    holder: Holder,
    limit: float = lease_file.LOCK_LIMIT,
    tokens: Optional[Collection[int]] = None,
) -> None:
    """Give back what a rank's attempt has, and its place in the queue.

    Args:
        limit: seconds to wait for the file.
        tokens: of leases that this process holds or that nobody has come to hold; None for all that
            the rank has in this attempt or an earlier one.

    Raises:
        LeaseError: the file cannot be used.
    """
    book = LeaseFile(folder)
    if not os.path.lexists(book.path):
        return
    with book.locked(limit) as state:
        entries.prune(state)
        for lease in [lease for lease in state["leases"] if entries.rank_of(lease) == holder[:3]]:
            if lease["attempt"] > holder.attempt:
                continue
            own = lease["pid"] in (None, os.getpid()) and lease["token"] in (tokens or ())
            if own or tokens is None:
                state["leases"].remove(lease)
        entries.leave(state, holder)


def describe(blocker: Dict[str, Any]) -> str:
    """Return in words who is in the way; ``blocker`` is one of those that ``wait`` returns."""
    return "%s is %s" % (blocker["label"], whose(blocker))


def whose(blocker: Dict[str, Any]) -> str:
    """Return the same without what it is about: ``in use by worker-0 of job night-1 (...)``."""
    when = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(blocker["since"]))
    what = "in use by %s of job %s (user %s, since %s)"
    if blocker["queued"]:
        what = "next for %s of job %s (user %s, waiting since %s)"
    elif not blocker["started"]:
        what = "taken for %s of job %s (user %s, since %s), which is about to start"
    return what % (blocker["task"], blocker["job"], blocker["user"], when)


class Held:
    """What a rank's supervisor holds, from its start to its end.

    Args:
        spec: the contents of ``rank.json``, of which ``leases`` is what ``rank_stage`` took.
    """

    def __init__(self, spec: Dict[str, Any]) -> None:
        leases = spec["leases"]
        self._folder: str = leases["folder"]
        self._resources: Dict[str, str] = leases["resources"]
        self._tokens: Dict[str, int] = leases["tokens"]
        self._holder = Holder(leases["created_at"], spec["job"], spec["task"], spec["attempt"])
        self._due = 0.0

    def confirm(self) -> None:
        """Make the leases those of this process, for as long as it lives.

        Leases that have run out before the start are taken again, if they are free.

        Raises:
            LeaseError: another job or another start of this rank has one of them; or the file
                cannot be used. The rank must not start.
        """
        if not self._resources:
            return
        with LeaseFile(self._folder).locked() as state:
            entries.prune(state)
            for resource, label in self._resources.items():
                for lease in self._own(state, resource):
                    if lease["token"] != self._tokens[resource] or lease["pid"] is not None:
                        raise LeaseError("%s was taken for another start of this rank" % label)
            self._claim(state)
        self._due = time.monotonic() + RENEW_S

    def renew(self) -> str:
        """Renew the leases, if it is time; return why the rank must end, or an empty string.

        A file that cannot be used just now is no reason; one that was lost is made again.
        """
        if not self._resources or time.monotonic() < self._due:
            return ""
        self._due = time.monotonic() + RENEW_S
        try:
            with LeaseFile(self._folder).locked(_BRIEF_S) as state:
                entries.prune(state)
                self._claim(state, is_running=True)
        except HeldError as error:
            return "lost its lease: %s" % error
        except LeaseError as error:
            records.note("the leases are not renewed: %s" % error)
        return ""

    def release(self) -> None:
        """Give the leases back, at the rank's end; what goes wrong is only noted."""
        if not self._resources:
            return
        try:
            # Another start of this rank may hold leases, too; they are its own.
            give_back(self._folder, self._holder, _BRIEF_S, self._tokens.values())
        except LeaseError as error:
            records.note("the leases run out by themselves: %s" % error)

    def _own(self, state: Dict[str, Any], resource: str) -> List[Dict[str, Any]]:
        """Return the leases of this attempt of the rank for a resource: one or none."""
        return [
            lease
            for lease in state["leases"]
            if (*entries.rank_of(lease), lease["attempt"]) == self._holder
            and lease["resource"] == resource
            and entries.is_here(lease)
        ]

    def _claim(self, state: Dict[str, Any], is_running: bool = False) -> None:
        """Hold every resource, under the token that it has if it still has one.

        Args:
            is_running: the rank is there; another job that has not started does so in vain.

        Raises:
            HeldError: another has one of them.
        """
        missing = {}
        for resource, label in self._resources.items():
            own = self._own(state, resource)
            if [lease["token"] for lease in own] != [self._tokens[resource]]:
                missing[resource] = label
        blockers = [
            blocker
            for blocker in entries.blockers_of(state, missing, self._holder)
            if not is_running or blocker["started"] or entries.order_of(blocker) == self._holder[:2]
        ]
        if blockers:
            raise HeldError(blockers)
        self._tokens = {**self._tokens, **entries.grant(state, missing, self._holder, HELD_S)}
        me = {"pid": os.getpid(), "start": processes.start_time(os.getpid())}
        for resource in self._resources:
            for lease in self._own(state, resource):
                lease.update(me, expires=entries.uptime() + HELD_S)


def release_rank(spec: Dict[str, Any]) -> None:
    """Give back what a rank has whose supervisor is gone, or that was never started.

    Args:
        spec: the contents of its ``rank.json``; of another version, it may hold no leases.
    """
    if spec.get("leases"):
        Held(spec).release()


def answer(request: Dict[str, Any]) -> Dict[str, Any]:
    """Do what the control node asks for.

    Args:
        request: ``do`` (``wait``, ``take`` or ``give_back``), ``folder``, ``resources``, ``holder``
            (a list, the fields of Holder), and ``seconds`` of ``wait`` and ``take``.

    Returns:
        ``blockers``; empty where all is done. ``error`` where the file cannot be used.
    """
    folder, resources = request["folder"], request["resources"]
    holder = Holder(*request["holder"])
    try:
        if request["do"] == "wait":
            return {"blockers": wait(folder, resources, holder, request["seconds"])}
        if request["do"] == "take":
            take(folder, resources, holder, request["seconds"], patience=0.0, stay=True)
        else:
            give_back(folder, holder)
    except HeldError as error:
        return {"blockers": error.blockers}
    except LeaseError as error:
        return {"blockers": [], "error": str(error)}
    return {"blockers": []}


if __name__ == "__main__":
    json.dump(answer(json.loads(sys.argv[1])), sys.stdout)
    print()
