"""Writes a job's metrics for Prometheus, in a file for node_exporter's textfile collector.

The label with the job's id is ``train_job``, because Prometheus uses the label ``job`` itself, and
would rename it to ``exported_job``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from train.gang.watch.views import View
from train.host import json_files, rank_files, records

#: States of a job. With ``restarting``, an attempt has failed and another one follows.
STATES = (records.RUNNING, records.COMPLETED, records.FAILED, records.STOPPED, "restarting")
#: The series from a rank's progress record: field, name, factor and help.
_PROGRESS = (
    ("step", "step", 1, "Last step of the rank"),
    ("steps", "steps_planned", 1, "Total steps of the training"),
    ("epoch", "epoch", 1, "Current epoch of the rank"),
    ("epochs", "epochs_planned", 1, "Total epochs of the training"),
    ("loss", "loss", 1, "Last loss of the rank"),
    ("examples_per_s", "examples_per_second", 1, "Examples that the rank processes per second"),
    ("steps_per_s", "steps_per_second", 1, "Steps of the rank per second"),
    ("memory_mb", "memory_bytes", 2**20, "Main memory used by the rank's script"),
)
#: Spellings in Prometheus' format of values that a progress record has as text.
_NOT_FINITE = {"NaN": "NaN", "Infinity": "+Inf", "-Infinity": "-Inf"}

Sample = tuple[Mapping[str, str], object]


def write(folder: str, job: str, state: str, attempt: int, views: Sequence[View]) -> str:
    """Replace the job's file in ``folder``, if set. Return an error message or an empty string."""
    if not folder:
        return ""
    path = f"{rank_files.expand(folder)}/train-{job}.prom"
    try:
        json_files.write_text(path, text_of(job, state, attempt, views), durable=False)
    except Exception as error:  # the job must not depend on its monitoring
        why = error.strerror if isinstance(error, OSError) else repr(error)
        return f"{path} cannot be written: {why} (train_job_metrics_dir)"
    return ""


def text_of(job: str, state: str, attempt: int, views: Sequence[View]) -> str:
    """Return the contents of a job's file, in Prometheus' text format."""
    now, wall = time.monotonic(), time.time()
    up = {v: v.phase == records.RUNNING and not v.is_unresponsive(now) for v in views}
    of = {v: {"train_job": job, "rank": v.target.task, "host": v.target.host} for v in views}
    lines: list[str] = []

    def add(name: str, text: str, samples: Sequence[Sample]) -> None:
        if samples:
            lines.append(f"# HELP train_job_{name} {text}.\n# TYPE train_job_{name} gauge")
        for labels, value in samples:
            inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
            lines.append(f"train_job_{name}{{{inside}}} {_NOT_FINITE.get(str(value), value)}")

    of_job = {"train_job": job}
    states = [({**of_job, "state": name}, int(name == state)) for name in STATES]
    add("state", "1 for the current state of the job, 0 for other states", states)
    add("attempt", "Number of the current attempt", [(of_job, attempt)])
    add("ranks_wanted", "Ranks of the attempt", [(of_job, len(views))])
    add("ranks_up", "Running ranks whose hosts can be reached", [(of_job, sum(up.values()))])
    add(
        "last_update_timestamp_seconds",
        "Time at which this file was written",
        [(of_job, round(wall, 3))],
    )
    text = "1 if the rank is running and its host can be reached"
    add("rank_up", text, [(of[view], int(up[view])) for view in views])
    updates = [
        (of[view], round(wall - now + view.last_update_at, 3))
        for view in views
        if view.last_update_at
    ]
    add("rank_last_update_timestamp_seconds", "Time of the last answer of the rank's host", updates)
    for field, name, factor, text in _PROGRESS:
        reported: list[Sample] = []
        for view in views:
            value: Any = view.record.get(field)
            if value is not None:
                reported.append((of[view], value if isinstance(value, str) else value * factor))
        add(name, text, reported)
    found = [({**of[v], "name": name}, value) for v in views for name, value in v.metrics.items()]
    add("metric", "Last value of a metric reported by the script", found)
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
