"""Builds pages for ``python -m train report``, about a job, and ``compare``, about two jobs.

Only the files in the jobs' folders are used (docs/formats.md).
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, TypedDict, TypeVar

from train.cli import page
from train.cli.page import Chart
from train.gang import lines, suggestions
from train.gang.job_records import (
    EVENTS_FILE,
    LOAD_DIR,
    Load,
    Manifest,
    RankEvent,
    ResultRecord,
    read_manifest,
    read_result,
)
from train.gang.watch.stragglers import rates
from train.host import plain_text, progress_records, records, tail, terminal
from train.host.progress_records import Progress

#: Maximum number of characters to read of a rank's progress file.
_MAX_PROGRESS = 1 << 23
_T = TypeVar("_T")
#: The points of curves by name and attempt.
_Points = dict[tuple[str, int], list[tuple[float, float]]]
#: Name of the curve and chart of the speed.
SPEED = "examples per second"
#: Title of the time axis.
_SINCE = "seconds since the first record"
#: Number of a rank's last records that may complete each other.
_LAST_RECORDS = 20
#: Maximum number of lines from the end of a log, and of characters in each.
_LOG_LINES, _LOG_WIDTH = 40, 500
#: Number of bytes to read from the end of a log for these lines.
_LOG_BYTES = 64 * 1024
#: Number of bytes to read from the end of the events, and maximum number of notices to keep.
_EVENT_BYTES, _NOTICES = 32 << 20, 200
#: The beginnings of events that are not about a single rank. Their fields are sorted.
_ABOUT_JOB = (b'{"notice"', b'{"restart"', b'{"straggler"')
#: The activities of a rank, in the order of the legend.
_COLORS = {
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
    "exchange_ms": ("exchange, waiting for others", "#d9a441"),
    "input_ms": ("waiting for examples", "#b7a0d8"),
}
#: Colors of an attempt's curves.
_ATTEMPTS = ("#3b82c4", "#d9822b", "#3aa17e", "#8e63b8", "#d0453e", "#8c6d5a", "#d65fa3", "#9aa5b1")

#: Fields of a manifest that describe what was run and where.
_FIELDS = (
    *(
        "script",
        "arguments",
        "rank_arguments",
        "include",
        "code_sha256",
        "git",
        "versions",
        "framework",
        "keras",
        "seed",
    ),
    *("ranks", "hosts", "environment_names", "environment_differs", "policy"),
)
#: Differences that users can act on, and their names. Hosts have a separate line.
_SHOWN = {
    **{name: name for name in ("script", "arguments", "rank_arguments", "include", "git")},
    **{name: name for name in ("versions", "framework", "keras", "seed")},
    "code_sha256": "code",
    **{"environment_names": "environment", "environment_differs": "environment_differs"},
}
#: Maximum numbers of characters of a hash and of host names to show.
_SHORT_HASH, _SHOWN_HOSTS = 12, 3
#: Fields to ignore: which GPUs were busy, and the namespaces of a machine.
_PASSING = {"gpus_busy", "machine"}
#: The fraction of the better job's best accuracy to reach; the time until then is compared.
_NEARLY = 0.99
#: Maximum number of characters of a value to compare.
_LONGEST = 65_536

#: By step, a value and the seconds from the first record until then, or NaN if unknown.
Curve = dict[int, tuple[float, float]]


class AttemptFiles(TypedDict):
    """An attempt of a job, with the contents of its files by task."""

    number: int
    planned_at: float | None  # s; None if unknown
    result: ResultRecord | None
    steps: list[int]
    progress: dict[str, list[Progress]]
    logs: dict[str, str]  # the end of each log
    load: dict[str, list[Load]]


def write_report(run_dir: Path) -> Path:
    """Write the page into the job's folder and return its path; raise the errors of ``read``."""
    manifest, attempts = read(run_dir)
    events = Events(run_dir)
    events.read()
    values = values_of(run_dir.name, manifest, attempts, events)
    return page.write(run_dir / "report.html", "report.html.j2", charts_of(attempts), **values)


def charts_of(attempts: Sequence[AttemptFiles]) -> list[Chart]:
    """Return all charts about a job."""
    charts = [*_curves(attempts), *_timeline(attempts), *_step_times(attempts[-1])]
    return [*charts, *_loads(attempts)]


