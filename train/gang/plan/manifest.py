"""What the hosts keep of a job as a whole, and which of it is believed.

A job's description holds what its ranks run, so a single host cannot change it: it counts where the
control node that started the job wrote it, or where all hosts agree. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from train.gang import reports
from train.gang.plan.ranks import PlanError, staged
from train.gang.reports import ReportError
from train.host import records

#: What each attempt writes again; all else is the same from the job's start to its end.
_OF_ATTEMPT = (
    "attempt",
    "attempts",
    "homes",
    "hosts",
    "left_out",
    "ranks",
    "tf_config",
    "versions",
)
_ENTRY = re.compile(r"[^/\x00-\x1f\x7f-][^/\x00-\x1f\x7f]*")
_HOST = reports.text(255)


def _entry(value: Any) -> str:
    if not isinstance(value, str) or not _ENTRY.fullmatch(value):
        raise ReportError("is no name of a file")
    return value


def _sha256(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{64}", value):
        raise ReportError("is no SHA-256")
    return value


_RANK = reports.fields(
    {
        "host": _HOST,
        "task": reports.task,
        "type": reports.one_of(*records.TASK_TYPES),
        "index": reports.integer(0, 99_999),
        "service": reports.boolean,
        "ranks_on_machine": reports.integer(1, reports.MAX_RANKS),
        "home": reports.task,
        "checkpoint_copy": reports.boolean,
    },
    nullable={"port": reports.integer(1, 65_535), "gpus": reports.items(reports.text(100), 100)},
)
_MANIFEST = reports.fields(
    {
        "job": reports.job,
        "created_at": reports.real(0, 1e12),
        "script": reports.text(reports.MAX_PATH),
        "entry": _entry,
        "arguments": reports.items(reports.text(reports.MAX_TEXT)),
        "code_sha256": _sha256,
        "attempt": reports.integer(1, 10**6),
        "attempts": reports.items(
            reports.fields(
                {
                    "attempt": reports.integer(1, 10**6),
                    "ranks": reports.mapping(reports.task, _HOST, reports.MAX_RANKS),
                },
                {
                    "planned_at": reports.real(0, 1e12),
                    "left_out": reports.mapping(_HOST, reports.text(), reports.MAX_RANKS),
                    "claim": reports.text(100),
                    "staged": reports.boolean,
                },
            )
        ),
        "homes": reports.mapping(_HOST, reports.task, reports.MAX_RANKS),
        "ranks": reports.items(_RANK, reports.MAX_RANKS),
        "policy": reports.fields(
            {
                "max_restarts": reports.integer(0, 10**6),
                "restart_delay": reports.real(0, 1e9),
                "min_workers": reports.integer(0, reports.MAX_RANKS),
                "host_wait": reports.real(0, 1e9),
            }
        ),
        "tf_config": reports.mapping(
            reports.task,
            reports.fields(
                {
                    "cluster": reports.mapping(
                        reports.one_of(*records.TASK_TYPES),
                        reports.items(reports.text(300), reports.MAX_RANKS),
                    )
                },
                {"task": reports.bounded},
            ),
            reports.MAX_RANKS,
        ),
    }
)


def check(value: Any, job: str, inventory: Collection[str]) -> dict[str, Any]:
    """Return a manifest that a host sent, with clean texts.

    Args:
        inventory: the inventory hosts.

    Raises:
        ReportError: it is malformed, of another job, or names hosts that are not in the inventory.
    """
    checked = _MANIFEST(value)
    if checked["job"] != job:
        raise ReportError(f"is of job {checked['job']}")
    ranks = checked["ranks"]
    for name in ("task", "host"):
        if len({rank[name] for rank in ranks}) < len(ranks) or not ranks:
            raise ReportError(f"has no ranks, or two with one {name}")
    if checked["attempt"] not in [attempt["attempt"] for attempt in checked["attempts"][-1:]]:
        raise ReportError("does not describe its last attempt")
    for rank in ranks:
        if rank["task"] != f"{rank['type']}-{rank['index']}":
            raise ReportError(f"has a rank {rank['task']} that is {rank['type']} {rank['index']}")
        if rank["host"] not in inventory:
            raise ReportError(f"names a host that is not in the inventory: {rank['host']}")
    return {**reports.bounded(value), **checked}


def choose(
    told: Mapping[str, Any], own: dict[str, Any] | None, job: str, inventory: Collection[str]
) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the manifest to believe, and warnings of hosts that report something else.

    Of several attempts it is the newest that this control node has written, or that two hosts
    report alike, or that takes part on no other host; if there is none, the newest. Of an attempt
    that was planned here, it is what was written here.

    Args:
        told: what each inventory host keeps, as it came.
        own: what this control node keeps; None for nothing.

    Raises:
        PlanError: the hosts do not agree on what the job is, and this control node does not know.
    """
    found: dict[str, dict[str, Any]] = {}
    warnings = []
    for host, value in told.items():
        try:
            found[host] = check(value, job, inventory)
        except ReportError as error:
            warnings.append(f"what {host} keeps of job {job} is passed over: its job.json {error}")
    constant = {host: _constant(manifest) for host, manifest in found.items()}
    if own is not None:
        for host in [host for host in found if constant[host] != _constant(own)]:
            del found[host]
            warnings.append(f"{host} keeps another job of the id {job}: it is passed over")
    elif len({repr(sorted(part.items())) for part in constant.values()}) > 1:
        raise PlanError(
            f"the hosts do not agree on what job {job} is ({', '.join(found)}): attach from the "
            "control node that started it, or compare job.json in its folder on each host"
        )
    candidates = [*found.values(), *filter(None, [own])]
    sure = [m for m in candidates if m is own or _is_confirmed(m, found)]
    chosen = max(sure or candidates, key=_attempt, default=None)
    if own is None or chosen is None or _claim(chosen) != _claim(own):
        return chosen, warnings
    was_staged = any(_claim(manifest) == _claim(own) for manifest in found.values())
    return (staged(own) if was_staged else own), warnings


def _is_confirmed(manifest: Mapping[str, Any], found: Mapping[str, Mapping[str, Any]]) -> bool:
    members = {rank["host"] for rank in manifest["ranks"]}
    about = (manifest["attempt"], manifest["ranks"])
    alike = [host for host, told in found.items() if (told["attempt"], told["ranks"]) == about]
    return len(alike) > 1 or members <= set(alike)


def _constant(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is the same for all attempts of a job."""
    return {
        name: reports.bounded(value) for name, value in manifest.items() if name not in _OF_ATTEMPT
    }


def _claim(manifest: Mapping[str, Any]) -> tuple[int, str]:
    """Return which attempt a manifest is of, and of which control node."""
    return _attempt(manifest), str(manifest["attempts"][-1].get("claim"))


def _attempt(manifest: Mapping[str, Any]) -> int:
    return int(manifest["attempt"])
