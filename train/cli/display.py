"""Shows a job's events to a person or a program: a live table, plain lines or JSON lines."""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from typing import Any, cast

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from train.cli.events import Event, Result
from train.gang import lines
from train.gang.records import RankEvent
from train.host import records

#: Seconds between two plain lines of one rank in the same epoch.
_PLAIN_INTERVAL = 10.0
STYLES = {
    records.COMPLETED: "green",
    records.FAILED: "bold red",
    records.STOPPED: "yellow",
}


def best_display(as_json: bool) -> PlainDisplay | JsonDisplay:
    """Return the display for standard output."""
    if as_json:
        return JsonDisplay()
    return LiveDisplay() if sys.stdout.isatty() else PlainDisplay()


class JsonDisplay:
    """One JSON object a line: every event, then the result."""

    def event(self, event: Event) -> None:
        """Show one event."""
        about = dict(event.data)
        if event.kind == "task":
            about["name"] = event.task
        elif event.kind == "restart":
            about["root_cause"] = event.task or None
        self._write(event.kind, event.job, about)

    def result(self, result: Result) -> None:
        """Show how the job ended; nothing follows."""
        names = ("state", "message", "metrics", "ranks")
        about = {name: getattr(result, name) for name in names}
        self._write("result", result.job, {**about, "run_dir": str(result.run_dir)})

    def pause(self) -> None:
        """Leave the terminal alone, for a question."""

    def resume(self) -> None:
        """Continue after a question."""

    def _write(self, kind: str, job: str, about: dict[str, Any]) -> None:
        print(json.dumps({"event": kind, "job": job, **about}, sort_keys=True), flush=True)


class PlainDisplay(JsonDisplay):
    """Lines for a log file: a rank's change of phase or epoch at once, the rest now and then."""

    def __init__(self) -> None:
        self._job = ""
        self._shown: dict[str, tuple[tuple[object, ...], float]] = {}  # of a rank, and when

    def event(self, event: Event) -> None:
        """Show one event, if it has something new."""
        self._job = event.job
        if event.kind == "task":
            self._task(event.task)
        elif event.kind == "rank":
            self._rank(event.task, cast(RankEvent, event.data))
        elif event.kind == "restart":
            self._restart()
            data = event.data
            follows = f"attempt {data['attempt']} follows in {data['delay']:g} s"
            self._say(f"job {event.job} failed: {data['message']}\n{follows}", "bold red")
        else:
            self._say(str(event.data["text"]), "yellow")

    def result(self, result: Result) -> None:
        """Show how the job ended."""
        text = [f"job {result.job} {result.state}: {result.message}"]
        text += [f"  {name}: {lines.number(value)}" for name, value in result.metrics.items()]
        if result.ranks:
            text.append(f"  results: {result.run_dir}")
        self.pause()
        self._say("\n".join(text), "bold green" if result.state == "completed" else "bold red")

    def _say(self, text: str, style: str) -> None:
        print(text, flush=True)

    def _task(self, name: str) -> None:
        self._say(f"ansible: {name}", "")

    def _restart(self) -> None:
        self._shown.clear()

    def _rank(self, task: str, seen: RankEvent) -> None:
        phase, progress = seen["phase"], seen["progress"]
        key = (phase, progress.get("phase"), progress.get("epoch"))
        now = time.monotonic()
        before, at = self._shown.get(task, ((), 0.0))
        if before != key or now - at >= _PLAIN_INTERVAL:
            self._shown[task] = key, now
            line = lines.line(phase, seen["reason"], progress, seen["last_line"])
            self._say(f"{task} on {seen['host']}: {line}", "")


def _fraction(seen: RankEvent) -> float | None:
    """Return the part of the steps that are done, 0 to 1; None where it is not known."""
    step, steps = seen["progress"].get("step"), seen["progress"].get("steps")
    return min(1.0, step / steps) if steps and step is not None else None


def _duration(seconds: float) -> timedelta:
    return timedelta(seconds=int(seconds))


class LiveDisplay(PlainDisplay):
    """A table of the ranks that is drawn again as updates come, on a terminal."""

    def __init__(self) -> None:
        super().__init__()
        self._console = Console()
        self._ansible = ""  # its current task
        self._ranks: dict[str, RankEvent] = {}
        self._updated: dict[str, float] = {}
        self._began = time.monotonic()
        self._first_step: tuple[float, float] | None = None  # time, fraction done then
        # Drawing costs the control node's time, and that may be a training host.
        self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=1)
        self._live.start()

    def pause(self) -> None:
        """Leave the terminal alone."""
        self._live.stop()

    def resume(self) -> None:
        """Draw again."""
        self._live.start()

    def _say(self, text: str, style: str) -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)

    def _task(self, name: str) -> None:
        self._ansible = name

    def _restart(self) -> None:
        self._ranks, self._first_step = {}, None

    def _rank(self, task: str, seen: RankEvent) -> None:
        self._ranks[task] = seen
        self._updated[task] = time.monotonic() - (seen["age"] or 0.0)
        done = _fraction(seen)
        if self._first_step is None and done:
            self._first_step = (time.monotonic(), done)

    def _remaining(self) -> str:
        """Return the time left, from the steps done since the first one was seen."""
        if self._first_step is None:
            return ""
        then, at_first = self._first_step
        done = max((_fraction(seen) or 0.0) for seen in self._ranks.values())
        elapsed = time.monotonic() - then
        if done <= at_first or elapsed < 1.0:
            return ""
        return f"{_duration(elapsed / (done - at_first) * (1.0 - done))} left"

    def _render(self) -> Group:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("rank", "host", "phase", "epoch", "step", "", "loss", "metrics", "speed"):
            table.add_column(name, no_wrap=name not in ("metrics", "phase"))
        table.add_column("update", justify="right", no_wrap=True)
        now = time.monotonic()
        for task, seen in sorted(self._ranks.items(), key=lambda item: records.task_order(item[0])):
            phase, progress, done = seen["phase"], seen["progress"], _fraction(seen)
            final = phase in records.FINAL_PHASES
            loss = progress.get("loss")
            detail = lines.metrics(progress) if progress else seen["last_line"]
            table.add_row(
                task,
                seen["host"],
                Text(lines.phase_of(phase, progress), style=STYLES.get(phase, "")),
                lines.count(progress, "epoch"),
                lines.count(progress, "step"),
                ProgressBar(total=1.0, completed=done, width=16) if done is not None else "",
                lines.number(loss) if loss is not None else "",
                Text(((final and seen["reason"]) or detail)[:160]),
                lines.rate(progress),
                "" if final else f"{max(0.0, now - self._updated[task]):.0f} s",
            )
        words = [f"job {self._job}", f"{_duration(now - self._began)}", self._remaining()]
        words.append("" if self._ranks else self._ansible)
        head = Text("  ".join(filter(None, words)), style="bold")
        return Group(head, table) if self._ranks else Group(head)