def values_of(
    job: str, manifest: Manifest, attempts: Sequence[AttemptFiles], events: Events
) -> dict[str, Any]:
    """Return the values for the templates of a job."""
    times = [record["t"] for record in all_records(attempts) if "t" in record]
    return {
        "job": job,
        "manifest": manifest,
        "result": attempts[-1]["result"],
        "attempts": attempts,
        "duration": _duration(max(times) - manifest["created_at"]) if times else "",
        "ranks": _rank_rows(manifest, attempts[-1], events),
        "notices": events.notices,
        "slow": events.slow,
    }


def _rank_rows(
    manifest: Manifest, attempt: AttemptFiles, events: Events
) -> list[dict[str, object]]:
    """Return the rows of the table of ranks, from the result, the last events or the plan."""
    result = attempt["result"]
    listed: Sequence[Mapping[str, Any]] = manifest.get("ranks", [])
    if result:
        listed = result["ranks"]
    rows = []
    for rank in listed:
        seen: Mapping[str, Any] = events.ranks.get(rank["task"], {}) if not result else {}
        about = {**rank, **seen}
        progress: Progress = {}
        for record in attempt["progress"].get(rank["task"], [])[-_LAST_RECORDS:]:
            progress = progress_records.with_earlier(record, progress)
        code = about.get("exit_code")
        rows.append({
            "task": rank["task"],
            "host": rank["host"],
            "phase": lines.phase_of(about.get("phase", ""), {} if result else progress),
            "progress": lines.position(progress),
            "exit_code": "" if code is None else code,
            "reason": about.get("reason") or "",
            "weights_sha256": about.get("weights_sha256") or "",
        })  # fmt: skip
    return rows


