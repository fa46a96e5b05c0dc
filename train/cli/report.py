"""One page about a job: ``python -m train report JOB`` writes ``runs/JOB/report.html``.

It is made of the files of the job's folder alone (docs/formats.md), asks no host, and loads nothing
from a network: it can be mailed, kept and printed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib import resources
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, TypedDict, TypeVar

import jinja2

from train.gang import lines
from train.gang.records import Manifest, Result, read_manifest, read_result
from train.host import records
from train.host.records import Progress

_T = TypeVar("_T")
#: What the page draws: ``title``, ``traces`` and ``layout`` as Plotly takes them; ``wide`` or not.
Chart = dict[str, Any]
REPORT_FILE = "report.html"
#: Points of a chart at most; more are thinned evenly.
_POINTS = 20_000
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


class Attempt(TypedDict):
    """One attempt of a job.

    Attributes:
        number: from 1.
        planned_at: when it was planned, s; None where it is not known.
        result: how it ended; None while it is not known.
        progress: the records of each task.
        logs: the end of each task's log.
    """

    number: int
    planned_at: float | None
    result: Result | None
    progress: dict[str, list[Progress]]
    logs: dict[str, str]


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
    page = _environment().get_template("report.html.j2").render(
        job=run_dir.name,
        manifest=manifest,
        result=result,
        attempts=attempts,
        began=_when(manifest.get("created_at")),
        duration=_duration(max(times) - manifest["created_at"]) if times else "",
        charts=[*_curves(attempts), *_timeline(attempts), *_step_times(attempts[-1])],
        restarts=[_row(attempt) for attempt in attempts],
        plotly=(resources.files("plotly") / "package_data/plotly.min.js").read_text("utf-8"),
    )  # fmt: skip
    path = run_dir / REPORT_FILE
    unfinished = run_dir / f".{REPORT_FILE}"
    unfinished.write_text(page, encoding="utf-8")
    unfinished.replace(path)
    return path


def read(run_dir: Path) -> tuple[Manifest, list[Attempt]]:
    """Return what a job's folder has of it; the last attempt at least.

    Raises:
        FileNotFoundError: there is no such job on this control node.
    """
    manifest = read_manifest(run_dir)
    if manifest is None:
        raise FileNotFoundError(2, f"no job {run_dir.name} here: attach to it first", str(run_dir))
    return manifest, _read_attempts(run_dir, manifest)


def _environment() -> jinja2.Environment:
    """Return Jinja with escaping of all that is inserted."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["number"] = lines.number
    environment.filters["pretty"] = lambda value: json.dumps(value, indent=1, sort_keys=True)
    return environment


def _read_attempts(run_dir: Path, manifest: Manifest) -> list[Attempt]:
    """Return the attempts of which there are files, in their order; the last one at least."""
    planned = {about["attempt"]: about.get("planned_at") for about in manifest.get("attempts", ())}
    last = manifest.get("attempt", 1)
    numbers = [int(path.name) for path in run_dir.glob("attempts/*") if path.name.isdigit()]
    found = []
    for number in [*sorted(set(numbers) - {last}), last]:
        folder = run_dir if number == last else run_dir / "attempts" / str(number)
        progress = {path.stem: _read_progress(path) for path in folder.glob("progress/*.jsonl")}
        logs = {path.stem: _tail(path) for path in folder.glob("logs/*.log")}
        found.append(
            Attempt(
                number=number,
                planned_at=planned.get(number),
                result=read_result(folder),
                progress=_by_task(progress),
                logs=_by_task(logs),
            )
        )
    return found


def _read_progress(path: Path) -> list[Progress]:
    """Return the records of a file, without those whose time is NaN or infinite."""
    found = records.parse_progress(path.read_text("utf-8", errors="replace"))
    return [record for record in found if isinstance(record.get("t", 0.0), (int, float))]


def _by_task(found: dict[str, _T]) -> dict[str, _T]:
    return dict(sorted(found.items(), key=lambda item: records.task_order(item[0])))


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


