"""Shows a job's events to a person or a program: a live table, plain lines or JSON lines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any, Protocol, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from train.cli.job import Event, Result
from train.gang.watch.views import number
from train.host import records

#: Seconds between two plain lines of one rank in the same epoch.
_PLAIN_INTERVAL = 10.0
STYLES = {
    records.COMPLETED: "green",
    records.FAILED: "bold red",
    records.STOPPED: "yellow",
}


class Display(Protocol):
    """What a job's events are shown with."""

    def event(self, event: Event) -> None:
        """Show one event."""

    def result(self, result: Result) -> None:
        """Show how the job ended; nothing follows."""

    def pause(self) -> None:
        """Leave the terminal alone, for a question."""

    def resume(self) -> None:
        """Go on after a question."""


def duration(seconds: float) -> str:
    """Return a time span as ``m:ss`` or ``h:mm:ss``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def fraction(progress: Mapping[str, Any]) -> float | None:
    """Return the part of the steps that are done, 0 to 1; None where it is not known."""
    step, steps = progress.get("step"), progress.get("steps")
    if not isinstance(step, (int, float)) or not isinstance(steps, (int, float)) or steps <= 0:
        return None
    return min(1.0, step / steps)


def numbers(progress: Mapping[str, Any]) -> str:
    """Return a record's metrics as ``name value`` pairs."""
    metrics = progress.get("metrics")
    if not isinstance(metrics, Mapping):
        return ""
    return "  ".join(f"{name} {number(value)}" for name, value in metrics.items())


def rate(progress: Mapping[str, Any]) -> str:
    """Return the speed in examples, or else in steps, a second."""
    for key, unit in (("examples_per_s", "ex/s"), ("steps_per_s", "steps/s")):
        value = progress.get(key)
        if isinstance(value, (int, float)):
            return f"{value:.0f} {unit}" if value >= 10 else f"{value:.2g} {unit}"
    return ""


def count(progress: Mapping[str, Any], name: str) -> str:
    """Return ``3/10`` for ``name`` and its plural, as far as they are known."""
    value, total = progress.get(name), progress.get(name + "s")
    if value is None:
        return ""
    return f"{value}/{total}" if total else str(value)


class JsonDisplay:
    """One JSON object a line: every event, then the result."""

    def __init__(self, stream: TextIO = sys.stdout) -> None:
        self._stream = stream

    def _write(self, value: Mapping[str, Any]) -> None:
        self._stream.write(json.dumps(value, sort_keys=True) + "\n")
        self._stream.flush()

    def event(self, event: Event) -> None:
        """Show one event."""
        if event.kind == "rank":
            self._write({"event": "rank", "job": event.job, **event.data})
        elif event.kind in ("straggler", "notice"):
            self._write({"event": event.kind, "job": event.job, **event.data})
        elif event.kind == "restart":
            told = {"event": "restart", "job": event.job, "culprit": event.task or None}
            self._write({**told, **event.data})
        else:
            self._write({"event": "task", "job": event.job, "name": event.task})

    def result(self, result: Result) -> None:
        """Show how the job ended."""
        self._write(
            {
                "event": "result",
                "job": result.job,
                "state": result.state,
                "message": result.message,
                "metrics": dict(result.metrics),
                "ranks": [dict(rank) for rank in result.ranks],
                "run_dir": str(result.run_dir),
            }
        )

    def pause(self) -> None:
        """Nothing to leave alone."""

    def resume(self) -> None:
        """Nothing to go on with."""


class PlainDisplay:
    """Lines for a log file: a rank's change of phase or epoch at once, the rest now and then."""

    def __init__(self, stream: TextIO = sys.stdout) -> None:
        self._stream = stream
        self._keys: dict[str, tuple[Any, ...]] = {}
        self._times: dict[str, float] = {}

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()

    def event(self, event: Event) -> None:
        """Show one event, if it says something new."""
        if event.kind == "task":
            self._write(f"ansible: {event.task}")
            return
        if event.kind in ("straggler", "notice"):
            self._write(str(event.data["text"]))
            return
        if event.kind == "restart":
            self._keys.clear()
            self._write(restarting(event))
            return
        progress = event.data["progress"]
        key = (event.data["phase"], progress.get("phase"), progress.get("epoch"))
        now = time.monotonic()
        last = self._times.get(event.task, float("-inf"))
        if self._keys.get(event.task) == key and now - last < _PLAIN_INTERVAL:
            return
        self._keys[event.task], self._times[event.task] = key, now
        self._write(f"{event.task} on {event.data['host']}: {one_line(event.data)}")

    def result(self, result: Result) -> None:
        """Show how the job ended."""
        self._write(ending(result))

    def pause(self) -> None:
        """Nothing to leave alone."""

    def resume(self) -> None:
        """Nothing to go on with."""


