"""Explains why running ranks cannot reach each other, with probes from every host."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from train.gang import cause_names, reports
from train.gang.watch.views import Target
from train.host import probe
from train.host.records import Probed

#: The address and port at which the other ranks reach each rank, by task.
Peers = Mapping[str, tuple[str, int]]
#: The rank whose host tries a connection, and the rank it connects to.
PathBetween = tuple[str, str]
#: Makes a rank's host check the connections to peers, and returns the results of host.probe.check.
#: Raises OSError or UnreachableError on failure.
Probe = Callable[[Target, Peers], Mapping[str, object]]


@dataclass(frozen=True)
class PeerFinding:
    """The reason why a job cannot continue."""

    task: str | None  # the rank at fault, or None if it may be either of two
    cause: str  # a key of causes.CAUSES
    reason: str  # text that follows the rank's name, or a sentence about both ranks


def peers_of(cluster: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, int]]:
    """Return the ranks' addresses and ports from the cluster part of TF_CONFIG."""
    found = {}
    for kind, places in cluster.items():
        for index, place in enumerate(places):
            host, _, port = place.rpartition(":")
            found[f"{kind}-{index}"] = (host.strip("[]"), int(port))
    return found


def explain(probed: Mapping[str, Probed], peers: Peers) -> PeerFinding | None:
    """Return the reason why ranks cannot reach each other, from the probes of their hosts.

    Return None if all listening ranks can be reached. A rank that does not listen yet, or no longer
    listens, is reported only if its address is wrong.
    """
    for task, probes in probed.items():
        if probes["proxy"]:
            reason = (
                "sends its messages to the other ranks through a proxy, because "
                f"{probes['proxy']} is set"
            )
            return PeerFinding(task, cause_names.PROXY, reason)
    for task, (address, port) in peers.items():
        if task not in probed:
            continue
        probes = probed[task]
        by = {peer: p["reached"].get(task) for peer, p in probed.items() if peer != task}
        failed = {peer: how for peer, how in by.items() if how not in (None, probe.OPEN)}
        if not failed:
            continue
        # With address translation, a connection to a rank that has ended is refused.
        ended = not probes["listening"] and probe.REFUSED in failed.values()
        if len(failed) == len(by) and not probes["own"] and not ended:
            addresses = ", ".join(probes["addresses"]) or "none"
            reason = (
                f"cannot be reached at {address}:{port} (train_job_address): this address does "
                f"not belong to its host, whose addresses are {addresses}"
            )
            return PeerFinding(task, cause_names.ADDRESS, reason)
    listening = {task for task, probes in probed.items() if probes["listening"]}
    broken = {(source, to) for source, to in broken_paths(probed) if to in listening}
    return _of_paths(broken, probed, peers)


def _of_paths(
    broken: Set[PathBetween], probed: Mapping[str, Probed], peers: Peers
) -> PeerFinding | None:
    """Return the finding that explains broken paths to listening ranks; None without any."""
    if not broken:
        return None
    task = cut_off(broken)
    sources = {to: {a for a, b in broken if b == to} for to in peers}
    unreached = [to for to in peers if sources[to] and sources[to] == probed.keys() - {to}]
    if task is None and len(unreached) == len(probed) > 2:
        task = unreached[0]  # the ports of all hosts are closed, and this is one of them
    if task is None:
        return PeerFinding(None, cause_names.NETWORK, each_other(broken))
    address, port = peers[task]
    deaf = {source: probed[source]["reached"][task] for source, to in broken if to == task}
    words = ", ".join(f"{other}: {how}" for other, how in sorted(deaf.items()))
    deafened = any(source == task for source, _ in broken)
    if task in unreached and (not deafened or len(unreached) == len(probed)):
        reason = (
            f"listens on port {port}, but no other rank can reach it at {address}:{port} ({words})"
        )
        return PeerFinding(task, cause_names.BLOCKED, reason)
    if deafened:
        return PeerFinding(task, cause_names.NETWORK, how_cut_off(broken, task))
    reason = f"cannot be reached at {address}:{port} by some ranks ({words})"
    return PeerFinding(task, cause_names.NETWORK, reason)


def broken_paths(probed: Mapping[str, Probed]) -> set[PathBetween]:
    """Return the paths on which connections failed.

    A refused connection does not count if its target does not listen yet or no longer listens.
    """
    broken = set()
    for source, target in tried_paths(probed):
        how = probed[source]["reached"][target]
        listens = target in probed and probed[target]["listening"]
        if how != probe.OPEN and (how != probe.REFUSED or listens):
            broken.add((source, target))
    return broken


def tried_paths(probed: Mapping[str, Probed]) -> set[PathBetween]:
    """Return the paths between different ranks on which hosts have tried to connect."""
    return {(a, b) for a, found in probed.items() for b in found["reached"] if a != b}


def cut_off(broken: Set[PathBetween]) -> str | None:
    """Return the rank at the end of most broken paths, or None if several ranks share the most.

    For a single pair of ranks, return the target if connections from it still work.
    """
    ends = Counter(task for path in broken for task in path)
    targets = {target for _, target in broken}
    most = [task for task, count in ends.items() if count == max(ends.values())]
    if len(most) > 1:
        most = [task for task in most if targets == {task}]
    return most[0] if len(most) == 1 else None


def how_cut_off(broken: Set[PathBetween], task: str) -> str:
    """Describe how a rank is cut off from others. The text follows the rank's name."""
    by = ", ".join(sorted({source for source, target in broken if target == task}))
    to = ", ".join(sorted({target for source, target in broken if source == task}))
    if by and to:
        return f"is cut off: it cannot reach {to}, and cannot be reached by {by}"
    return f"cannot reach {to}, although others can" if to else f"cannot be reached by {by}"


def each_other(broken: Set[PathBetween]) -> str:
    """Return a sentence about ranks that cannot reach each other."""
    named = sorted({task for path in broken for task in path})
    return f"{', '.join(named[:-1])} and {named[-1]} cannot reach each other"


class Diagnosis:
    """Makes the hosts of ``targets`` check the paths to ``peers``, with one thread per rank."""

    def __init__(self, targets: Sequence[Target], peers: Peers, ask: Probe) -> None:
        self._peers, self._ask, self.began = peers, ask, time.monotonic()
        self._probed: dict[str, Probed] = {}
        self._threads = [
            threading.Thread(target=self._probe, args=(target,), daemon=True)
            for target in targets
            if target.task in peers
        ]
        for thread in self._threads:
            thread.start()

    def _probe(self, target: Target) -> None:
        # Skip hosts that do not answer: reachability is tracked elsewhere.
        with contextlib.suppress(Exception):
            probed = reports.probed(self._ask(target, self._peers))
            if set(probed["reached"]) >= set(self._peers):
                self._probed[target.task] = probed

    @property
    def done(self) -> bool:
        """Whether all hosts have answered."""
        return not any(thread.is_alive() for thread in self._threads)

    def reached(self, task: str) -> dict[str, str]:
        """Return the outcome of the other ranks' connections to a rank, by task; see host.probe."""
        probed = dict(self._probed)
        return {other: found["reached"][task] for other, found in probed.items() if other != task}

    @property
    def tried(self) -> set[PathBetween]:
        """The paths on which hosts have tried to connect so far."""
        return tried_paths(dict(self._probed))

    @property
    def broken(self) -> set[PathBetween]:
        """The paths on which connections have failed so far."""
        return broken_paths(dict(self._probed))

    def finding(self) -> PeerFinding | None:
        """Return the finding that explains the answers so far, or None."""
        return explain(dict(self._probed), self._peers)
