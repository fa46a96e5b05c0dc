"""The table of hosts."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from train.cli.dashboard import host_rows
from train.cli.dashboard.host_rows import ANSWERS, ASKED, LOST, HostRow, rows_of

USAGE = {
    **{"cores": 8, "load": 2.0, "memory_total": 16_384, "memory_free": 4_096},
    **{"disk_total": 102_400, "disk_free": 51_200, "gpu_error": ""},
    "gpus": [
        {"index": 0, "name": "A100", "busy": 40, "memory_used": 1024, "memory_total": 40_960},
        {"index": 1, "name": "A100", "busy": None, "memory_used": None, "memory_total": None},
    ],
}
HOLD = {"state": "started", "job": "night", "task": "worker-0", "user": "anna", "since": 1.0}


def row(age: float | None, error: str = "", examined: Any = None) -> HostRow:
    at = None if age is None else time.time() - age
    state: Any = {"answered_at": at, "error": error, "usage": USAGE if at else None}
    state["holds"] = [{**HOLD, "resources": ["port/12345", "gpu/GPU-1"]}]
    (found,) = rows_of({"at": time.time(), "hosts": {"a": state}, "jobs": []}, examined)
    return found


def test_a_host_that_answers_shows_its_use_and_who_holds_it() -> None:
    shown = row(3.0)
    assert shown.state == ANSWERS
    texts = {name: (meter.text, meter.percent) for name, meter in shown.meters}
    assert texts == {
        "load": ("2.0 on 8 cores", 25.0),
        "memory": ("12 of 16 GiB", 75.0),
        "disk": ("50 of 100 GiB", 50.0),
        "GPU 0": ("A100, 40 % busy, 1.0 of 40 GiB", 40.0),
        "GPU 1": ("A100", 0.0),
    }
    assert shown.holds == ["port 12345, GPU GPU-1 in use by worker-0 of night (anna)"]


def test_a_host_is_lost_after_an_error_or_without_an_answer() -> None:
    assert row(None).state == ASKED
    unknown = row(None, "the host cannot be reached")
    assert (unknown.state, unknown.why) == (LOST, "the host cannot be reached")
    refused = row(4.0, "the connection was refused")
    assert (refused.state, refused.why) == (LOST, "last answer 4 s ago: the connection was refused")
    late = row(13.0)
    assert (late.state, late.why, late.meters) == (LOST, "last answer 13 s ago", [])


def test_the_last_findings_of_the_doctor_are_shown(tmp_path: Path) -> None:
    assert host_rows.last_examined(tmp_path) is None
    folder = tmp_path / "doctor"
    folder.mkdir()
    for name, found in (("1", "slow disk"), ("2", "clock is off")):
        finding = {"severity": "warning", "what": "x", "where": "a", "found": found}
        (folder / f"{name}.json").write_text(json.dumps({"findings": [finding]}))
    (folder / "3.json").write_text("{")
    assert row(1.0, examined=host_rows.last_examined(tmp_path)).findings == [
        "warning: clock is off"
    ]
