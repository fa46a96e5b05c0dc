"""What differs between two jobs: ``python -m train compare A B``, from their folders."""

from __future__ import annotations

import errno
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train.cli import page, report
from train.cli.page import Chart
from train.gang import lines
from train.gang.records import Manifest

#: Fields of a manifest that say what was run, and where.
_FIELDS = (
    *("script", "arguments", "include", "code_sha256", "git", "versions", "keras", "seed"),
    *("ranks", "hosts", "environment_names", "policy"),
)
#: What does not count: which GPUs were busy, and where a machine's namespaces are.
_PASSING = {"gpus_busy", "machine"}
#: The part of the better job's best accuracy whose time is compared.
_NEARLY = 0.99

#: A value by step, with the seconds until then.
Curve = dict[int, tuple[float, float]]


@dataclass(frozen=True)
class Metric:
    """A value of two jobs, by its curve in each; one that does not report it has no points."""

    name: str
    curves: tuple[Curve, Curve]

    @property
    def last(self) -> list[str]:
        """The last values."""
        return [lines.number(curve[max(curve)][0]) if curve else "-" for curve in self.curves]

    @property
    def wanted(self) -> float | None:
        """Of an accuracy, nearly the best value of both."""
        if "accuracy" not in self.name or not all(self.curves):
            return None
        return _NEARLY * max(value for curve in self.curves for value, _ in curve.values())

    @property
    def reached(self) -> list[float | None]:
        """The seconds after which each job had that; None for never."""
        wanted = self.wanted or math.inf
        return [
            min((at for value, at in curve.values() if value >= wanted), default=None)
            for curve in self.curves
        ]


@dataclass(frozen=True)
class Comparison:
    """Two jobs side by side.

    Attributes:
        differences: the name of each value that differs, and the two values as text.
        losses: where their losses part, in words; and the step, if they do.
        metrics: what at least one of them reports.
    """

    jobs: tuple[str, str]
    differences: list[tuple[str, str, str]]
    losses: str
    parted: int | None
    metrics: list[Metric]


def _differences(first: Manifest, second: Manifest) -> list[tuple[str, str, str]]:
    flat = [dict(_flat("", {name: job.get(name) for name in _FIELDS})) for job in (first, second)]
    # In the order of the fields.
    rows = [(name, *(job.get(name, "-") for job in flat)) for name in {**flat[0], **flat[1]}]
    return [(name, a, b) for name, a, b in rows if a != b]


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the values within ``value`` by dotted names; lists of plain values stay whole."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        value = {str(item.get("task", number)): item for number, item in enumerate(value)}
    if not isinstance(value, dict):
        yield name, " ".join(map(str, value)) if isinstance(value, list) else str(value)
        return
    for key, item in value.items():
        if key not in _PASSING:
            yield from _flat(f"{name}.{key}" if name else key, item)


def curve(attempts: list[report.Attempt], name: str) -> Curve:
    """Return a value of the first rank that reports it.

    Where attempts overlap, the later one counts. Time between attempts counts as time.
    """
    found: Curve = {}
    began: float | None = None
    for attempt in attempts:
        ranks = attempt["progress"].values()
        seen = next((r for r in ranks if any(name in report.values(record) for record in r)), [])
        for record in seen:
            at = record.get("t", 0.0)
            began = at if began is None else began
            value = report.values(record).get(name)
            if value is not None and "step" in record:
                found[record["step"]] = (value, at - began)
    return found


def compare(first: Path, second: Path) -> Comparison:
    """Return what differs between the jobs of two folders; raises as ``report.read`` does."""
    manifests, attempts = zip(*(report.read(folder) for folder in (first, second)), strict=True)
    seen = report.all_records([*attempts[0], *attempts[1]])
    names = dict.fromkeys(name for record in seen for name in report.values(record))
    metrics = [Metric(name, (curve(attempts[0], name), curve(attempts[1], name))) for name in names]
    losses = next((metric.curves for metric in metrics if metric.name == "loss"), ({}, {}))
    jobs = (first.name, second.name)
    return Comparison(jobs, _differences(*manifests), *_losses(*losses), metrics)


def text(found: Comparison) -> str:
    """Return a comparison in lines."""
    said = [" and ".join(found.jobs)]
    said += [f"  {name}: {a} | {b}" for name, a, b in found.differences]
    if not found.differences:
        said.append("  the same script, arguments, code, versions and hosts")
    said.append(found.losses)
    for metric in sorted(found.metrics, key=lambda metric: metric.name):
        if metric.name in ("loss", report.SPEED) or not all(metric.curves):
            continue
        line = f"{metric.name}: {' | '.join(metric.last)} at the end"
        if metric.wanted is not None:
            times = " | ".join(_after(at) for at in metric.reached)
            line += f"; {lines.number(metric.wanted)} after {times}"
        said.append(line)
    return "\n".join(said)


def write(found: Comparison, path: Path) -> Path:
    """Write a comparison as a page and return its path; OSError: it is a folder, or in none."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder: name a file", str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(path.parent))
    of_hosts = [row for row in found.differences if row[0].startswith(("hosts.", "ranks."))]
    return page.write(
        path,
        "compare.html.j2",
        list(_charts(found)),
        found=found,
        of_job=[row for row in found.differences if row not in of_hosts],
        of_hosts=of_hosts,
        after=_after,
    )


def _charts(found: Comparison) -> Iterator[Chart]:
    """Yield a chart of each value over the steps, and of each accuracy over the time."""
    for metric in found.metrics:
        curves = {job: c for job, c in zip(found.jobs, metric.curves, strict=True) if c}
        points = {job: [(step, c[step][0]) for step in sorted(c)] for job, c in curves.items()}
        marks: list[page.Mark] = []
        if metric.name == "loss" and found.parted is not None:
            marks = [(found.parted, f"they part at step {found.parted}")]
        yield page.curves(metric.name, points, marks=marks)
        if metric.wanted is not None:
            times = {job: [(at, value) for value, at in c.values()] for job, c in curves.items()}
            wanted = lines.number(metric.wanted)
            marks = [(at, wanted) for at in metric.reached if at is not None]
            yield page.curves(f"{metric.name} over time", times, "seconds", marks)


def _losses(one: Curve, other: Curve) -> tuple[str, int | None]:
    """Return where two losses part first, of the steps that both report, in words and as a step."""
    shared = sorted(set(one) & set(other))
    if not shared:
        return "loss: no step is reported by both", None
    step = next((step for step in shared if one[step][0] != other[step][0]), None)
    if step is None:
        return f"loss: the same at all {len(shared)} steps that both report", None
    a, b = one[step][0], other[step][0]
    return f"loss: differs from step {step} on, {a!r} | {b!r} ({abs(a - b):.2g} apart)", step


def _after(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.1f} s"
