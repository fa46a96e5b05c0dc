"""Displays a job's events as a live table, plain lines or JSON lines."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from train.cli.job import Event, Result
from train.gang import lines
from train.gang.job_records import RankEvent, read_manifest
from train.host import plain_text, records

#: Seconds between two plain lines of a rank within an epoch, and between lines about all ranks.
_PLAIN_INTERVAL = 10.0
#: Maximum number of ranks to show without a line about all of them.
_MANY = 8
#: The columns of the table and their minimum widths. Some are cut to this width if the terminal
#: is narrow; the others are at least as wide as their contents.
_COLUMNS = {
    **{"rank": 0, "host": 12, "phase": 9, "epoch": 0, "step": 0, "": 16, "loss": 9},
    **{"metrics": 16, "speed": 11, "message": 16, "update": 6},
}
_CUT = ("host", "phase", "metrics", "message")
#: Parts of a table that are shown only if there is room, most important first.
_WANTED = ("epoch", "message", "metrics", "update", "")
_GAP = 2
#: Maximum and minimum number of seconds over which the pace is measured.
_PACE_WINDOW, _PACE_LEAST = 180.0, 5.0
#: The lag of a rank is counted in units of this fraction of the leading rank's steps, so that the
#: order of ranks is stable.
_BEHIND_PART = 0.1
#: The states of a job in which a command has done what it was asked for.
_GOOD = ("completed", "detached")
#: The task types that make training steps.
_TRAINING = ("chief", "worker")

STYLES = {records.COMPLETED: "green", records.FAILED: "bold red", records.STOPPED: "yellow"}


class Overview:
    """The latest updates of an attempt's ranks, by task."""

    def __init__(self, attempt: int = 0) -> None:
        self.attempt = attempt  # 0 if unknown
        self.ranks: dict[str, RankEvent] = {}
        self.slow = ""  # the rank that keeps the others waiting, if any
        self._furthest = 0  # step of any rank
        self._pace: deque[tuple[float, float]] = deque()  # time, part of the steps done by then

    def add(self, task: str, seen: RankEvent) -> None:
        """Record an update of a rank."""
        self.ranks[task] = seen
        self._furthest = max(map(_step, self.ranks.values()))
        known = [part for part in map(fraction, self.ranks.values()) if part is not None]
        done, now = max(known, default=None), time.monotonic()  # of the rank that is furthest ahead
        if done is None:
            return
        if self._pace and done < self._pace[-1][1]:  # the script begins another training
            self._pace.clear()
        if not self._pace or done > self._pace[-1][1]:
            self._pace.append((now, done))
        while len(self._pace) > 2 and self._pace[1][0] < now - _PACE_WINDOW:
            self._pace.popleft()

    def left(self) -> str:
        """Return a text such as ``0:02:10 left``, from the pace of the last minutes; '' if unknown.

        The time until all steps are done is given in hours, minutes and seconds.
        """
        if len(self._pace) < 2 or self._is_ending():
            return ""
        (then, before), (_, done) = self._pace[0], self._pace[-1]
        elapsed = time.monotonic() - then
        if done >= 1.0 or elapsed < _PACE_LEAST:
            return ""
        return f"{_duration(elapsed / (done - before) * (1.0 - done))} left"

    def _is_ending(self) -> bool:
        """Return whether no more steps will follow, because a needed rank has ended early."""
        early = (records.FAILED, records.STOPPED)
        ended = [task for task, seen in self.ranks.items() if seen["phase"] in early]
        served = any(task.startswith("ps-") for task in self.ranks)
        needed = ("chief", "ps") if served else _TRAINING
        workers = [task for task in self.ranks if task.startswith("worker")]
        return any(task.startswith(needed) for task in ended) or (
            bool(workers) and set(workers) <= set(ended)
        )

    def in_order(self, urgent: bool = False) -> list[str]:
        """Return the tasks in the order of TensorFlow's task types.

        If ``urgent`` is set, failed ranks come first, in the order of their failures. Running ranks
        follow, the slowest first, and finally the ranks that were stopped or have completed.
        """
        tasks = sorted(self.ranks, key=records.task_order)

        def urgency(task: str) -> tuple[float, ...]:
            seen = self.ranks[task]
            if seen["phase"] == records.FAILED:
                return 0, seen["t"]
            if seen["phase"] in records.FINAL_PHASES:
                return 2, 0
            return 1, task != self.slow, -self._behind(task)

        return sorted(tasks, key=urgency) if urgent else tasks

    def text(self) -> str:
        """Return one line about all ranks: counts by phase, the progress, and the slowest rank."""
        urgent = self.in_order(urgent=True)
        ordered = [self.ranks[task] for task in urgent]
        found = Counter(lines.phase_of(seen["phase"], seen["progress"]) for seen in ordered)
        counts = ", ".join(f"{number} {phase}" for phase, number in found.items())
        words = [f"{len(self.ranks)} ranks: {counts}"]
        alive = [task for task in urgent if self.ranks[task]["phase"] in records.ALIVE_PHASES]
        if self._furthest:
            words += lines.counts(max(self.ranks.values(), key=_step)["progress"], "step")
        if alive and (alive[0] == self.slow or self._behind(alive[0])):
            words.append(f"slowest {alive[0]} at step {_step(self.ranks[alive[0]])}")
        return "  ".join(words)

    def _behind(self, task: str) -> int:
        """Return a rank's lag behind the leading rank, as a whole number of _BEHIND_PART."""
        if not self._furthest or not task.startswith(_TRAINING):
            return 0
        return int((self._furthest - _step(self.ranks[task])) / (self._furthest * _BEHIND_PART))


