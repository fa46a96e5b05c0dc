"""One page about a job: ``python -m train report JOB`` writes ``runs/JOB/report.html``.

It is made of the files of the job's folder alone (docs/formats.md), asks no host, and loads nothing
from a network: it can be mailed, kept and printed.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby, pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, TypedDict, TypeVar

from train.cli import page
from train.cli.page import Chart
from train.gang.records import LOAD_DIR, Load, Manifest, Result, read_manifest, read_result
from train.gang.watch.stragglers import rates
from train.host import records
from train.host.records import Progress

_T = TypeVar("_T")
#: The points of curves, by the name and the attempt of each.
_Points = dict[tuple[str, int], list[tuple[float, float]]]
REPORT_FILE = "report.html"
#: The name of a curve.
SPEED = "examples per second"
#: The title of an axis.
_SINCE = "seconds since the first record"
#: Lines of a log's end, and characters of each.
_LOG_LINES, _LOG_WIDTH = 40, 500
#: Bytes that are read for them.
_LOG_BYTES = 64 * 1024
#: What a rank does, in the order of the legend.
_COLOURS = {
    "starting": "#9aa5b1",
    "loading": "#b7a0d8",
    "training": "#3b82c4",
    "evaluating": "#3aa17e",
    "predicting": "#6cc0a0",
    "saving": "#d9a441",
    "waiting": "#d0d5db",
    "serving": "#7fb2dd",
    "done": "#3aa17e",
    "failed": "#d0453e",
}
_PARTS = {
    "compute_ms": ("compute", "#3b82c4"),
    "exchange_ms": ("exchange and wait for others", "#d9a441"),
    "input_ms": ("wait for examples", "#b7a0d8"),
}
#: Of the curves of an attempt.
_ATTEMPTS = ("#3b82c4", "#d9822b", "#3aa17e", "#8e63b8", "#d0453e", "#8c6d5a", "#d65fa3", "#9aa5b1")


class Attempt(TypedDict):
    """One attempt of a job.

    Attributes:
        number: from 1.
        planned_at: when it was planned, s; None where it is not known.
        result: how it ended; None while it is not known.
        progress: the records of each task.
        logs: the end of each task's log.
        load: how busy each task and its host were.
    """

    number: int
    planned_at: float | None
    result: Result | None
    progress: dict[str, list[Progress]]
    logs: dict[str, str]
    load: dict[str, list[Load]]


def write(run_dir: Path) -> Path:
    """Write the page and return its path.

    Args:
        run_dir: the job's folder on the control node.

    Raises:
        FileNotFoundError: there is no such job on this control node.
    """
    manifest, attempts = read(run_dir)
    result = attempts[-1]["result"]
    times = [record["t"] for seen in all_progress(attempts) for record in seen if "t" in record]
    return page.write(
        run_dir / REPORT_FILE,
        "report.html.j2",
        [
            *_curves(attempts),
            *_timeline(attempts),
            *_step_times(attempts[-1]),
            *_loads(attempts),
        ],
        job=run_dir.name,
        manifest=manifest,
        result=result,
        attempts=attempts,
        began=_when(manifest.get("created_at")),
        duration=_duration(max(times) - manifest["created_at"]) if times else "",
        restarts=[_row(attempt) for attempt in attempts],
    )


def read(run_dir: Path) -> tuple[Manifest, list[Attempt]]:
    """Return what a job's folder has of it: the attempts in their order, the last one at least.

    Raises:
        FileNotFoundError: there is no such job on this control node.
    """
    manifest = read_manifest(run_dir)
    if manifest is None:
        raise FileNotFoundError(2, f"no job {run_dir.name} here: attach to it first", str(run_dir))
    planned = {about["attempt"]: about.get("planned_at") for about in manifest.get("attempts", ())}
    last = manifest.get("attempt", 1)
    numbers = [int(path.name) for path in run_dir.glob("attempts/*") if path.name.isdigit()]
    found = []
    for number in [*sorted(set(numbers) - {last}), last]:
        folder = run_dir if number == last else run_dir / "attempts" / str(number)
        found.append(
            Attempt(
                number=number,
                planned_at=planned.get(number),
                result=read_result(folder),
                progress=_by_task(folder.glob("progress/*.jsonl"), _read_progress),
                logs=_by_task(folder.glob("logs/*.log"), _tail),
                load=_by_task(folder.glob(f"{LOAD_DIR}/*.jsonl"), _read_load),
            )
        )
    return manifest, found


def _by_task(paths: Iterable[Path], read: Callable[[Path], _T]) -> dict[str, _T]:
    """Return what ``read`` returns for each rank's file, by task."""
    in_order = sorted(paths, key=lambda path: records.task_order(path.stem))
    return {path.stem: read(path) for path in in_order}


