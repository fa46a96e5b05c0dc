"""One page about a job: ``python -m train report JOB`` writes ``runs/JOB/report.html``.

It is made of the files of the job's folder alone (docs/formats.md), asks no host, and loads nothing
from a network: it can be mailed, kept and printed.
"""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from statistics import fmean
from typing import TypedDict, TypeVar

from train.cli import page
from train.cli.page import Chart
from train.gang.records import LOAD_DIR, Load, Manifest, Result, read_manifest, read_result
from train.gang.watch.stragglers import rate
from train.host import records, tail
from train.host.records import Progress

_T = TypeVar("_T")
#: The points of curves, by the name and the attempt of each.
_Points = dict[tuple[str, int], list[tuple[float, float]]]
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
    """One attempt of a job, with what its files have of each task.

    Attributes:
        planned_at: s; None where it is not known, as is ``result``.
        logs: the end of each.
    """

    number: int
    planned_at: float | None
    result: Result | None
    steps: list[int]
    progress: dict[str, list[Progress]]
    logs: dict[str, str]
    load: dict[str, list[Load]]


def write(run_dir: Path) -> Path:
    """Write the page into the job's folder and return its path; raises as ``read`` does."""
    manifest, attempts = read(run_dir)
    result = attempts[-1]["result"]
    times = [record["t"] for record in all_records(attempts) if "t" in record]
    charts = [*_curves(attempts), *_timeline(attempts), *_step_times(attempts[-1])]
    return page.write(
        run_dir / "report.html",
        "report.html.j2",
        [*charts, *_loads(attempts)],
        job=run_dir.name,
        manifest=manifest,
        result=result,
        attempts=attempts,
        duration=_duration(max(times) - manifest["created_at"]) if times else "",
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
        progress = _by_task(folder.glob("progress/*.jsonl"), _read_progress)
        attempt = Attempt(
            number=number,
            planned_at=planned.get(number),
            result=read_result(folder),
            steps=[one["step"] for seen in progress.values() for one in seen if "step" in one],
            progress=progress,
            logs=_by_task(folder.glob("logs/*.log"), _tail),
            load=_by_task(folder.glob(f"{LOAD_DIR}/*.jsonl"), _read_load),
        )
        found.append(attempt)
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
    text = tail.read_last(str(path), _LOG_BYTES).decode("utf-8", errors="replace")
    last = [line.rstrip("\r\b").rsplit("\r", 1)[-1] for line in text.split("\n")[-_LOG_LINES - 1 :]]
    return "\n".join(records.clean(line, _LOG_WIDTH) for line in last).strip("\n")


def all_records(attempts: Iterable[Attempt]) -> Iterator[Progress]:
    """Yield the progress records of each rank of each attempt."""
    for attempt in attempts:
        for seen in attempt["progress"].values():
            yield from seen


def _duration(seconds: float) -> str:
    minutes, rest = divmod(max(0.0, seconds), 60)
    return f"{minutes:.0f} min {rest:.0f} s" if minutes else f"{rest:.1f} s"


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
    charts: dict[str, _Points] = defaultdict(lambda: defaultdict(list))
    for attempt in attempts:
        for task, seen in attempt["progress"].items():
            for record in (one for one in seen if "step" in one):
                for title, value in values(record).items():
                    charts[title][task, attempt["number"]].append((record["step"], value))
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
    progress = [record["t"] for record in all_records(attempts) if "t" in record]
    load = [seen[0]["t"] for a in attempts for seen in a["load"].values() if seen]
    return min([*progress, *load], default=0.0)


def _timeline(attempts: Sequence[Attempt]) -> Iterator[Chart]:
    """Yield a chart of what each rank did when: one bar for each of its phases."""
    # Row, begin and length of each bar, by phase.
    spans: dict[str, list[tuple[str, float, float]]] = defaultdict(list)
    began = _began(attempts)
    for attempt in attempts:
        for task, seen in attempt["progress"].items():
            timed = [record for record in seen if "t" in record]
            phases = groupby(timed[:-1], lambda record: record.get("phase", "training"))
            begun = [(phase, next(group)["t"]) for phase, group in phases]
            begun += [("", record["t"]) for record in timed[-1:]]
            for (phase, at), (_, until) in pairwise(begun):
                spans[phase].append((task, at - began, until - at))
            if timed and _failed(attempt, task):
                at = timed[-1]["t"] - began
                spans["failed"].append((task, at, max(0.5, 0.01 * at)))
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
    charts: dict[str, _Points] = {title: defaultdict(list) for title in titles}
    of_ranks, of_hosts, of_gpus = charts.values()
    for attempt in attempts:
        for task, seen in attempt["load"].items():
            name = (task, attempt["number"])
            for before, after in pairwise(seen):
                readings, at = [before["load"], after["load"]], after["t"] - began
                used, busy = rate(readings, "cpu_s"), rate(readings, "busy_s")
                if used is not None:
                    of_ranks[name].append((at, used))
                if busy is not None and after["load"].get("all_cores"):
                    share = 100 * busy / after["load"]["all_cores"]
                    of_hosts[name].append((at, share))
                for gpu in after["load"].get("gpus", []):
                    if gpu["busy"] is not None:
                        own = f"{task}, GPU {gpu['index']}"
                        of_gpus[own, attempt["number"]].append((at, gpu["busy"]))
    for title, points in charts.items():
        if points:
            chart = _chart(title, points, _SINCE, attempts)
            chart["layout"]["yaxis"] = {"rangemode": "tozero"}
            yield chart