def fraction(seen: RankEvent) -> float | None:
    """Return the fraction of its steps that a rank has done, 0 to 1, or None if unknown."""
    step, steps = seen["progress"].get("step"), seen["progress"].get("steps")
    return min(1.0, step / steps) if steps and step is not None else None


def short_names(hosts: Iterable[str]) -> dict[str, str]:
    """Return the name to show for each host: without its domain, if all names remain unique."""
    names = {host: host.partition(".")[0] for host in hosts}
    whole = len(set(names.values())) < len(names) or any(map(plain_text.is_number, names.values()))
    return {host: host for host in names} if whole else names


def _step(seen: RankEvent) -> int:
    return seen["progress"].get("step") or 0


def best_display(as_json: bool, run_dir: Path) -> JsonDisplay:
    """Return the display for standard output; ``run_dir`` is the job's folder."""
    if as_json:
        return JsonDisplay()
    # Some terminals, such as those of editors, cannot move the cursor.
    live = sys.stdout.isatty() and Console().is_interactive
    return LiveDisplay(run_dir) if live else PlainDisplay()


class JsonDisplay:
    """Prints one JSON object per line: every event, then the result."""

    def event(self, event: Event) -> None:
        """Show one event."""
        about = dict(event.data)
        if event.kind == "task":
            about["name"] = event.task
        self._write(event.kind, event.job, about)

    def result(self, result: Result) -> None:
        """Show how the job ended; must be the last call."""
        names = ("state", "message", "metrics", "ranks", "doubts", "notes")
        about = {name: getattr(result, name) for name in names}
        self._write("result", result.job, {**about, "run_dir": str(result.run_dir)})

    def pause(self) -> None:
        """Leave the terminal alone while a question is asked."""

    def resume(self) -> None:
        """Continue after a question."""

    def _write(self, kind: str, job: str, about: dict[str, Any]) -> None:
        print(json.dumps({"event": kind, "job": job, **about}, sort_keys=True), flush=True)