def read(run_dir: Path) -> tuple[Manifest, list[AttemptFiles]]:
    """Return a job's manifest and its attempts, in order.

    Raise FileNotFoundError if the manifest is missing.
    """
    manifest = read_manifest(run_dir)
    if manifest is None:
        attach = suggestions.command("attach", job=run_dir.name)
        missing = (
            f"job {run_dir.name} is not known on this control node: attach to it first with "
            f"`{attach}`"
        )
        raise FileNotFoundError(2, missing, str(run_dir))
    planned = {about["attempt"]: about["planned_at"] for about in manifest["attempts"]}
    last = manifest["attempt"]
    numbers = [
        int(path.name) for path in run_dir.glob("attempts/*") if plain_text.is_number(path.name)
    ]
    found = []
    for number in [*sorted(set(numbers) - {last}), last]:
        folder = run_dir if number == last else run_dir / "attempts" / str(number)
        progress = _by_task(folder.glob("progress/*.jsonl"), _read_progress)
        attempt = AttemptFiles(
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


class Events:
    """The events of a job's last attempt, from ``events.jsonl``, which may still grow.

    Attributes:
        ranks: the last event of each rank.
        notices: the last notices, restarts and slow ranks, as ``t`` and ``text``.
        slow: the rank that keeps the others waiting, or an empty string.
    """

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / EVENTS_FILE
        self._offset = 0
        self.ranks: dict[str, RankEvent] = {}
        self.notices: list[dict[str, Any]] = []
        self.slow = ""

    def read(self) -> bool:
        """Read the events that were added since the last call; return whether there were any.

        Of a long file, only the end is read at first.
        """
        try:
            with self._path.open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                if size - self._offset > _EVENT_BYTES:
                    self._offset = size - _EVENT_BYTES
                    stream.seek(self._offset)
                    self._offset += len(stream.readline())
                stream.seek(self._offset)
                text = stream.read(_EVENT_BYTES)
        except FileNotFoundError:
            return False
        complete = text[: text.rfind(b"\n") + 1]
        self._offset += len(complete)
        last: dict[bytes, bytes] = {}  # only the last of a rank's events is parsed
        for line in complete.splitlines():
            if line.startswith(_ABOUT_JOB):
                self._add(line)
            else:
                last[line.rpartition(b'"task": ')[2]] = line
        for line in last.values():
            self._add(line)
        return bool(complete)

    def _add(self, line: bytes) -> None:
        try:
            event = json.loads(line)
            if "restart" in event:
                about = event["restart"]
                self.ranks.clear()
                self.slow, text = "", f"attempt {about['attempt'] - 1} ended: {about['message']}"
            elif "straggler" in event or "notice" in event:
                about = event.get("straggler") or event["notice"]
                text = about["text"]
                if "straggler" in event:
                    self.slow = about["task"] if about["cause"] != "none" else ""
            else:
                self.ranks[event["task"]] = event
                return
            notice = {"t": event["t"], "text": plain_text.clean(text, _LOG_WIDTH)}
        except (ValueError, KeyError, TypeError):
            return  # a line that was cut off on a full disk
        self.notices = [*self.notices, notice][-_NOTICES:]


def _by_task(paths: Iterable[Path], read: Callable[[Path], _T]) -> dict[str, _T]:
    """Return the result of ``read`` for each rank's file, by task."""
    found = {path.stem: path for path in paths}
    return {task: read(found[task]) for task in in_order(found)}


def in_order(tasks: Iterable[str]) -> list[str]:
    """Return tasks in the order of TensorFlow's task types."""
    return sorted(tasks, key=records.task_order)


def _read_progress(path: Path) -> list[Progress]:
    """Return the records of a file, except those whose time is NaN or infinite.

    If the file is too large, skip lines at regular intervals, but not the last one.
    """
    text = path.read_text("utf-8", errors="replace")
    every = 1 + len(text) // _MAX_PROGRESS
    lines = text.splitlines()
    found = progress_records.parse_progress("\n".join(lines[::-every][::-1]))
    return [record for record in found if isinstance(record.get("t", 0.0), (int, float))]


def _read_load(path: Path) -> list[Load]:
    return loads_of(path.read_text("utf-8"))


def loads_of(text: str) -> list[Load]:
    """Return the records of load in a text, except lines that were cut off on a full disk."""
    found = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def last_lines(folder: Path, result: ResultRecord | None) -> dict[str, str]:
    """Return the end of the log of the rank that failed first, if any, by its task."""
    task = str(result.get("root_cause")) if result else ""
    path = folder / "logs" / f"{task}.log"
    return {task: _tail(path)} if records.TASK_PATTERN.fullmatch(task) and path.exists() else {}


def _tail(path: Path) -> str:
    """Return the last lines of a log; of a progress bar, only the last state."""
    last = terminal.lines_of(tail.read_last(str(path), _LOG_BYTES))[-_LOG_LINES:]
    return "\n".join(plain_text.clean(line, _LOG_WIDTH) for line in last).strip("\n")


def all_records(attempts: Iterable[AttemptFiles]) -> Iterator[Progress]:
    """Yield the progress records of each rank of each attempt."""
    for attempt in attempts:
        for seen in attempt["progress"].values():
            yield from seen


def _duration(seconds: float) -> str:
    minutes, rest = divmod(max(0.0, seconds), 60)
    return f"{minutes:.0f} min {rest:.0f} s" if minutes else f"{rest:.1f} s"


def values(record: Progress) -> dict[str, float]:
    """Return the loss, metrics and speed in a record by name, without NaN and infinities."""
    named = {
        "loss": record.get("loss"),
        **record.get("metrics", {}),
        SPEED: record.get("examples_per_s"),
    }
    return {name: value for name, value in named.items() if isinstance(value, (int, float))}


def _curves(attempts: Sequence[AttemptFiles]) -> Iterator[Chart]:
    """Yield charts of the loss, each metric and the speed over the steps."""
    charts: dict[str, _Points] = defaultdict(lambda: defaultdict(list))
    for attempt in attempts:
        for task, seen in attempt["progress"].items():
            for record in (one for one in seen if "step" in one):
                for title, value in values(record).items():
                    charts[title][task, attempt["number"]].append((record["step"], value))
    for title, curves in charts.items():
        yield _chart(title, curves, "step", attempts)


def _chart(title: str, points: _Points, x_title: str, attempts: Sequence[AttemptFiles]) -> Chart:
    """Return a chart of curves. With several attempts, each attempt has its own color and name."""
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


def _began(attempts: Sequence[AttemptFiles]) -> float:
    """Return the time of the first record, or 0 if none has a time."""
    progress = [record["t"] for record in all_records(attempts) if "t" in record]
    load = [seen[0]["t"] for a in attempts for seen in a["load"].values() if seen]
    return min([*progress, *load], default=0.0)


def _phases(records_with_time: Sequence[Progress]) -> Iterator[tuple[str, float]]:
    """Yield the phase and the time of each record. A record without a phase has the last one."""
    phase = "training"
    for record in records_with_time:
        phase = record.get("phase", phase)
        yield phase, record["t"]


def _timeline(attempts: Sequence[AttemptFiles]) -> Iterator[Chart]:
    """Yield a timeline of the ranks: one bar for each of their phases."""
    # Row, start and length of each bar, by phase.
    spans: dict[str, list[tuple[str, float, float]]] = defaultdict(list)
    began = _began(attempts)
    for attempt in attempts:
        for task, seen in attempt["progress"].items():
            timed = [record for record in seen if "t" in record]
            phases = groupby(_phases(timed[:-1]), lambda seen: seen[0])
            begun = [next(group) for _, group in phases]
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
            "name": phase, "marker": {"color": color},
            "y": [row for row, _, _ in spans[phase]],
            "base": [at for _, at, _ in spans[phase]],
            "x": [length for _, _, length in spans[phase]],
            "hovertemplate": "%{y}: from %{base:.1f} s for %{x:.1f} s",
        }
        for phase, color in _COLORS.items() if phase in spans
    ]  # fmt: skip
    tasks = {task for attempt in attempts for task in attempt["progress"]}
    rows = sorted(tasks, key=records.task_order)
    times = [(_began([attempt]), f"attempt {attempt['number']}") for attempt in attempts[1:]]
    starts = [(at - began, name) for at, name in times if at]
    chart = page.bars("Activity of each rank", rows, traces, _SINCE, starts, wide=True)
    chart["layout"]["barmode"] = "overlay"
    yield chart


