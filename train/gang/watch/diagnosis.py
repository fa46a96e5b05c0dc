"""Why ranks that are up cannot reach one another: probes from every host, and what they mean."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from train.gang import reports
from train.gang.watch import causes
from train.gang.watch.views import Target
from train.host import probe
from train.host.records import Probed

#: Where each rank is for the others: address and port by task.
Peers = Mapping[str, tuple[str, int]]
#: Has a host check (see host.probe.check); raises OSError or UnreachableError where it cannot.
Probe = Callable[[Target, Peers], Mapping[str, object]]


@dataclass(frozen=True)
class Finding:
    """What keeps a gang waiting."""

    task: str  # the rank that is at fault
    cause: str  # a key of causes.CAUSES
    reason: str  # in words that go after the rank's name


def peers_of(cluster: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, int]]:
    """Return where the ranks are, from the cluster part of TF_CONFIG."""
    found = {}
    for kind, places in cluster.items():
        for index, place in enumerate(places):
            host, _, port = place.rpartition(":")
            found[f"{kind}-{index}"] = (host.strip("[]"), int(port))
    return found


def explain(probed: Mapping[str, Probed], peers: Peers) -> Finding | None:
    """Return what keeps the ranks from one another, by what the hosts that could check found. A
    rank that does not listen, yet or any more, is no finding, unless its address is wrong.
    """
    for task, own in probed.items():
        if own["proxy"]:
            reason = f"sends its messages to the others to a proxy, because of {own['proxy']}"
            return Finding(task, causes.PROXY, reason)
    for task, (address, port) in peers.items():
        if task not in probed:
            continue
        own = probed[task]
        by = {other: p["reached"].get(task) for other, p in probed.items() if other != task}
        failed = {other: how for other, how in by.items() if how not in (None, probe.OPEN)}
        if not failed:
            continue
        place = f"{address}:{port}"
        # Where address translation leads to the host, a rank that has ended refuses.
        ended = not own["listening"] and probe.REFUSED in failed.values()
        if len(failed) == len(by) and not own["own"] and not ended:
            addresses = ", ".join(own["addresses"]) or "none"
            reason = (
                f"cannot be reached at {place} (train_job_address): this is no address of its "
                f"host, which has {addresses}"
            )
            return Finding(task, causes.ADDRESS, reason)
        if not own["listening"]:
            continue
        words = ", ".join(f"{other}: {how}" for other, how in failed.items())
        if len(failed) == len(by):
            reason = f"listens on port {port}, but nobody reaches it at {place} ({words})"
            return Finding(task, causes.BLOCKED, reason)
        reason = f"is not reached at {place} by all ranks ({words})"
        return Finding(task, causes.NETWORK, reason)
    return None


class Diagnosis:
    """Has the hosts of ``targets`` check the paths to ``peers``, in threads of their own."""

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
        # What cannot be asked is left out; that its host is unresponsive is seen elsewhere.
        with contextlib.suppress(Exception):
            probed = reports.probed(self._ask(target, self._peers))
            if set(probed["reached"]) >= set(self._peers):
                self._probed[target.task] = probed

    @property
    def done(self) -> bool:
        """Whether all hosts have answered."""
        return not any(thread.is_alive() for thread in self._threads)

    def reached(self, task: str) -> dict[str, str]:
        """Return what the other ranks' connections to a rank came to, by task; see host.probe."""
        probed = dict(self._probed)
        return {other: found["reached"][task] for other, found in probed.items() if other != task}

    def finding(self) -> Finding | None:
        """Return what the answers so far mean."""
        return explain(dict(self._probed), self._peers)
