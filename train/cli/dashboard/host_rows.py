"""The table of hosts: whether they answer, their use, who holds them, and the doctor's findings."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train.cli.dashboard.hosts import LOST_S
from train.gang.job_records import HostState, Listed
from train.host.usage import Held

ANSWERS, LOST, ASKED = "up", "not answering", "being asked"
#: The words for the states of leases.
_HELD = {"started": "in use by", "taken": "reserved for", "queued": "waited for by"}
#: The words for the kinds of resources.
_RESOURCES = {"port": "port", "gpu": "GPU"}


@dataclass(frozen=True)
class Meter:
    """A measured part of a whole: its text, and the percentage."""

    text: str
    percent: float


@dataclass(frozen=True)
class HostRow:
    """A host in the table. ``why`` explains why it does not answer."""

    host: str
    state: str
    why: str
    meters: Sequence[tuple[str, Meter]]
    holds: Sequence[str]
    findings: Sequence[str]


def rows_of(listed: Listed, examined: Any) -> list[HostRow]:
    """Return a row for each host of the inventory.

    ``examined`` are the last results of the doctor, or None.
    """
    found = examined["findings"] if examined else []
    return [
        _row(host, state, [one for one in found if one["where"] == host])
        for host, state in listed["hosts"].items()
    ]


def _row(host: str, state: HostState, about: Sequence[Any]) -> HostRow:
    age = time.time() - state["answered_at"] if state["answered_at"] else None
    word, why = ANSWERS, ""
    if age is None:
        word, why = (LOST, state["error"]) if state["error"] else (ASKED, "")
    elif age > LOST_S or state["error"]:
        word, why = (
            LOST,
            f"last answer {_ago(age)} ago" + (f": {state['error']}" if state["error"] else ""),
        )
    return HostRow(
        host=host,
        state=word,
        why=why,
        meters=list(_meters(state)) if word == ANSWERS else [],
        holds=[_held(one) for one in state["holds"]] if word == ANSWERS else [],
        findings=[f"{one['severity']}: {one['found']}" for one in about],
    )


def _meters(state: HostState) -> Iterator[tuple[str, Meter]]:
    usage = state["usage"]
    if usage is None:
        return
    load, cores = usage["load"], usage["cores"]
    yield "load", Meter(f"{load:.1f} on {cores} cores", 100 * load / max(1, cores))
    for name in ("memory", "disk"):
        total, free = usage[f"{name}_total"], usage[f"{name}_free"]  # type: ignore[literal-required]
        if total:
            text = f"{_gib(total - free)} of {_gib(total)} GiB"
            yield name, Meter(text, 100 * (total - free) / total)
    for gpu in usage["gpus"]:
        busy, used, total = gpu["busy"], gpu["memory_used"], gpu["memory_total"]
        words = [gpu["name"], f"{busy} % busy" if busy is not None else ""]
        words.append(f"{_gib(used)} of {_gib(total)} GiB" if used is not None and total else "")
        yield f"GPU {gpu['index']}", Meter(", ".join(filter(None, words)), float(busy or 0))
    if usage["gpu_error"]:
        yield "GPUs", Meter(usage["gpu_error"], 0.0)


def _gib(mib: int) -> str:
    return f"{mib / 1024:.0f}" if mib >= 10_240 else f"{mib / 1024:.1f}"


def _held(one: Held) -> str:
    named = (resource.split("/", 1) for resource in one["resources"])
    what = ", ".join(f"{_RESOURCES.get(kind, kind)} {name[0]}" for kind, *name in named if name)
    return f"{what} {_HELD[one['state']]} {one['task']} of {one['job']} ({one['user']})"


def _ago(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def last_examined(runs_dir: Path) -> Any:
    """Return the last results of the doctor, or None if there are none."""
    for path in sorted((runs_dir / "doctor").glob("*.json"), reverse=True):
        with contextlib.suppress(OSError, ValueError):
            examined = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(examined, dict) and isinstance(examined.get("findings"), list):
                return examined
    return None