def _read_progress(path: Path) -> list[Progress]:
    """Return the records of a file, without those whose time is NaN or infinite."""
    found = records.parse_progress(path.read_text("utf-8", errors="replace"))
    return [record for record in found if isinstance(record.get("t", 0.0), (int, float))]


def _read_load(path: Path) -> list[Load]:
    """Return the lines of a file, without those that a full disk has cut."""
    found = []
    for line in path.read_text("utf-8").splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def _tail(path: Path) -> str:
    """Return the last lines of a log; of a progress bar its last state."""
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - _LOG_BYTES))
        text = stream.read().decode("utf-8", errors="replace")
    last = [line.rstrip("\r\b").rsplit("\r", 1)[-1] for line in text.split("\n")[-_LOG_LINES - 1 :]]
    return "\n".join(records.clean(line, _LOG_WIDTH) for line in last).strip("\n")


def all_progress(attempts: Sequence[Attempt]) -> Iterator[list[Progress]]:
    """Yield the records of each rank of each attempt."""
    for attempt in attempts:
        yield from attempt["progress"].values()


def _when(seconds: float | None) -> str:
    """Return a time as text, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if seconds else ""


def _duration(seconds: float) -> str:
    minutes, rest = divmod(max(0.0, seconds), 60)
    return f"{minutes:.0f} min {rest:.0f} s" if minutes else f"{rest:.1f} s"


def _row(attempt: Attempt) -> dict[str, Any]:
    """Return an attempt as a row of the table."""
    result = attempt["result"]
    steps = [
        record["step"]
        for seen in attempt["progress"].values()
        for record in seen
        if "step" in record
    ]
    return {
        "number": attempt["number"],
        "planned_at": _when(attempt["planned_at"]),
        "state": result["state"] if result else "not known",
        "message": result["message"] if result else "",
        "steps": f"{min(steps)} to {max(steps)}" if steps else "",
    }


def values(record: Progress) -> dict[str, float]:
    """Return what a record has of loss, metrics and speed, without NaN and infinities."""
    named = {
        "loss": record.get("loss"),
        **record.get("metrics", {}),
        SPEED: record.get("examples_per_s"),
    }
    return {name: value for name, value in named.items() if isinstance(value, (int, float))}


def _curves(attempts: Sequence[Attempt]) -> Iterator[Chart]:
    """Yield a chart for the loss and one for each metric and the speed, over the steps."""
    charts: dict[str, _Points] = {}
    for attempt in attempts:
        for task, seen in attempt["progress"].items():
            for record in seen:
                for title, value in values(record).items():
                    if "step" in record:
                        points = charts.setdefault(title, {})
                        curve = points.setdefault((task, attempt["number"]), [])
                        curve.append((record["step"], value))
    for title, curves in charts.items():
        yield _chart(title, curves, "step", attempts)


def _chart(title: str, points: _Points, x_title: str, attempts: Sequence[Attempt]) -> Chart:
    """Return a chart of curves. Where there are several attempts, the curves of one have one
    colour, and one line in the legend.
    """
    several, shown = len(attempts) > 1, set()
    named = {f"{n}, attempt {a}" if several else n: curve for (n, a), curve in points.items()}
    chart = page.curves(title, named, x_title)
    for trace, (_, number) in zip(chart["traces"], points, strict=True) if several else ():
        group = f"attempt {number}"
        trace.update({
            "hovertemplate": f"{trace['name']}: %{{y}}<extra></extra>",
            "line": {"color": _ATTEMPTS[(number - 1) % len(_ATTEMPTS)]},
            "name": group, "legendgroup": group, "showlegend": group not in shown,
        })  # fmt: skip
        shown.add(group)
    return chart


def _began(attempts: Sequence[Attempt]) -> float:
    """Return the time of the first record; 0 where none has a time."""
    progress = [seen[0].get("t") for seen in all_progress(attempts) if seen]
    load = [seen[0]["t"] for a in attempts for seen in a["load"].values() if seen]
    return min((at for at in [*progress, *load] if at is not None), default=0.0)


def _timeline(attempts: Sequence[Attempt]) -> Iterator[Chart]:
    """Yield a chart of what each rank did when: one bar for each of its phases."""
    spans: dict[str, list[tuple[str, float, float]]] = {}  # row, begin, length by phase
    began = _began(attempts)
    for attempt in attempts:
        for task, seen in attempt["progress"].items():
            timed = [record for record in seen if "t" in record]
            phases = groupby(timed[:-1], lambda record: record.get("phase", "training"))
            begun = [(phase, next(group)["t"]) for phase, group in phases]
            begun += [("", record["t"]) for record in timed[-1:]]
            for (phase, at), (_, until) in pairwise(begun):
                spans.setdefault(phase, []).append((task, at - began, until - at))
            if timed and _failed(attempt, task):
                at = timed[-1]["t"] - began
                spans.setdefault("failed", []).append((task, at, max(0.5, 0.01 * at)))
    if not spans:
        return
    traces = [
        {
            "name": phase, "marker": {"color": colour},
            "y": [row for row, _, _ in spans[phase]],
            "base": [at for _, at, _ in spans[phase]],
            "x": [length for _, _, length in spans[phase]],
            "hovertemplate": "%{y}: from %{base:.1f} s for %{x:.1f} s",
        }
        for phase, colour in _COLOURS.items() if phase in spans
    ]  # fmt: skip
    tasks = {task for attempt in attempts for task in attempt["progress"]}
    rows = sorted(tasks, key=records.task_order)
    starts = [
        (_began([attempt]) - began, f"attempt {attempt['number']}")
        for attempt in attempts[1:]
        if _began([attempt])
    ]
    chart = page.bars("What each rank did", rows, traces, _SINCE, starts, wide=True)
    chart["layout"]["barmode"] = "overlay"
    yield chart


def _failed(attempt: Attempt, task: str) -> bool:
    ranks = attempt["result"]["ranks"] if attempt["result"] else []
    return any(rank["task"] == task and rank["phase"] == records.FAILED for rank in ranks)


def _step_times(attempt: Attempt) -> Iterator[Chart]:
    """Yield a chart of where a step's time goes in each rank, if the script reports it."""
    means: dict[str, dict[str, float]] = {}
    for task, seen in attempt["progress"].items():
        timed = [record["step_time"] for record in seen if record.get("step_time")]
        if timed:
            means[task] = {
                part: fmean(float(times.get(part, 0.0)) for times in timed) for part in _PARTS
            }
    if means:
        traces = [
            {
                "name": name, "marker": {"color": colour},
                "y": list(means), "x": [times[part] for times in means.values()],
            }
            for part, (name, colour) in _PARTS.items()
        ]  # fmt: skip
        yield page.bars("Where a step's time goes", list(means), traces, "ms a step")


