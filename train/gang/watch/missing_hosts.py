"""Notices when hosts that a smaller gang lacks can join again, so that the job can grow.

A missing host must pass the check of a start twice in a row. The gang is then stopped like one that
is stopped by hand, so that it can save a checkpoint, and the next attempt starts with all hosts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from train.gang import connections, framework_versions, reports
from train.gang.connections import Args
from train.gang.errors import UserError
from train.gang.job_records import Manifest, hosts_of
from train.gang.watch.views import View
from train.host import frameworks

#: Values of ``train_job_grow``. With ALWAYS, a job grows even if it has no checkpoint.
AUTO, ALWAYS, NEVER = "auto", "always", "never"
#: How often in a row a host must pass its check.
ROUNDS = 2
#: The task types that train, and the inventory groups whose hosts can.
_TRAINERS = ("chief", "worker")
_ABLE = (*_TRAINERS, "spare")
#: The variable with what to check on a host, see the option ``options`` of ``gang_check``.
_CHECK = "__train_job_check"


@dataclass(frozen=True)
class Rules:
    """When a job may grow.

    Attributes:
        mode: AUTO or ALWAYS.
        check: seconds between two checks of a missing host.
        interval: the shortest time in seconds from the start of an attempt until it ends to grow,
            and from then on until the expected end of the job.
    """

    mode: str
    check: float
    interval: float


class Growth:
    """Checks missing hosts, each in a separate thread, until ``close``.

    Args:
        check: raises UnreachableError or OSError if a host cannot join.
        has_checkpoint: whether the job has written any checkpoint. It may ask a host, and raise the
            same errors as ``check``.
    """

    def __init__(
        self,
        missing: Sequence[str],
        rules: Rules,
        check: Callable[[str], None],
        has_checkpoint: Callable[[], bool],
    ) -> None:
        self._missing, self._rules, self._check = list(missing), rules, check
        self._has_checkpoint = has_checkpoint
        self._passed = dict.fromkeys(self._missing, 0)
        self._saved = rules.mode == ALWAYS
        self._over = threading.Event()
        self._began: float | None = None
        self._first: dict[str, tuple[float, int]] = {}  # the first step seen of each rank
        for host in self._missing:
            threading.Thread(target=self._watch, args=(host,), daemon=True).start()

    def _watch(self, host: str) -> None:
        while not self._over.wait(self._rules.check):
            try:
                self._check(host)
                self._passed[host] += 1
                if self._passed[host] >= ROUNDS and not self._saved:
                    self._saved = self._has_checkpoint()
            except Exception:  # any error: an unsuitable host only means that the job stays small
                self._passed[host] = 0

    def returned(self, now: float, training: Sequence[View]) -> list[str]:
        """Return the missing hosts with which the job should grow now, or an empty list.

        Call it from the start of the watch on, with the time of the monotonic clock and the ranks
        that train.
        """
        if self._began is None:
            self._began = now
        left = self._seconds_left(now, training)
        back = [host for host in self._missing if self._passed[host] >= ROUNDS]
        late_enough = now - self._began >= self._rules.interval
        is_due = self._saved and late_enough and left >= self._rules.interval
        return back if is_due else []

    def _seconds_left(self, now: float, training: Sequence[View]) -> float:
        """Return the seconds until the ranks will have made all steps; infinite if unknown."""
        longest = 0.0
        for view in training:
            step, steps = view.record.get("step"), view.record.get("steps")
            if step is None or not steps:
                return float("inf")
            at, first = self._first.setdefault(view.target.task, (now, step))
            if step <= first or now <= at:
                return float("inf")
            longest = max(longest, (now - at) / (step - first) * max(0, steps - step))
        return longest

    def close(self) -> None:
        """Stop checking. A check that is still running has no effect."""
        self._over.set()


def growth_of(
    play: connections.Play, args: Args, manifest: Manifest, training: Sequence[View]
) -> Growth | None:
    """Return what watches the missing hosts of an attempt; None if it has all of its workers.

    Args:
        args: the options of ``gang_watch``.
        training: the ranks that train.
    """
    groups = {kind: list(hosts) for kind, hosts in args["groups"].items()}
    known = hosts_of(manifest)
    for kind in _TRAINERS:  # the inventory may have more hosts than the one of the start
        groups[kind] = [host for host in groups.get(kind, ()) if host in known]
    wanted = sum(len(groups.get(kind, ())) for kind in _TRAINERS)
    now = sum(rank["task"].startswith(_TRAINERS) for rank in manifest["ranks"])
    if args["grow"] == NEVER or not training or now >= wanted:
        return None
    part = {rank["host"] for rank in manifest["ranks"]}
    able = [host for kind in _ABLE for host in groups.get(kind, ())]
    unwanted = {*part, *(args["without"] or {})}
    missing = [host for host in able if host in play.hosts and host not in unwanted]
    if not missing:
        return None
    try:
        requests = {host: _request(play, manifest, host) for host in missing}
    except UserError as error:
        connections.say(f"the job does not grow: {error}")
        return None

    def check(host: str) -> None:
        answer = play.call(host, "grow", "", requests[host])
        found = reports.mapping(reports.text(), reports.bounded)(answer.get("hosts"))[host]
        if found.get("failed"):
            raise OSError(str(found.get("msg")))
        facts = reports.facts(found.get("host"))
        if other := framework_versions.differing(facts, manifest.get("versions", {})):
            raise OSError(other)

    def has_checkpoint() -> bool:
        target = training[0].target
        request = {"call": "has_checkpoint", "rank_dir": target.rank_dir}
        return bool(play.call(target.host, "grow", target.host_python, request).get("found"))

    rules = Rules(str(args["grow"]), float(args["grow_check"]), float(args["grow_interval"]))
    return Growth(missing, rules, check, has_checkpoint)


def _request(play: connections.Play, manifest: Manifest, host: str) -> Args:
    """Return the request for the check of a host; see train/host/preflight.py.

    Raise UserError if a template in the host's variables is invalid.
    """
    return {
        "call": "host_checks",
        "hosts": {host: play.values(host, _CHECK)[_CHECK]},
        "names": play.hosts,
        "beside": play.neighbors()[host],
        "job": manifest["job"],
        "attempt": manifest["attempt"] + 1,
        "framework": manifest.get("framework", frameworks.TENSORFLOW),
        "modules": [],
        "wait": 0,
        "avoids_preempted": True,
    }