def one_line(data: Mapping[str, Any]) -> str:
    """Return a rank's event as one line of text."""
    progress = data["progress"]
    if data["phase"] in records.FINAL_PHASES:
        words = [str(data["phase"]), str(data["reason"] or ""), numbers(progress)]
    else:
        words = [str(progress.get("phase") or data["phase"])]
        words += [f"{n} {count(progress, n)}" for n in ("epoch", "step") if count(progress, n)]
        loss = progress.get("loss")
        words += [f"loss {number(loss)}"] if loss is not None else []
        words += [numbers(progress), rate(progress)]
        if not progress:
            words.append(str(data["last_line"]))
    return "  ".join(word for word in words if word)


def restarting(event: Event) -> str:
    """Return the words on an attempt that failed and the one that follows."""
    data = event.data
    told = f"attempt {data['attempt']} follows in {data['delay']:g} s"
    return f"job {event.job} failed: {data['message']}\n{told}"


def ending(result: Result) -> str:
    """Return the last words on a job."""
    lines = [f"job {result.job} {result.state}: {result.message}"]
    lines += [f"  {name}: {number(value)}" for name, value in result.metrics.items()]
    if result.ranks:
        lines.append(f"  results: {result.run_dir}")
    return "\n".join(lines)


class LiveDisplay:
    """A table of the ranks that is drawn again as updates come, on a terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._ranks: dict[str, Mapping[str, Any]] = {}
        self._seen: dict[str, float] = {}
        self._job, self._task = "", ""
        self._began = time.monotonic()
        self._first_step: tuple[float, float] | None = None  # time, fraction done then
        # Drawing costs the control node's time, and that may be a training host.
        self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=1)
        self._live.start()

    def event(self, event: Event) -> None:
        """Show one event."""
        self._job = event.job
        if event.kind == "task":
            self._task = event.task
            return
        if event.kind in ("straggler", "notice"):
            self._live.console.print(Text(str(event.data["text"]), style="yellow"), soft_wrap=True)
            return
        if event.kind == "restart":
            self._live.console.print(Text(restarting(event), style="bold red"), soft_wrap=True)
            self._ranks, self._first_step = {}, None
            return
        self._ranks[event.task] = event.data
        self._seen[event.task] = time.monotonic() - float(event.data["age"] or 0.0)
        done = fraction(event.data["progress"])
        if self._first_step is None and done:
            self._first_step = (time.monotonic(), done)

    def result(self, result: Result) -> None:
        """Show how the job ended."""
        self._live.stop()
        style = "bold green" if result.state == "completed" else "bold red"
        self._console.print(Text(ending(result), style=style), soft_wrap=True)

    def pause(self) -> None:
        """Leave the terminal alone."""
        self._live.stop()

    def resume(self) -> None:
        """Draw again."""
        self._live.start()

    def _remaining(self) -> str:
        """Return the time left, from the steps done since the first one was seen."""
        if self._first_step is None:
            return ""
        then, at_first = self._first_step
        done = max((fraction(data["progress"]) or 0.0) for data in self._ranks.values())
        elapsed = time.monotonic() - then
        if done <= at_first or elapsed < 1.0:
            return ""
        return f"{duration(elapsed / (done - at_first) * (1.0 - done))} left"

    def _render(self) -> Group:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("rank", "host", "phase", "epoch", "step", "", "loss", "metrics", "speed"):
            table.add_column(name, no_wrap=name not in ("metrics", "phase"))
        table.add_column("update", justify="right", no_wrap=True)
        now = time.monotonic()
        for task, data in sorted(self._ranks.items(), key=lambda item: records.task_order(item[0])):
            progress = data["progress"]
            done = fraction(progress)
            final = data["phase"] in records.FINAL_PHASES
            phase = data["phase"] if final else progress.get("phase") or data["phase"]
            loss = progress.get("loss")
            detail = numbers(progress)
            if final and data["reason"]:
                detail = str(data["reason"])
            elif not progress:
                detail = str(data["last_line"])
            table.add_row(
                task,
                str(data["host"]),
                Text(str(phase), style=STYLES.get(str(data["phase"]), "")),
                count(progress, "epoch"),
                count(progress, "step"),
                ProgressBar(total=1.0, completed=done, width=16) if done is not None else "",
                number(loss) if loss is not None else "",
                Text(detail[:160]),
                rate(progress),
                "" if final else f"{max(0.0, now - self._seen[task]):.0f} s",
            )
        words = [f"job {self._job}", duration(now - self._began), self._remaining()]
        if not self._ranks:
            words.append(self._task)
        head = Text("  ".join(word for word in words if word), style="bold")
        return Group(head, table) if self._ranks else Group(head)
