"""The play around an action, with results of its hosts that are made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any


def a_play(
    results: Mapping[str, Any], hosts: Sequence[str] | None = None, check_mode: bool = False
) -> Any:
    """Return a play in which each host registered one result. ``hosts`` are all that it has."""
    return SimpleNamespace(
        hosts=list(results if hosts is None else hosts),
        check_mode=check_mode,
        registered=lambda host, name: results.get(host) or {},
        checks=lambda name: dict(results),
        of_gang=lambda name: {"hosts": dict(results)},
        machine_of=lambda host: host,
        connection=lambda host: ("", host, "", ""),
        notification=lambda hosts: ([], "", ""),
        _hostvars={},
    )