def _thinned(points: list[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """Return about ``most`` of the points, the last one among them."""
    stride = -(-len(points) // most)
    kept = points[::stride]
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


def _curves(attempts: Sequence[Attempt]) -> Iterator[Chart]:
    """Yield a chart for the loss and one for each metric and the speed, over the steps."""
    # By title, then by the name of the curve.
    charts: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for attempt in attempts:
        for task, seen in attempt["progress"].items():
            name = task if len(attempts) == 1 else f"{task}, attempt {attempt['number']}"
            for record in seen:
                values: dict[str, object] = {"loss": record.get("loss")}
                values.update(record.get("metrics", {}))
                values["examples per second"] = record.get("examples_per_s")
                for title, value in values.items():
                    if "step" in record and isinstance(value, (int, float)):
                        curve = charts.setdefault(title, {}).setdefault(name, [])
                        curve.append((record["step"], value))
    for title, curves in charts.items():
        traces = []
        for name, points in curves.items():
            xs, ys = zip(*_thinned(points, max(2, _POINTS // len(curves))), strict=True)
            mode = "lines+markers" if len(xs) < 50 else "lines"
            traces.append({"type": "scatter", "mode": mode, "name": name, "x": xs, "y": ys})
        yield {"title": title, "traces": traces, "layout": {"xaxis": {"title": {"text": "step"}}}}


def _timeline(attempts: Sequence[Attempt]) -> Iterator[Chart]:
    """Yield a chart of what each rank did when: one bar for each of its phases."""
    bars: dict[str, dict[str, list[Any]]] = {}
    began = min(
        (seen[0]["t"] for seen in all_progress(attempts) if seen and "t" in seen[0]), default=0.0
    )
    for attempt in attempts:
        for task, seen in attempt["progress"].items():
            row = task if len(attempts) == 1 else f"{task}, attempt {attempt['number']}"
            timed = [record for record in seen if "t" in record]
            for record, after in pairwise(timed):
                _add_bar(bars, row, record.get("phase", "training"), record["t"], after["t"], began)
            if timed and _failed(attempt, task):
                at = timed[-1]["t"]
                _add_bar(bars, row, "failed", at, at + max(0.5, 0.01 * (at - began)), began)
    if not bars:
        return
    traces = [
        {
            "type": "bar", "orientation": "h", "name": phase, "marker": {"color": colour},
            "y": bars[phase]["rows"], "base": bars[phase]["from"], "x": bars[phase]["for"],
            "hovertemplate": "%{y}: from %{base:.1f} s for %{x:.1f} s",
        }
        for phase, colour in _COLOURS.items() if phase in bars
    ]  # fmt: skip
    rows = len({row for bar in bars.values() for row in bar["rows"]})
    layout = {
        "barmode": "overlay", "height": 150 + 26 * rows,
        "xaxis": {"title": {"text": "seconds since the first record"}},
        "yaxis": {"autorange": "reversed", "automargin": True},
    }  # fmt: skip
    yield {"title": "What each rank did", "traces": traces, "layout": layout, "wide": True}


def _add_bar(
    bars: dict[str, dict[str, list[Any]]],
    row: str,
    phase: str,
    at: float,
    until: float,
    began: float,
) -> None:
    """Add a bar, or make the last one longer that it continues."""
    bar = bars.setdefault(phase, {"rows": [], "from": [], "for": []})
    if bar["rows"] and bar["rows"][-1] == row:
        gap = at - began - (bar["from"][-1] + bar["for"][-1])
        if abs(gap) < 1e-6:
            bar["for"][-1] += until - at
            return
    bar["rows"].append(row)
    bar["from"].append(at - began)
    bar["for"].append(until - at)


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
                "type": "bar", "orientation": "h", "name": name, "marker": {"color": colour},
                "y": list(means), "x": [times[part] for times in means.values()],
            }
            for part, (name, colour) in _PARTS.items()
        ]  # fmt: skip
        layout = {
            "barmode": "stack", "height": 150 + 26 * len(means),
            "xaxis": {"title": {"text": "ms a step"}},
            "yaxis": {"autorange": "reversed", "automargin": True},
        }  # fmt: skip
        yield {"title": "Where a step's time goes", "traces": traces, "layout": layout}
