"""The display of a job's events: JSON lines, plain lines, and the table on a terminal."""

from __future__ import annotations

import io
import json
import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from train.cli.display import JsonDisplay, LiveDisplay, PlainDisplay
from train.cli.job import Event, Result

PROGRESS = {"phase": "training", "step": 219, "steps": 330, "epoch": 20, "epochs": 30}
RANK: dict[str, Any] = {
    **{"t": 1.0, "task": "worker-1", "host": "b", "phase": "running", "reason": "", "age": 0.1},
    **{"exit_code": None, "last_line": "Epoch 20/30", "progress": PROGRESS},
}
ABOUT = {"approximate": {"loss": 0.6, "a": 0.4}}
NEXT = {"attempt": 2, "delay": 1.0, "cause": "signal", "message": "worker-1 was killed"}
RESULT = Result("j", "completed", "all ranks completed", {"accuracy": 0.98611}, [], Path("/runs/j"))


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (
            {"progress": {**PROGRESS, "loss": 0.0063951, "metrics": {"accuracy": 0.9992}}},
            "training  epoch 20/30  step 219/330  loss 0.006395  accuracy 0.9992",
        ),
        ({"progress": {"step": 3, "examples_per_s": 30404.2}}, "running  step 3  30404 ex/s"),
        (
            {"progress": {"step": 3, "loss": 0.7, "metrics": {"b": 0.1, "a": 0.5}, **ABOUT}},
            "running  step 3  loss ~0.6  b 0.1  a ~0.4",
        ),
        (
            {"progress": {"loss": 0.7, "metrics": {"a": 0.5}, **ABOUT}, "phase": "completed"},
            "completed  a 0.5",
        ),
        ({"progress": {}, "phase": "starting"}, "starting  Epoch 20/30"),
        ({"phase": "failed", "reason": "was killed"}, "failed  was killed"),
        (
            {"phase": "completed", "progress": {"metrics": {"accuracy": "NaN"}}},
            "completed  accuracy NaN",
        ),
    ],
)
def test_rank_lines(changed: dict[str, Any], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay()
    for _ in range(3):  # shown once, because neither phase nor epoch changes
        display.event(Event("rank", "j", "worker-1", {**RANK, **changed}))
    assert capsys.readouterr().out == f"worker-1 on b: {line}\n"


def test_after_a_restart_all_ranks_are_shown_again(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay()
    display.event(Event("rank", "j", "worker-1", RANK))
    display.event(Event("notice", "j", "", {"text": "a host is unreachable"}))
    display.event(Event("restart", "j", "worker-1", {"root_cause": "worker-1", **NEXT}))
    display.event(Event("rank", "j", "worker-1", RANK))
    display.result(replace(RESULT, attempts=2))
    rank = "worker-1 on b: training  epoch 20/30  step 219/330\n"
    assert capsys.readouterr().out == (
        f"{rank}a host is unreachable\nattempt 1 ended: worker-1 was killed\nattempt 2 "
        f"starts in 1 s\n{rank}job j completed after 2 attempts: all ranks completed\n  "
        "accuracy: 0.9861\n"
    )


def test_the_start_is_a_line_for_each_phase(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay()
    tasks = {
        "Require known tags and ranks": "checking the hosts",
        "Check the host": "checking the hosts",
        "Stage the ranks' folders": "staging code for 3 ranks",
        "Start the ranks' supervisors": "starting 3 ranks",
        "Follow all ranks": "starting 3 ranks",
    }
    for name, phase in tasks.items():
        display.event(Event("task", "j", name, phase=phase))
    shown = capsys.readouterr().out.splitlines()
    assert shown == [
        "checking the hosts ...",
        "staging code for 3 ranks ...",
        "starting 3 ranks ...",
    ]


def test_events_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    display = JsonDisplay()
    display.event(Event("task", "j", "Follow all ranks"))
    display.event(Event("rank", "j", "worker-1", RANK))
    display.event(Event("restart", "j", "worker-1", {"root_cause": "worker-1", **NEXT}))
    display.result(RESULT)
    task, rank, restart, result = map(json.loads, capsys.readouterr().out.splitlines())
    assert task == {"event": "task", "job": "j", "name": "Follow all ranks"}
    assert rank == {"event": "rank", "job": "j", **RANK}
    assert restart == {"event": "restart", "job": "j", "root_cause": "worker-1", **NEXT}
    assert result.pop("run_dir") == "/runs/j"
    names = {"event", "job", "state", "message", "metrics", "ranks", "doubts", "notes"}
    assert set(result) == names


def test_doubts_follow_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    doubt, note = "worker-1 ended after step 3 of 10", "2 files stay on node-2"
    PlainDisplay().result(replace(RESULT, doubts=[doubt], notes=[note]))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "job j completed: all ranks completed"
    assert lines[-2:] == [f"doubt: {doubt}", f"note: {note}"]


HEIGHT = 24
STEPS = 3300


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Replace the clock by one that a test sets."""
    found = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(time, "monotonic", lambda: found.now)
    return found


def show(display: PlainDisplay, ranks: int, step: int, failed: str = "", slow: str = "") -> None:
    for index in range(ranks):
        task = f"worker-{index}"
        progress = {
            **{"phase": "training", "step": step // 2 if task == slow else step, "steps": STEPS},
            **{"epoch": 2, "epochs": 30, "loss": 0.0063951, "examples_per_s": 30404.2},
            "metrics": {"accuracy": 0.9992, "test_accuracy": 0.98061, "test_loss": 0.04735},
        }
        seen = {**RANK, "t": float(step), "task": task, "host": f"gpu-{index}.lab.example.org"}
        seen["progress"] = progress
        if task == failed:
            seen |= {"phase": "failed", "reason": "was killed by signal 9\nof another user"}
        elif failed and index == 0:  # a failed rank's reason matters more
            seen |= {"phase": "stopped", "reason": f"was stopped because {failed} failed"}
        display.event(Event("rank", "night-1", task, seen))


def drawn(display: LiveDisplay, width: int, height: int = HEIGHT) -> list[str]:
    file = io.StringIO()
    console = Console(record=True, force_terminal=True, file=file, width=width, height=height)
    display.pause()  # it owns standard output while it draws
    console.print(display)
    return console.export_text().splitlines()


@pytest.fixture
def display(tmp_path: Path, clock: SimpleNamespace) -> LiveDisplay:
    return LiveDisplay(tmp_path, Console(file=io.StringIO()))


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("ranks", [2, 8, 40])
def test_the_table_fits_the_terminal(
    width: int, ranks: int, display: LiveDisplay, clock: SimpleNamespace, tmp_path: Path
) -> None:
    (tmp_path / "manifest.json").write_text('{"attempt": 2}')
    failed, slow = f"worker-{ranks - 1}", f"worker-{ranks - 2}"
    for step in (100, 200, 300):
        show(display, ranks, step, failed if step == 300 else "", slow)
        clock.now += 10.0
    lines = drawn(display, width)
    assert len(lines) < HEIGHT
    assert max(map(len, lines)) <= width
    assert lines[0] == "job night-1  attempt 2  0:00:30"
    rows = [line for line in lines if line.startswith("worker-") and "gpu-" in line]
    named = [row.split()[0] for row in rows]
    if ranks == 40:
        assert named[:3] == [failed, slow, "worker-1"]
        counts = "40 ranks: 1 failed, 38 training, 1 stopped  step 300/3300  "
        assert lines[1].startswith(f"{counts}slowest {slow}")
        assert lines[-1] == f"and {ranks - len(rows)} more ranks"
        assert len(lines) == HEIGHT - (2 if width == 200 else 1)
    else:
        assert named == [f"worker-{index}" for index in range(ranks)]
    row = rows[named.index(failed)]
    assert re.search(r"gpu-\d+[. ].*failed .*300/3300 .*0\.006395 .*30404 ex/s", row)
    assert sum("was killed by signal 9 of another user" in line for line in lines) == 1
    assert ("lab.example.org" in row) == (width == 200)


def test_a_table_of_ranks_that_start_shows_what_they_print(display: LiveDisplay) -> None:
    display.event(Event("rank", "j", "worker-1", {**RANK, "phase": "starting", "progress": {}}))
    head, names, row = drawn(display, 80)
    assert head == "job j  0:00:00"
    assert names.split() == ["rank", "host", "phase", "message", "update"]
    assert row.split() == ["worker-1", "b", "starting", "Epoch", "20/30", "0", "s"]


def test_log_lines_are_not_under_metrics(display: LiveDisplay) -> None:
    progress = {**PROGRESS, "loss": 0.7, "metrics": {"a": 0.5, "val_a": 0.3}, **ABOUT}
    running = {**RANK, "task": "worker-0", "progress": progress}
    display.event(Event("rank", "j", "worker-0", running))
    display.event(Event("rank", "j", "worker-1", {**RANK, "phase": "starting", "progress": {}}))
    _, names, first, second = drawn(display, 120)
    assert names.split()[-4:] == ["loss", "metrics", "message", "update"]
    assert first[names.index("loss") :].split() == ["~0.6", "a", "~0.4", "val_a", "0.3", "0", "s"]
    assert second[names.index("metrics") : names.index("message")].strip() == ""
    assert second[names.index("message") :].startswith("Epoch 20/30")
    display.event(Event("rank", "j", "worker-0", {**running, "phase": "stopped"}))
    _, names, first, _ = drawn(display, 120)
    assert first[names.index("loss") :].split() == ["0.7", "a", "0.5", "val_a", "0.3"]


def test_a_rank_that_keeps_others_waiting_comes_first(display: LiveDisplay) -> None:
    show(display, 40, 100)
    for cause, first in (("input", "worker-17"), ("none", "worker-0")):
        about = {"task": "worker-17", "cause": cause, "text": "worker-17 is slow"}
        display.event(Event("straggler", "night-1", "worker-17", about))
        assert drawn(display, 80)[3].split()[0] == first
    tiny = drawn(display, 30, 6)
    assert len(tiny) <= 5
    assert max(map(len, tiny)) <= 30


def test_time_left_by_recent_steps(display: LiveDisplay, clock: SimpleNamespace) -> None:
    def left_after(step: int, seconds: float) -> str:
        clock.now += seconds
        show(display, 2, step)
        return drawn(display, 80)[0].partition(":")[2].partition("  ")[2]

    assert left_after(100, 0) == ""
    assert left_after(200, 1000) == "8:36:40 left"  # 10 s per step at the beginning
    for step in range(300, 700, 100):
        left = left_after(step, 100)
    assert left == "0:45:00 left"  # 1 s per step
    display.event(Event("restart", "night-1", "worker-1", NEXT))
    assert left_after(500, 5) == ""
    assert left_after(600, 200) == "1:30:00 left"
    assert left_after(STEPS, 10) == ""


@pytest.mark.parametrize("phase", ["failed", "stopped"])
def test_no_time_is_left_once_a_rank_that_is_needed_has_ended(
    display: LiveDisplay, clock: SimpleNamespace, phase: str
) -> None:
    for step in (100, 200):
        clock.now += 100
        show(display, 2, step)
    assert " left" in drawn(display, 80)[0]
    ended = {**RANK, "task": "worker-0", "phase": phase, "reason": "was stopped by anna"}
    display.event(Event("rank", "night-1", "worker-0", ended))
    assert " left" not in drawn(display, 80)[0]


def test_with_parameter_servers_one_worker_of_two_may_be_lost(
    display: LiveDisplay, clock: SimpleNamespace
) -> None:
    display.event(Event("rank", "j", "ps-0", {**RANK, "task": "ps-0", "progress": {}}))
    for step in (100, 200):
        clock.now += 100
        show(display, 2, step)
    for task, left in (("worker-0", True), ("worker-1", False)):
        display.event(Event("rank", "j", task, {**RANK, "task": task, "phase": "failed"}))
        assert (" left" in drawn(display, 80)[0]) is left


def test_the_clock_counts_from_the_start_of_the_job(tmp_path: Path, clock: SimpleNamespace) -> None:
    manifest = {"created_at": time.time() - 7200, "attempt": 2}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    display = LiveDisplay(tmp_path, Console(file=io.StringIO()))
    assert "0:00:00" in drawn(display, 80)[0]
    show(display, 2, 100)
    assert "attempt 2  2:00:0" in drawn(display, 80)[0]


def test_many_ranks_as_few_lines(
    clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    display = PlainDisplay()
    for step in range(1, 61):
        show(display, 40, 2 * step, "worker-7" if step == 60 else "", "worker-3")
        clock.now += 1.0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 8 + 6 + 1  # the first ranks, a minute, the failed rank
    assert any(re.match("worker-7 on .* failed  was killed", line) for line in lines)
    said = "40 ranks: 40 training  step 102/3300  slowest worker-3 at step 50  0:26:39 left"
    assert said in lines