def _failed(attempt: AttemptFiles, task: str) -> bool:
    ranks = attempt["result"]["ranks"] if attempt["result"] else []
    return any(rank["task"] == task and rank["phase"] == records.FAILED for rank in ranks)


def _step_times(attempt: AttemptFiles) -> Iterator[Chart]:
    """Yield a chart of how each rank spends the time of a step, if the script reports it."""
    means: dict[str, dict[str, float]] = {}
    for task, seen in attempt["progress"].items():
        timed = [record["step_time"] for record in seen if record.get("step_time")]
        if timed:
            parts = {part: [float(times.get(part, 0.0)) for times in timed] for part in _PARTS}
            means[task] = {part: fmean(times) for part, times in parts.items()}
    if means:
        traces = [
            {"name": name, "marker": {"color": color}, "x": [one[part] for one in means.values()]}
            for part, (name, color) in _PARTS.items()
        ]
        yield page.bars("Time per step", list(means), traces, "ms per step")


def _loads(attempts: Sequence[AttemptFiles]) -> Iterator[Chart]:
    """Yield charts of the load of hosts, GPUs and ranks."""
    began = _began(attempts)
    titles = ("Cores used by each rank", "Busy cores of each rank's host, %", "Busy GPUs, %")
    charts: dict[str, _Points] = {title: defaultdict(list) for title in titles}
    of_ranks, of_hosts, of_gpus = charts.values()
    for attempt in attempts:
        for task, seen in attempt["load"].items():
            name = (task, attempt["number"])
            for before, after in pairwise(seen):
                grown, at = rates([before["load"], after["load"]]), after["t"] - began
                if "cpu_s" in grown:
                    of_ranks[name].append((at, grown["cpu_s"]))
                if "busy_s" in grown and after["load"].get("all_cores"):
                    share = 100 * grown["busy_s"] / after["load"]["all_cores"]
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


