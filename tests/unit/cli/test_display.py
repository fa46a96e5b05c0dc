"""The events of a job as they are shown: JSON lines and plain lines, each rank rendered once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from train.cli.display import JsonDisplay, PlainDisplay
from train.cli.events import Event, Result

PROGRESS = {"phase": "training", "step": 219, "steps": 330, "epoch": 20, "epochs": 30}
RANK: dict[str, Any] = {
    **{"t": 1.0, "task": "worker-1", "host": "b", "phase": "running", "reason": "", "age": 0.1},
    **{"exit_code": None, "last_line": "Epoch 20/30", "progress": PROGRESS},
}
NEXT = {"attempt": 2, "delay": 1.0, "cause": "signal", "message": "worker-1 was killed"}
RESULT = Result("j", "completed", "all ranks completed", {"accuracy": 0.98611}, [], Path("/runs/j"))


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (
            {"progress": {**PROGRESS, "loss": 0.0063951, "metrics": {"accuracy": 0.9992}}},
            "worker-1 on b: training  epoch 20/30  step 219/330  loss 0.006395  accuracy 0.9992",
        ),
        (
            {"progress": {"phase": "training", "step": 3, "examples_per_s": 30404.2}},
            "worker-1 on b: training  step 3  30404 ex/s",
        ),
        ({"progress": {}, "phase": "starting"}, "worker-1 on b: starting  Epoch 20/30"),
        ({"phase": "failed", "reason": "was killed"}, "worker-1 on b: failed  was killed"),
        (
            {"phase": "completed", "progress": {**PROGRESS, "metrics": {"accuracy": "NaN"}}},
            "worker-1 on b: completed  accuracy NaN",
        ),
    ],
)
def test_a_rank_is_one_line(
    changed: dict[str, Any], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    display = PlainDisplay()
    for _ in range(3):  # once: it changes neither phase nor epoch
        display.event(Event("rank", "j", "worker-1", {**RANK, **changed}))
    assert capsys.readouterr().out == f"{line}\n"


def test_after_a_restart_all_ranks_are_shown_again(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay()
    for event in (
        Event("rank", "j", "worker-1", RANK),
        Event("notice", "j", "", {"text": "a host is unreachable"}),
        Event("restart", "j", "worker-1", NEXT),
        Event("rank", "j", "worker-1", RANK),
    ):
        display.event(event)
    display.result(RESULT)
    rank = "worker-1 on b: training  epoch 20/30  step 219/330"
    assert capsys.readouterr().out.splitlines() == [
        *(rank, "a host is unreachable"),
        *("job j failed: worker-1 was killed", "attempt 2 follows in 1 s", rank),
        *("job j completed: all ranks completed", "  accuracy: 0.9861"),
    ]


def test_events_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    display = JsonDisplay()
    display.event(Event("task", "j", "Follow all ranks"))
    display.event(Event("rank", "j", "worker-1", RANK))
    display.event(Event("restart", "j", "worker-1", NEXT))
    display.result(RESULT)
    task, rank, restart, result = map(json.loads, capsys.readouterr().out.splitlines())
    assert task == {"event": "task", "job": "j", "name": "Follow all ranks"}
    assert rank == {"event": "rank", "job": "j", **RANK}
    assert restart == {"event": "restart", "job": "j", "root_cause": "worker-1", **NEXT}
    assert result.pop("run_dir") == "/runs/j"
    assert set(result) == {"event", "job", "state", "message", "metrics", "ranks"}