class PlainDisplay(JsonDisplay):
    """Prints lines for a log: changes at once, and progress at intervals.

    If there are many ranks, a summary of them is printed.
    """

    def __init__(self) -> None:
        self._job = ""
        self._phase = ""  # the current step until the ranks run
        self._overview = Overview()
        self._summed = 0.0  # time of the last line about all ranks
        self._shown: dict[str, tuple[tuple[object, ...], float]] = {}  # line of a rank, time

    def event(self, event: Event) -> None:
        """Show an event if it contains anything new."""
        self._job = event.job
        if event.kind == "task":
            self._task(event.phase)
        elif event.kind == "rank":
            self._rank(event.task, cast(RankEvent, event.data))
        elif event.kind == "restart":
            data = event.data
            self._restart(data["attempt"])
            follows = f"attempt {data['attempt']} starts in {data['delay']:g} s"
            ended = f"attempt {data['attempt'] - 1} ended: {data['message']}"
            self._say(f"{ended}\n{follows}", "yellow")
        else:
            if event.kind == "straggler":
                self._overview.slow = event.task if event.data["cause"] != "none" else ""
            self._say(str(event.data["text"]), "yellow")

    def result(self, result: Result) -> None:
        """Show how the job ended."""
        attempts = f" after {result.attempts} attempts" if result.attempts > 1 else ""
        text = [f"job {result.job} {result.state}{attempts}: {result.message}"]
        text += [f"  {name}: {lines.number(value)}" for name, value in result.metrics.items()]
        if result.ranks:
            text.append(f"  results: {result.run_dir}")
        self.pause()
        self._say("\n".join(text), "bold green" if result.state in _GOOD else "bold red")
        for line in lines.remarks(result.doubts, result.notes):
            self._say(line, "yellow")

    def _say(self, text: str, style: str) -> None:
        print(text, flush=True)

    def _task(self, phase: str) -> None:
        if phase and phase != self._phase:
            self._say(f"{phase} ...", "")
        self._phase = phase

    def _restart(self, attempt: int) -> None:
        self._shown.clear()
        self._overview = Overview(attempt)

    def _rank(self, task: str, seen: RankEvent) -> None:
        self._overview.add(task, seen)
        phase, progress = seen["phase"], seen["progress"]
        key = (phase, progress.get("phase"), progress.get("epoch"))
        now = time.monotonic()
        before, at = self._shown.get(task, ((), 0.0))
        if len(self._overview.ranks) > _MANY and phase != records.FAILED:
            if now - self._summed >= _PLAIN_INTERVAL:
                self._summed = now
                self._say(_joined(self._overview.text(), self._overview.left()), "")
        elif before != key or now - at >= _PLAIN_INTERVAL:
            self._shown[task], self._summed = (key, now), now
            line = lines.line(phase, seen["reason"], progress, seen["last_line"])
            self._say(f"{task} on {seen['host']}: {line}", "")


def _joined(*words: str) -> str:
    return "  ".join(filter(None, words))


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=int(seconds)))


def _line(text: str, style: str = "") -> Text:
    """Return a rich text that takes up one line, even if ``text`` is long or has several lines."""
    return Text(" ".join(text[:500].split("\n")), style=style, no_wrap=True, overflow="ellipsis")