@dataclass(frozen=True)
class Metric:
    """The curves of a metric in two jobs. A curve is empty if its job does not report it."""

    name: str
    curves: tuple[Curve, Curve]

    @property
    def last(self) -> list[str]:
        """The last value of each job as text; ``-`` if there is none."""
        return [lines.number(curve[max(curve)][0]) if curve else "-" for curve in self.curves]

    @property
    def wanted(self) -> float | None:
        """For an accuracy, a value just below the best of both jobs; otherwise None."""
        if "accuracy" not in self.name or not all(self.curves):
            return None
        return _NEARLY * max(value for curve in self.curves for value, _ in curve.values())

    @property
    def reached(self) -> list[float | None]:
        """Seconds until each job reached ``wanted``; None if it never did, NaN if unknown."""
        wanted = self.wanted or math.inf
        seconds = [[at for value, at in c.values() if value >= wanted] for c in self.curves]
        return [
            math.nan if any(map(math.isnan, found)) else min(found, default=None)
            for found in seconds
        ]


@dataclass(frozen=True)
class Comparison:
    """Two jobs side by side."""

    jobs: tuple[str, str]
    differences: list[tuple[str, str, str]]  # name, and the texts of both values
    hosts: tuple[str, str]  # a summary of each job's ranks and hosts
    losses: str  # a sentence on where their losses diverge
    parted: int | None  # the first step at which they do, if any
    metrics: list[Metric]  # reported by at least one of them


def _differences(first: Manifest, second: Manifest) -> list[tuple[str, str, str]]:
    flat = [dict(_flat("", {name: job.get(name) for name in _FIELDS})) for job in (first, second)]
    # Ordered like the fields.
    rows = [(name, *(job.get(name, "-") for job in flat)) for name in {**flat[0], **flat[1]}]
    return [(name, a, b) for name, a, b in rows if a != b]


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the values within ``value`` by dotted names, without None.

    Lists of plain values are not split.
    """
    if value is None:
        return
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        value = {str(item.get("task", number)): item for number, item in enumerate(value)}
    if not isinstance(value, dict):
        text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
        yield name, plain_text.clean(text, _LONGEST)
        return
    for key, item in value.items():
        if key not in _PASSING:
            yield from _flat(f"{name}.{key}" if name else key, item)


def _curve(attempts: list[AttemptFiles], name: str) -> Curve:
    """Return the curve of a value, from the first rank that reports it in each attempt.

    If two attempts made the same step, the value of the later one is used.
    """
    found: Curve = {}
    began: float | None = None
    for attempt in attempts:
        ranks = attempt["progress"].values()
        seen = next((r for r in ranks if any(name in values(record) for record in r)), [])
        for record in seen:
            at = record.get("t", math.nan)
            began = at if began is None and "t" in record else began
            value = values(record).get(name)
            if value is not None and "step" in record:
                found[record["step"]] = (value, math.nan if began is None else at - began)
    return found


def compare_jobs(first: Path, second: Path) -> Comparison:
    """Compare the jobs in two folders; raise the errors of ``read``."""
    manifests, attempts = zip(*(read(folder) for folder in (first, second)), strict=True)
    seen = all_records([*attempts[0], *attempts[1]])
    names = dict.fromkeys(name for record in seen for name in values(record))
    metrics = [
        Metric(name, (_curve(attempts[0], name), _curve(attempts[1], name))) for name in names
    ]
    losses = next((metric.curves for metric in metrics if metric.name == "loss"), ({}, {}))
    jobs = (first.name, second.name)
    hosts = (_hosts(manifests[0]), _hosts(manifests[1]))
    return Comparison(jobs, _differences(*manifests), hosts, *_losses(*losses), metrics)


def _hosts(manifest: Manifest) -> str:
    """Return the number of ranks and their hosts; if there are many, only the first are named."""
    ranks = manifest["ranks"]
    hosts = list(dict.fromkeys(str(rank["host"]) for rank in ranks))
    named = ", ".join(hosts[:_SHOWN_HOSTS])
    if len(hosts) > _SHOWN_HOSTS:
        named += f" and {len(hosts) - _SHOWN_HOSTS} more"
    return plain_text.clean(
        f"{len(ranks)} {'rank' if len(ranks) == 1 else 'ranks'} on {named}", _LONGEST
    )


def _for_people(found: Comparison) -> list[tuple[str, str, str]]:
    """Return the differences that users can act on. Those of the hosts are summarized as one."""
    shown = []
    for name, *texts in found.differences:
        field, dot, rest = name.partition(".")
        if field in _SHOWN:
            length = _SHORT_HASH if field == "code_sha256" else _LONGEST
            shown.append((_SHOWN[field] + dot + rest, texts[0][:length], texts[1][:length]))
    if found.hosts[0] != found.hosts[1]:
        shown.append(("hosts", *found.hosts))
    return shown


def text_of(found: Comparison, everything: bool = False) -> str:
    """Format a comparison as text: the differences that users can act on, or ``everything``."""
    said = [" and ".join(found.jobs)]
    shown = found.differences if everything else _for_people(found)
    said += [f"  {name}: {a} | {b}" for name, a, b in shown]
    if not shown:
        said.append("  same script, arguments, code, versions and hosts")
    if not everything and len(found.differences) > len(shown):
        said.append("  other records of hosts and settings differ as well (use --all to show them)")
    said.append(found.losses)
    for metric in sorted(found.metrics, key=lambda metric: metric.name):
        if metric.name in ("loss", SPEED) or not all(metric.curves):
            continue
        line = f"{metric.name}: {' | '.join(metric.last)} at the end"
        if metric.wanted is not None:
            times = " | ".join(map(_when, metric.reached))
            line += f"; reached {lines.number(metric.wanted)}: {times}"
        said.append(line)
    return "\n".join(said)


def write_comparison(found: Comparison, path: Path) -> Path:
    """Write a comparison as a page and return its path; raise OSError if it cannot be written."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder: pass the path of a file", str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such folder", str(path.parent))
    return page.write(path, "compare.html.j2", comparison_charts(found), **comparison_values(found))


