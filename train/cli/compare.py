"""What differs between two jobs: ``python -m train compare A B``, from their folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from train.cli import report
from train.gang import lines
from train.gang.records import Manifest
from train.host.records import Progress

#: Fields of a manifest that say what was run, and where.
_FIELDS = (
    *("script", "arguments", "include", "code_sha256", "git", "versions", "keras", "seed"),
    *("ranks", "hosts", "environment_names", "policy"),
)
#: What does not count: which GPUs were busy, and where a machine's namespaces are.
_PASSING = {"gpus_busy", "machine"}
#: The part of the better job's best accuracy whose time is compared.
_NEARLY = 0.99


def differences(first: Manifest, second: Manifest) -> list[tuple[str, str, str]]:
    """Return the name of each value that differs, and the two values as text."""
    flat = [dict(_flat("", {name: job.get(name) for name in _FIELDS})) for job in (first, second)]
    names = sorted(set(flat[0]) | set(flat[1]))
    pairs = [(name, flat[0].get(name, "-"), flat[1].get(name, "-")) for name in names]
    return [pair for pair in pairs if pair[1] != pair[2]]


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the values within ``value`` by dotted names; lists of plain values stay whole."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        value = {str(item.get("task", number)): item for number, item in enumerate(value)}
    if not isinstance(value, dict):
        text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
        yield name, text
        return
    for key, item in value.items():
        if key not in _PASSING:
            yield from _flat(f"{name}.{key}" if name else key, item)


def curve(attempts: list[report.Attempt], name: str) -> dict[int, tuple[float, float]]:
    """Return a value of the first rank that reports it, by step, with the seconds until then.

    Where attempts overlap, the later one counts. Time between attempts counts as time.
    """
    found: dict[int, tuple[float, float]] = {}
    began: float | None = None
    for attempt in attempts:
        seen = next((r for r in attempt["progress"].values() if _has(r, name)), [])
        for record in seen:
            at = record.get("t", 0.0)
            began = at if began is None else began
            value = _value(record, name)
            if value is not None and "step" in record:
                found[record["step"]] = (value, at - began)
    return found


def _value(record: Progress, name: str) -> float | None:
    value = record.get("loss") if name == "loss" else record.get("metrics", {}).get(name)
    return float(value) if isinstance(value, (int, float)) else None


def _has(seen: list[Progress], name: str) -> bool:
    return any(_value(record, name) is not None for record in seen)


def text(first: Path, second: Path) -> str:
    """Return what differs between two jobs, in lines.

    Args:
        first: the folder of one job on the control node.
        second: that of the other.

    Raises:
        FileNotFoundError: there is no such job on this control node.
    """
    manifests, attempts = zip(*(report.read(folder) for folder in (first, second)), strict=True)
    said = [f"{first.name} and {second.name}"]
    said += [f"  {name}: {a} | {b}" for name, a, b in differences(*manifests)]
    if len(said) == 1:
        said.append("  the same script, arguments, code, versions and hosts")
    said += _losses(*(curve(found, "loss") for found in attempts))
    names = {
        name
        for found in attempts
        for seen in report.all_progress(found)
        for record in seen
        for name in record.get("metrics", {})
    }
    for name in sorted(names):
        said += _times(name, *(curve(found, name) for found in attempts))
    return "\n".join(said)


def _losses(
    one: dict[int, tuple[float, float]], other: dict[int, tuple[float, float]]
) -> list[str]:
    """Return where two losses part first, of the steps that both report."""
    shared = sorted(set(one) & set(other))
    if not shared:
        return ["loss: no step is reported by both"]
    parted = [step for step in shared if one[step][0] != other[step][0]]
    if not parted:
        return [f"loss: the same at all {len(shared)} steps that both report"]
    step = parted[0]
    a, b = one[step][0], other[step][0]
    return [f"loss: differs from step {step} on, {a!r} | {b!r} ({abs(a - b):.2g} apart)"]


def _times(
    name: str, one: dict[int, tuple[float, float]], other: dict[int, tuple[float, float]]
) -> list[str]:
    """Return the last values of a metric; of an accuracy the time to nearly the best of both."""
    if not one or not other:
        return []
    last = [lines.number(curve[max(curve)][0]) for curve in (one, other)]
    said = f"{name}: {last[0]} | {last[1]} at the end"
    if "accuracy" in name:
        wanted = _NEARLY * max(value for curve in (one, other) for value, _ in curve.values())
        reached = [
            min((at for value, at in curve.values() if value >= wanted), default=None)
            for curve in (one, other)
        ]
        times = [f"{at:.1f} s" if at is not None else "never" for at in reached]
        said += f"; {lines.number(wanted)} after {times[0]} | {times[1]}"
    return [said]