class LiveDisplay(PlainDisplay):
    """Draws a table of the ranks every second, fitted to the size of the terminal."""

    def __init__(self, run_dir: Path, console: Console | None = None) -> None:
        super().__init__()
        self._job, self._run_dir = run_dir.name, run_dir
        self._console = console or Console()
        self._updated: dict[str, float] = {}
        self._began = time.monotonic()
        self._lock = threading.Lock()  # another thread draws the table
        self.resume()

    def pause(self) -> None:
        """Stop drawing, so that a question can be asked."""
        self._live.stop()

    def resume(self) -> None:
        """Continue to draw, below the current contents of the terminal."""
        # Drawing takes CPU time of the control node, which may also be a training host.
        self._live = Live(self, console=self._console, refresh_per_second=1)
        self._live.start()

    def _say(self, text: str, style: str) -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)

    def _task(self, phase: str) -> None:
        self._phase = phase

    def _restart(self, attempt: int) -> None:
        with self._lock:
            super()._restart(attempt)
            self._phase = ""

    def _rank(self, task: str, seen: RankEvent) -> None:
        with self._lock:
            if not self._overview.ranks:
                self._read_manifest()
            self._overview.add(task, seen)
            self._updated[task] = time.monotonic() - (seen["age"] or 0.0)

    def _read_manifest(self) -> None:
        """Read the number of the attempt and the start time of the job."""
        manifest = read_manifest(self._run_dir) or {}
        self._overview.attempt = manifest.get("attempt", self._overview.attempt)
        if "created_at" in manifest:
            age = time.time() - manifest["created_at"]
            self._began = min(self._began, time.monotonic() - age)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the known state in the width and height of the terminal."""
        with self._lock:
            drawn = self._draw(options.max_width, console.height - 1)
        yield from drawn

    def _draw(self, width: int, height: int) -> list[RenderableType]:
        overview = self._overview
        attempt = f"attempt {overview.attempt}" if overview.attempt > 1 else ""
        words = [attempt, _duration(time.monotonic() - self._began), overview.left()]
        about = _joined(*words, "" if overview.ranks else self._phase)
        name = _line(f"job {self._job}")
        name.truncate(max(12, width - len(about) - _GAP), overflow="ellipsis")
        drawn: list[RenderableType] = [_line(_joined(name.plain, about), "bold")]
        tasks = overview.in_order()
        if len(tasks) > min(_MANY, height - 3):
            drawn.append(_line(overview.text()))
        room = height - len(drawn) - 2  # one line each for the header and for a reason
        if len(tasks) > room:
            tasks = overview.in_order(urgent=True)[: max(1, room - 1)]
        if tasks:
            drawn += self._table(tasks, width)
        if len(tasks) < len(overview.ranks):
            drawn.append(_line(f"and {len(overview.ranks) - len(tasks)} more ranks", "dim"))
        return drawn

    def _table(self, tasks: Iterable[str], width: int) -> list[RenderableType]:
        """Return the table of some ranks.

        If it has no room for messages, add a line with the reason of the most urgent rank.
        """
        ranks = [self._overview.ranks[task] for task in tasks]
        hosts = short_names({seen["host"] for seen in self._overview.ranks.values()})
        rows = [self._cells(seen) for seen in ranks]

        def width_of(name: str) -> int:
            widest = max(row[name].cell_len for row in rows)
            return _COLUMNS[name] if name in _CUT else max(_COLUMNS[name], widest, len(name))

        def fit(names: Iterable[str]) -> bool:
            return sum(width_of(name) + _GAP for name in names) - _GAP <= width

        filled = [name for name in _COLUMNS if any(row[name] for row in rows)]
        chosen = set(filled) - set(_WANTED)
        for name in _WANTED:
            if name in filled and fit({*chosen, name}):
                chosen.add(name)
        shown = [name for name in filled if name in chosen]
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in shown:
            least = None if name in _CUT else width_of(name)
            table.add_column(_line(name), no_wrap=name not in _CUT, min_width=least)
        for row, seen in zip(rows, ranks, strict=True):
            cells: dict[str, RenderableType] = {**row}
            if shown != filled:
                cells["host"] = _line(hosts[seen["host"]])
            if row[""]:
                cells[""] = ProgressBar(total=1.0, completed=fraction(seen) or 0.0, width=16)
            table.add_row(*(cells[name] for name in shown))
        urgent = [self._overview.ranks[task] for task in self._overview.in_order(urgent=True)]
        reasons = (f"{seen['task']}: {seen['reason']}" for seen in urgent if seen["reason"])
        reason = "" if "message" in shown else next(reasons, "")
        return [table, _line(reason, "red")] if reason else [table]

    def _cells(self, seen: RankEvent) -> dict[str, Text]:
        """Return the cells of a rank's row by column."""
        phase, progress = seen["phase"], seen["progress"]
        has_ended = phase in records.FINAL_PHASES
        age = time.monotonic() - self._updated[seen["task"]]
        cells = {
            "rank": seen["task"],
            "host": seen["host"],
            "phase": lines.phase_of(phase, progress),
            "epoch": lines.count(progress, "epoch"),
            "step": lines.count(progress, "step"),
            "": "-" if fraction(seen) is not None else "",
            "loss": lines.loss(progress, approximate=not has_ended),
            "metrics": lines.metrics(progress, approximate=not has_ended),
            "speed": lines.rate(progress),
            "message": seen["reason"] or ("" if progress else seen["last_line"]),
            "update": "" if has_ended else f"{max(0.0, age):4.0f} s",
        }
        styles = {"phase": STYLES.get(phase, ""), "message": "" if seen["reason"] else "dim"}
        return {name: _line(text, styles.get(name, "")) for name, text in cells.items()}
