"""Waits until a job's ports and GPUs are free on all machines, then leases them all at once.

A waiting job holds nothing. It is queued on every machine (``host.leases``). Once no machine
reports a blocker, the leases of all machines are requested at the same time. If one machine
refuses, the leases on the others are released. Jobs that wait for each other's machines therefore
cannot deadlock. Queues are ordered by the jobs' creation times.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from train.gang.errors import UnreachableError
from train.gang.job_records import Manifest
from train.host import leases

#: Seconds that a host waits for blockers to leave before it reports them.
POLL_S = 8.0
_PAUSE_S = 0.5
#: Maximum length of a blocker's description from a host, in characters.
_LONGEST = 300

#: Parameters of host.leases.answer.
Request = dict[str, Any]
#: Sends a request to an inventory host and returns the answer. Raises UnreachableError, or OSError
#: if the request failed.
Ask = Callable[[str, Request], Mapping[str, object]]


class LeasingError(Exception):
    """The job cannot get its leases. The message is for the user."""


class JobStoppedError(Exception):
    """The job was stopped while it waited. The message completes the sentence ``the job ...``."""


def requests_of(manifest: Manifest) -> dict[str, Request]:
    """Return the lease request for each inventory host of an attempt."""
    found: dict[str, Request] = {}
    for rank in manifest["ranks"]:
        host = manifest["hosts"][rank["host"]]
        found[rank["host"]] = {
            "folder": host["lease_dir"],
            "resources": leases.wanted(rank["port"], rank["gpus"], host["gpus"]),
            "holder": [manifest["created_at"], manifest["job"], rank["task"], manifest["attempt"]],
        }
    return found


class Waiting:
    """A job that waits for its ports and GPUs. It asks all hosts in parallel.

    Args:
        requests: lease requests by inventory host.
        ask: sends a request to a host.
        say: shows a line to the user.
        note: is called with an inventory host and a description of its blockers, which is empty if
            there are none, whenever they change.
        unreachable_timeout: maximum seconds for which a host may be unreachable.
    """

    def __init__(
        self,
        requests: Mapping[str, Request],
        ask: Ask,
        say: Callable[[str], None] = lambda line: None,
        note: Callable[[str, str], None] = lambda host, text: None,
        unreachable_timeout: float = 60.0,
    ) -> None:
        self._requests = {host: dict(r) for host, r in requests.items() if r["resources"]}
        self._ask, self._say, self._note = ask, say, note
        self._unreachable_timeout = unreachable_timeout
        self._unresponsive_since: dict[str, float] = {}
        self._shown: dict[str, str] = {}

    def take(self, limit: float) -> None:
        """Lease all ports and GPUs, after waiting at most ``limit`` seconds for other jobs.

        ``stage`` then takes over the leases. Raise LeasingError if the wait takes too long or a
        host is unreachable, JobStoppedError if the job was stopped. In both cases, nothing remains
        leased.
        """
        deadline = time.monotonic() + limit
        do = "queue"
        try:
            while True:
                left = deadline - time.monotonic()
                blockers = self._on_all_hosts(do, max(0.0, min(POLL_S, left)))
                do = "wait"
                if not any(blockers.values()):
                    blockers = self._on_all_hosts("take", leases.TAKEN_S)
                    if not any(blockers.values()):
                        return  # otherwise the next request returns the leases
                if time.monotonic() > deadline:
                    named = "; ".join(f"{host}: {text}" for host, text in blockers.items() if text)
                    waited = f"gave up after {limit:g} s (train_job_queue_timeout)"
                    raise LeasingError(f"{named}; {waited}")
        except BaseException:
            with contextlib.suppress(LeasingError, JobStoppedError):
                self._on_all_hosts("give_back")
            raise

    def _on_all_hosts(self, do: str, seconds: float = 0.0) -> dict[str, str]:
        """Send the request ``do`` to all hosts. Return each host's blockers, and show changes.

        Raise LeasingError if a host is unresponsive for too long, JobStoppedError if the job was
        stopped.
        """
        began, answers, blockers = time.monotonic(), self._answers(do, seconds), {}
        known = [answer for answer in answers.values() if not isinstance(answer, Exception)]
        if stops := _lines([answer["stopped"] for answer in known if answer.get("stopped")]):
            raise JobStoppedError(stops[0])
        for host, answer in answers.items():
            if isinstance(answer, Exception):
                since = self._unresponsive_since.setdefault(host, began)
                blockers[host] = f"is unreachable: {answer}"
                if time.monotonic() - since > self._unreachable_timeout:
                    raise LeasingError(f"{host} {blockers[host]}")
            else:
                self._unresponsive_since.pop(host, None)
                blockers[host] = "; ".join(_lines(answer.get("blockers")))
        for host, text in blockers.items():
            if do != "give_back" and text != self._shown.get(host, ""):
                self._shown[host] = text
                self._note(host, text)
                self._say(f"{host}: waiting: {text}" if text else f"{host}: no longer waiting")
        return blockers

    def _answers(self, do: str, seconds: float) -> dict[str, Mapping[str, object] | Exception]:
        """Return each host's answer, or the error that prevented it."""

        def ask(host: str) -> Mapping[str, object] | Exception:
            try:
                return self._ask(host, {**self._requests[host], "do": do, "seconds": seconds})
            except (UnreachableError, OSError) as error:
                time.sleep(_PAUSE_S)
                return error

        if not self._requests:
            return {}
        with ThreadPoolExecutor(len(self._requests)) as pool:
            return dict(zip(self._requests, pool.map(ask, self._requests), strict=True))


def _lines(texts: object) -> list[str]:
    """Return human-readable lines from a host, without characters that could control a terminal."""
    lines = [str(text)[:_LONGEST] for text in texts] if isinstance(texts, list) else []
    return ["".join(c if c.isprintable() else "?" for c in line) for line in lines]
