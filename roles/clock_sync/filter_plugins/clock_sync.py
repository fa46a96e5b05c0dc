"""Ansible filters: which hosts follow no time source, and how far their clocks are apart.

A reading is a line with two times: the control node's, just before it asked, and the host's. The
control node's time in the next line is later than the answer, so two lines in a row bound how far
the host's clock is ahead of the control node's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

_READING = re.compile(r"(\d{1,12}\.\d{1,9}) (\d{1,12}\.\d{1,9})")


def without_source(hosts: Iterable[str], hostvars: Mapping[str, Any]) -> list[str]:
    """Return the hosts on which chrony is missing, or has not chosen a source."""
    return [host for host in hosts if _of(hostvars, host, "clock_sync_clock").get("rc") != 0]


def compare(
    hosts: Iterable[str], hostvars: Mapping[str, Any], without: Iterable[str], allowed: float
) -> dict[str, Any]:
    """Compare the clocks of hosts with the one that most of them agree with.

    Args:
        hosts: those that were asked.
        hostvars: their variables; ``clock_sync_readings`` is the result of the task that asked.
        without: those that follow no source. The others' clocks count first.
        allowed: seconds that two clocks may differ.

    Returns:
        ``reference``: the host whose clock is taken for the right one. ``ahead``: by host, seconds
        that its clock is ahead of that one, as close to 0 as its readings allow. ``agree``: hosts
        whose clocks do not differ from that one by more than ``allowed``. ``within``: the seconds
        within which those agree. ``unread``: hosts whose answers cannot be read.
    """
    bounds: dict[str, tuple[float, float]] = {}
    unread = []
    for host in hosts:
        results = _of(hostvars, host, "clock_sync_readings").get("results", [])
        found = bounds_of(str(result.get("stdout", "")) for result in results)
        if found is None:
            unread.append(host)
        else:
            bounds[host] = found
    followers = [host for host in bounds if host not in set(without)]
    voters = followers or list(bounds)
    votes = {
        host: sum(abs(_ahead(bounds[other], bounds[host])) <= allowed for other in voters)
        for host in voters
    }
    reference = max(votes, key=lambda host: votes[host], default="")
    ahead = {host: _ahead(bound, bounds[reference]) for host, bound in bounds.items()}
    agree = [host for host, seconds in ahead.items() if abs(seconds) <= allowed]
    latest = max((bounds[host][1] for host in agree), default=0.0)
    earliest = min((bounds[host][0] for host in agree), default=0.0)
    return {
        "reference": reference,
        "ahead": ahead,
        "agree": agree,
        "within": latest - earliest,
        "unread": unread,
    }


def bounds_of(answers: Iterable[str]) -> tuple[float, float] | None:
    """Return between how many seconds a clock is ahead of the control node's, by its readings."""
    found = [_READING.fullmatch(answer.strip()) for answer in answers]
    times = [(float(match[1]), float(match[2])) for match in found if match]
    bounds = [(theirs - later, theirs - asked) for (asked, theirs), (later, _) in pairwise(times)]
    return min(bounds, key=lambda bound: bound[1] - bound[0], default=None)


def _ahead(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Return how far a clock is ahead of another one, at least; 0 if they may be the same."""
    return max(one[0] - other[1], 0.0) + min(one[1] - other[0], 0.0)


def _of(hostvars: Mapping[str, Any], host: str, name: str) -> Mapping[str, Any]:
    """Return the registered result of a host's task; empty if there is none."""
    result: Mapping[str, Any] = hostvars[host].get(name, {})
    return result


class FilterModule:
    """The role's filters."""

    def filters(self) -> dict[str, Any]:
        """Return them by name."""
        return {f"clock_sync_{f.__name__}": f for f in (without_source, compare)}
