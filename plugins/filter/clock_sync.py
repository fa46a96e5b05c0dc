"""Ansible filters: hosts without a time source, and differences between the hosts' clocks.

A reading is a line with two times: the control node's before the request, and the host's. The
control node's time in the next line is later than the answer, so two consecutive lines bound how
far the host's clock is ahead of the control node's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

_READING = re.compile(r"(\d{1,12}\.\d{1,9}) (\d{1,12}\.\d{1,9})")


def without_source(hosts: Iterable[str], hostvars: Mapping[str, Any]) -> list[str]:
    """Return the hosts on which chrony is missing or has not selected a source."""
    return [host for host in hosts if _of(hostvars, host, "__clock_sync_clock").get("rc") != 0]


def compare(
    hosts: Iterable[str], hostvars: Mapping[str, Any], without: Iterable[str], allowed: float
) -> dict[str, Any]:
    """Compare the hosts' clocks with the one that most of them agree with.

    Args:
        hosts: the hosts that were read.
        hostvars: their variables; ``__clock_sync_readings`` is the result of the reading task.
        without: hosts without a time source. The clocks of the others take precedence.
        allowed: seconds that two clocks may differ.

    Returns:
        ``reference``: the host whose clock is considered right. ``ahead``: by host, seconds that
        its clock is ahead of the reference, as close to 0 as its readings allow. ``agree``: hosts
        whose clocks differ from it by at most ``allowed``. ``within``: the seconds within which
        those agree. ``unread``: hosts with unreadable answers.
    """
    bounds: dict[str, tuple[float, float]] = {}
    unread = []
    for host in hosts:
        results = _of(hostvars, host, "__clock_sync_readings").get("results", [])
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
    """Return the least and the most seconds by which a clock is ahead of the control node's.

    Return None if the answers are unreadable.
    """
    found = [_READING.fullmatch(answer.strip()) for answer in answers]
    times = [(float(match[1]), float(match[2])) for match in found if match]
    bounds = [(theirs - later, theirs - asked) for (asked, theirs), (later, _) in pairwise(times)]
    return min(bounds, key=lambda bound: bound[1] - bound[0], default=None)


def _ahead(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Return the seconds by which a clock is ahead of another; negative if it is behind.

    The arguments are the bounds of both clocks. The result is the value closest to 0 that they
    allow.
    """
    return max(one[0] - other[1], 0.0) + min(one[1] - other[0], 0.0)


def _of(hostvars: Mapping[str, Any], host: str, name: str) -> Mapping[str, Any]:
    """Return the registered result of a host's task, or an empty mapping."""
    result: Mapping[str, Any] = hostvars[host].get(name, {})
    return result


class FilterModule:
    """The role's filters."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {f"clock_sync_{f.__name__}": f for f in (without_source, compare)}
