"""A rank's state and progress as text, for whatever shows them. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from train.host import records

#: A progress record as host.records.check_progress returns it.
Progress = Mapping[str, Any]


def number(value: object) -> str:
    """Return a measured value with four digits; what is no number, as it is."""
    return f"{value:.4g}" if isinstance(value, (int, float)) else str(value)


def count(progress: Progress, name: str) -> str:
    """Return ``3/10`` for ``name`` and its plural, as far as they are known."""
    value, total = progress.get(name), progress.get(name + "s")
    if value is None:
        return ""
    return f"{value}/{total}" if total else str(value)


def counts(progress: Progress, *names: str) -> list[str]:
    """Return ``step 3/10`` and the like for those that are known."""
    return [f"{name} {count(progress, name)}" for name in names if count(progress, name)]


def metrics(progress: Progress) -> str:
    """Return a record's metrics as ``name value`` pairs."""
    values = (progress.get("metrics") or {}).items()
    return "  ".join(f"{name} {number(value)}" for name, value in values)


def rate(progress: Progress) -> str:
    """Return the speed in examples, or else in steps, a second."""
    for key, unit in (("examples_per_s", "ex/s"), ("steps_per_s", "steps/s")):
        value = progress.get(key)
        if isinstance(value, (int, float)):
            return f"{value:.0f} {unit}" if value >= 10 else f"{value:.2g} {unit}"
    return ""


def phase_of(phase: str, progress: Progress) -> str:
    """Return what a rank is at: the script's own phase until the rank has ended."""
    return phase if phase in records.FINAL_PHASES else str(progress.get("phase") or phase)


def line(phase: str, reason: str | None, progress: Progress, last_line: str) -> str:
    """Return the state of a rank in one line; its log's last line where it has no progress."""
    words = [phase_of(phase, progress)]
    if phase in records.FINAL_PHASES:
        words += [reason or "", metrics(progress)]
    else:
        words += counts(progress, "epoch", "step")
        words += [f"loss {number(progress['loss'])}"] if progress.get("loss") is not None else []
        words += [metrics(progress), rate(progress), "" if progress else last_line]
    return "  ".join(word for word in words if word)