def comparison_values(found: Comparison) -> dict[str, Any]:
    """Return the values for the template of a comparison."""
    of_hosts = [row for row in found.differences if row[0].startswith(("hosts.", "ranks."))]
    of_job = [row for row in found.differences if row not in of_hosts]
    return {"found": found, "of_job": of_job, "of_hosts": of_hosts, "after": _after}


def comparison_charts(found: Comparison) -> list[Chart]:
    """Return the charts of a comparison."""
    return list(_charts(found))


def _charts(found: Comparison) -> Iterator[Chart]:
    """Yield a chart of each value over the steps, and of each accuracy over time."""
    for metric in found.metrics:
        curves = {job: c for job, c in zip(found.jobs, metric.curves, strict=True) if c}
        points = {job: [(step, c[step][0]) for step in sorted(c)] for job, c in curves.items()}
        marks: list[page.Mark] = []
        if metric.name == "loss" and found.parted is not None:
            marks = [(found.parted, f"losses diverge at step {found.parted}")]
        yield page.curves(metric.name, points, marks=marks)
        if metric.wanted is not None:
            known = {
                job: [(at, value) for value, at in c.values() if not math.isnan(at)]
                for job, c in curves.items()
            }
            times = {job: points for job, points in known.items() if points}
            if not times:
                continue
            wanted = lines.number(metric.wanted)
            marks = [(at, wanted) for at in metric.reached if at is not None and not math.isnan(at)]
            yield page.curves(f"{metric.name} over time", times, "seconds", marks)


def _losses(one: Curve, other: Curve) -> tuple[str, int | None]:
    """Return the first step at which two losses differ, in words and as a number.

    Only steps that both jobs report are compared.
    """
    shared = sorted(set(one) & set(other))
    if not shared:
        return "loss: the jobs have no reported step in common", None
    step = next((step for step in shared if one[step][0] != other[step][0]), None)
    if step is None:
        return f"loss: identical at all {len(shared)} steps reported by both", None
    a, b = one[step][0], other[step][0]
    return f"loss: differs from step {step} on: {a!r} | {b!r} ({abs(a - b):.2g} apart)", step


def _after(seconds: float | None) -> str:
    if seconds is None:
        return "never"
    return "unknown" if math.isnan(seconds) else f"{seconds:.1f} s"


def _when(seconds: float | None) -> str:
    after = _after(seconds)
    return after if seconds is None or math.isnan(seconds) else f"after {after}"
