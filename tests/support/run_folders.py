"""Folders of jobs on the control node, created without running anything, and charts on pages."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

HOSTS = ("node-1", "node-2", "node-3")
BEGAN = 1795244560.0


def write_attempt(
    folder: Path,
    tasks: list[str],
    steps: range,
    result: dict[str, Any] | None,
    began: float = BEGAN,
) -> None:
    """Write the files of an attempt: progress, logs, load, and a result, if any."""
    for name in ("progress", "logs", "load"):
        (folder / name).mkdir(parents=True)
    for task in tasks:
        records: list[dict[str, Any]] = [{"t": began, "phase": "loading"}]
        for step in steps:
            records.append({
                "t": began + 1 + 0.1 * step, "phase": "training",
                "step": step, "loss": 1 / (1 + step),
                "metrics": {"accuracy": 1 - 1 / (1 + step)},
                "step_time": {"compute_ms": 4.0, "exchange_ms": 2.0, "input_ms": 0.1},
            })  # fmt: skip
        text = "".join(json.dumps(record) + "\n" for record in records)
        (folder / "progress" / f"{task}.jsonl").write_text(text)
        (folder / "logs" / f"{task}.log").write_text(f"10%\r20%\r\nlast line of {task}\n")
        loads = [
            {"t": began + at, "load": {
                "t": at, "cpu_s": 1.5 * at, "busy_s": 2.0 * at, "all_cores": 4,
                "gpus": [{"index": 1, "uuid": "GPU-1", "mhz": 900, "max_mhz": 1000, "busy": 80,
                          "reasons": 0}],
            }}
            for at in (0.0, 5.0, 10.0)
        ]  # fmt: skip
        lines = [*map(json.dumps, loads), '{"t": 1795']  # the disk was full
        (folder / "load" / f"{task}.jsonl").write_text("\n".join(lines))
    if result is not None:
        ranks = [
            {"task": task, "host": HOSTS[n % 3], "phase": "failed", "exit_code": 1, "cause": "exit",
             "reason": "", "weights_sha256": None}
            for n, task in enumerate(tasks)
        ]  # fmt: skip
        known: dict[str, Any] = {
            "root_cause": None,
            "metrics": {},
            "restart_reason": "",
            "ranks": ranks,
        }
        (folder / "result.json").write_text(json.dumps({**known, **result}))


def write_manifest(folder: Path, tasks: list[str], attempt: int = 1, **more: Any) -> None:
    """Write the manifest of a job with the plan of its last attempt."""
    manifest = {
        "job": folder.name, "created_at": BEGAN - 1, "attempt": attempt,
        "script": "/home/me/main.py", "arguments": ["--epochs", "5"],
        "code_sha256": "c0de", "git": {"commit": "abc123", "clean": False},
        "versions": {"tensorflow": ["2.21.0"]}, "keras": 2, "seed": 7, "hosts": {},
        "cluster": {"worker": ["192.0.2.1:12345"]},
        "ranks": [{"task": task, "host": HOSTS[n % 3]} for n, task in enumerate(tasks)],
        "attempts": [{"attempt": n + 1, "planned_at": BEGAN + 60 * n} for n in range(attempt)],
        **more,
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def charts_of(page: str) -> dict[str, dict[str, Any]]:
    """Return the charts on a page, by title."""
    found = re.search(r"^const charts = (.*);$", page, re.MULTILINE)
    assert found is not None
    return {chart["title"]: chart for chart in json.loads(found[1])}
