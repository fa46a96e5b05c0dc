"""Formats a rank's state and progress as text. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from train.host import records

#: A progress record as host.progress_records.check_progress returns it.
Progress = Mapping[str, Any]


def number(value: object) -> str:
    """Return a number with four significant digits, and any other value as text."""
    return f"{value:.4g}" if isinstance(value, (int, float)) else str(value)


def count(progress: Progress, name: str) -> str:
    """Return a text such as ``3/10`` from a field and its plural, such as ``step`` and ``steps``.

    If the total is unknown, return only the value. Without a value, return an empty string.
    """
    value, total = progress.get(name), progress.get(name + "s")
    if value is None:
        return ""
    return f"{value}/{total}" if total else str(value)


def counts(progress: Progress, *names: str) -> list[str]:
    """Return texts such as ``step 3/10`` for the names that have a value."""
    return [f"{name} {count(progress, name)}" for name in names if count(progress, name)]


def loss(progress: Progress, approximate: bool = True) -> str:
    """Return a record's loss, or an empty string if it has none.

    With ``approximate``, prefer an approximate loss, which is marked with ``~``.
    """
    about = (progress.get("approximate") or {}).get("loss")
    if about is not None and approximate:
        return f"~{number(about)}"
    return number(progress["loss"]) if progress.get("loss") is not None else ""


def metrics(progress: Progress, approximate: bool = True) -> str:
    """Return a record's metrics as ``name value`` pairs.

    With ``approximate``, include approximate values, which are marked with ``~``.
    """
    values = {name: number(value) for name, value in (progress.get("metrics") or {}).items()}
    about = (progress.get("approximate") or {}) if approximate else {}
    values |= {name: f"~{number(value)}" for name, value in about.items() if name != "loss"}
    return "  ".join(f"{name} {value}" for name, value in values.items())


def rate(progress: Progress) -> str:
    """Return the speed in examples or else steps per second, or an empty string if unknown."""
    for key, unit in (("examples_per_s", "ex/s"), ("steps_per_s", "steps/s")):
        value = progress.get(key)
        if isinstance(value, (int, float)):
            return f"{value:.0f} {unit}" if value >= 10 else f"{value:.2g} {unit}"
    return ""


def phase_of(phase: str, progress: Progress) -> str:
    """Return a rank's current phase: the script's own phase until the rank has ended."""
    return phase if phase in records.FINAL_PHASES else str(progress.get("phase") or phase)


def line(phase: str, reason: str | None, progress: Progress, last_line: str) -> str:
    """Return the state of a rank in one line, with its log's last line if there is no progress."""
    words = [phase_of(phase, progress)]
    if phase in records.FINAL_PHASES:
        words += [reason or "", metrics(progress, approximate=False)]
    else:
        words += [position(progress), "" if progress else last_line]
    return "  ".join(word for word in words if word)


def position(progress: Progress) -> str:
    """Return the epoch and step of a record, its loss, metrics and speed, in one line."""
    words = counts(progress, "epoch", "step")
    words += [f"loss {loss(progress)}"] if loss(progress) else []
    words += [metrics(progress), rate(progress)]
    return "  ".join(word for word in words if word)


def stopped(report: Mapping[str, Any]) -> str:
    """Format a checked stop report as one line of text."""
    count = report["given_back"]
    given_back = f"{count} lease{'s' * (count > 1)} released" if count else ""
    if report["was"] == records.ABSENT:
        return ", ".join(["no rank of the job", *filter(None, [given_back])])
    ended = report["ended"]
    words = [
        f"{report['was']} -> {report['phase']}",
        f"{ended} {'process' if ended == 1 else 'processes'} ended",
        f"{len(report['remaining'])} left",
    ]
    if report["port_free"] is not None:
        words.append(f"port {report['port']} {'free' if report['port_free'] else 'still in use'}")
    if report["gpu_memory_free"] is not None:
        words.append(f"GPU memory {'released' if report['gpu_memory_free'] else 'still in use'}")
    if given_back:
        words.append(given_back)
    return ", ".join(words)


def remarks(doubts: Sequence[str], notes: Sequence[str]) -> list[str]:
    """Return a line for each doubt and each note about a job that completed."""
    return [*(f"doubt: {text}" for text in doubts), *(f"note: {text}" for text in notes)]
