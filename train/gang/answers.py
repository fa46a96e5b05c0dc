"""Names the hosts that did not answer, and the reasons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from train.gang import login_failures

#: Results of a task by inventory host.
Results = Mapping[str, Mapping[str, Any]]


def failed(found: Results) -> dict[str, Mapping[str, Any]]:
    """Return the results of hosts that did not answer or could not do what was asked."""
    return {h: r for h, r in found.items() if r.get("unreachable") or r.get("failed")}


def reasons(found: Results) -> str:
    """Return a line about each reason why hosts did not answer, with the hosts' names."""
    unanswered = failed(found)
    lost = {h: login_failures.of_result(r) for h, r in unanswered.items() if r.get("unreachable")}
    others: dict[str, list[str]] = {}
    for host, result in unanswered.items():
        if host not in lost:
            others.setdefault(str(result.get("msg")), []).append(host)
    named = [f"{login_failures.names_of(hosts)}: {why}" for why, hosts in others.items()]
    return "\n".join([*login_failures.merged(lost), *named])