def _loads(attempts: Sequence[Attempt]) -> Iterator[Chart]:
    """Yield charts of how busy the hosts, their GPUs and the ranks were."""
    began = _began(attempts)
    titles = ("Cores that a rank used", "Busy cores of a rank's host, %", "Busy GPUs, %")
    charts: dict[str, _Points] = {title: {} for title in titles}
    of_ranks, of_hosts, of_gpus = charts.values()
    for attempt in attempts:
        for task, seen in attempt["load"].items():
            name = (task, attempt["number"])
            for before, after in pairwise(seen):
                grown, at = rates([before["load"], after["load"]]), after["t"] - began
                if "cpu_s" in grown:
                    of_ranks.setdefault(name, []).append((at, grown["cpu_s"]))
                if "busy_s" in grown and after["load"].get("all_cores"):
                    share = 100 * grown["busy_s"] / after["load"]["all_cores"]
                    of_hosts.setdefault(name, []).append((at, share))
                for gpu in after["load"].get("gpus", []):
                    if gpu["busy"] is not None:
                        own = (f"{task}, GPU {gpu['index']}", attempt["number"])
                        of_gpus.setdefault(own, []).append((at, gpu["busy"]))
    for title, points in charts.items():
        if points:
            chart = _chart(title, points, _SINCE, attempts)
            chart["layout"]["yaxis"] = {"rangemode": "tozero"}
            yield chart
