"""Records and shows the observations of a watch.

These are updates of ranks and notices in ``events.jsonl``, the load of the hosts, and the file for
Prometheus. Data that does not fit on the disk is lost, because the job must not depend on it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from train.gang import events, lines, reports
from train.gang.job_records import LOAD_DIR
from train.gang.watch import metrics
from train.gang.watch.views import View
from train.host import records
from train.host.records import Update

#: Seconds between two versions of the file for Prometheus.
_METRICS_PAUSE = 5.0
#: Minimum time between two lines about a host's load, in seconds and as a fraction of the time that
#: the job has been watched.
LOAD_EVERY, LOAD_PART = 3.0, 0.01
#: Minimum seconds between two events of a rank in the same phase.
_EVENT_PAUSE = 0.5


class Journal:
    """Writes the records of a job in ``run_dir``.

    ``say`` shows a line. Without ``metrics_dir``, no file for Prometheus is written.
    """

    def __init__(self, run_dir: Path, say: Callable[[str], None], metrics_dir: str) -> None:
        self.run_dir, self.say, self._metrics_dir = run_dir, say, metrics_dir
        self._began = time.monotonic()
        self._noticed: set[tuple[str, str]] = set()
        self._said: dict[str, tuple[Any, ...]] = {}
        self._unwritten: dict[View, float | None] = {}  # ranks with an update to be written later
        self._measured = -_METRICS_PAUSE
        self._load_due: dict[str, float] = {}

    def write(self, **event: Any) -> None:
        """Append a line to ``events.jsonl``, unless the disk is full."""
        with contextlib.suppress(OSError):
            events.write(self.run_dir, **event)

    def notice(
        self, kind: str, text: str, view: View | None = None, once: str | None = None
    ) -> None:
        """Show and record a line about the watch.

        If ``once`` is set, do so only once for each combination of ``kind`` and ``once``.
        """
        if once is not None:
            if (kind, once) in self._noticed:
                return
            self._noticed.add((kind, once))
        self.say(text)
        task = view.target.task if view else None
        self.write(notice={"kind": kind, "task": task, "text": text})

    def may_notice_again(self, kind: str, once: str) -> bool:
        """Allow a notice to be repeated. Return whether it had been shown."""
        if (kind, once) not in self._noticed:
            return False
        self._noticed.remove((kind, once))
        return True

    def add_update(self, view: View, phase: str, age: float | None) -> None:
        """Write an event about a rank, or postpone it if the last one was written just before.

        ``phase`` is the rank's previous phase, ``age`` the seconds since its last progress record
        or line of its log.
        """
        if view.phase != phase or time.monotonic() - view.event_at >= _EVENT_PAUSE:
            self._write_rank(view, age)
        else:
            self._unwritten[view] = age

    def _write_rank(self, view: View, age: float | None) -> None:
        """Write an event about a rank."""
        self._unwritten.pop(view, None)
        view.event_at = time.monotonic()
        self.write(
            task=view.target.task,
            host=view.target.host,
            phase=view.phase,
            reason=view.state.get("reason", ""),
            exit_code=view.state.get("exit_code"),
            progress=view.record,
            last_line=view.last_line,
            age=age,
        )

    def write_late(self, now: float) -> None:
        """Write the events that ``add_update`` has postponed and that are now due."""
        for view, age in list(self._unwritten.items()):
            if now - view.event_at >= _EVENT_PAUSE:
                self._write_rank(view, age)

    def write_metrics(self, views: Sequence[View], now: float) -> None:
        """Write the job's file for Prometheus at regular intervals."""
        if now - self._measured < _METRICS_PAUSE:
            return
        self._measured = now
        attempt = max(view.target.attempt for view in views)
        about = (self.run_dir.name, records.RUNNING, attempt, views)
        error = metrics.write(self._metrics_dir, *about)
        if error:
            self.notice("metrics", f"{error}; the job continues", once="")

    def add_load(self, task: str, update: Update) -> None:
        """Append a host's load to a file, less and less often so that the file remains small."""
        now = time.monotonic()
        if not update["load"] or now < self._load_due.get(task, now):
            return
        self._load_due[task] = now + max(LOAD_EVERY, LOAD_PART * (now - self._began))
        with contextlib.suppress(reports.ReportError, OSError):
            line = {"t": round(update["now"], 3), "load": reports.load(update["load"])}
            path = self.run_dir / LOAD_DIR / f"{task}.jsonl"
            path.parent.mkdir(exist_ok=True)
            events.append(path, line)

    def describe(self, view: View, addition: str) -> None:
        """Show a line about a rank, followed by ``addition``, if its phase or epoch has changed."""
        record, task = view.record, view.target.task
        key: tuple[Any, ...] = (view.phase, bool(view.state.get("frozen")), record.get("phase"))
        key += (record.get("epoch"), bool(record.get("step")))
        if self._said.get(task) != key:
            self._said[task] = key
            progress = {**record, "metrics": view.metrics} if record else {}
            line = lines.line(view.phase, view.state.get("reason"), progress, view.last_line)
            self.say(f"{task} ({view.target.host}): {line}{addition}")
