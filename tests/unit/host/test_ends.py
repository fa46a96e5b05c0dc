"""The reasons why a rank ended, and the check whether it still makes steps.

``data/ends/*.log`` are logs of scripts that were ended by TensorFlow, C++ or libraries that
download. ``too-large`` has the same error class as the three ``oom``, but for another reason, after
a warning about memory. ``lost-rank`` has lost another rank, after a line about a download.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import REPOSITORY
from train.host import ends, pace
from train.host.processes import read_text
from train.host.progress_records import Progress

NONE = (0, 0)
XLA_OOM = "a.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes."
NUMPY = "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 4 GiB"
NOT_REACHED = "this is not an error in the script: the host cannot reach %s"
NOT_FOUND = "Exception: URL fetch failure on https://a.org/b.npz: 404 -- Not Found"


@pytest.mark.parametrize(
    ("code", "log", "killed", "full", "cause", "reason"),
    [
        (0, "ValueError: told and caught", NONE, "", None, ""),
        (-9, "", NONE, "", ends.SIGNAL, "was killed by SIGKILL (signal 9)"),
        (-9, "", (1, 1), "", ends.MEMORY, "because its control group was out of memory; its peak"),
        (
            -9,
            "",
            (0, 2),
            "",
            ends.MEMORY,
            "because its host was out of memory; its peak memory use was 700",
        ),
        (-15, "", (1, 1), "", ends.SIGNAL, "was killed by SIGTERM (signal 15)"),
        (1, "x\nKeyError: 'a'\n", NONE, "", ends.EXIT, "exited with code 1: KeyError: 'a'"),
        (3, "", NONE, "", ends.EXIT, "exited with code 3"),
        (1, "OSError: [Errno 28] No space left on device: 'x'", NONE, "", ends.DISK, "Errno 28"),
        (1, "", NONE, "/data", ends.DISK, "exited with code 1; the disk that holds /data is full"),
        (
            1,
            "MemoryError: Unable to allocate 4 GiB",
            NONE,
            "",
            ends.MEMORY,
            "peak memory use was 700 MiB",
        ),
        (1, "MemoryError: std::bad_alloc", NONE, "", ends.MEMORY, "peak memory use was 700 MiB"),
        (
            1,
            NUMPY,
            NONE,
            "",
            ends.MEMORY,
            "Unable to allocate 4 GiB; its peak memory use was 700 MiB",
        ),
        (-6, "caught: std::bad_alloc", NONE, "", ends.SIGNAL, "was killed by SIGABRT (signal 6)"),
        (1, XLA_OOM, NONE, "", ends.MEMORY, "allocate 9 bytes.; its GPU was out of memory"),
        (1, NOT_FOUND, NONE, "", ends.EXIT, "exited with code 1: Exception: URL fetch failure on"),
        (1, "ConnectionRefusedError: [Errno 111] Connection refused", NONE, "", ends.EXIT, "111"),
        (-40, "", NONE, "", ends.SIGNAL, "was killed by signal 40"),
    ],
)
def test_causes(code: int, log: str, killed: Any, full: str, cause: Any, reason: str) -> None:
    found, text = ends.explain(code, log, killed, 700, full)
    assert found == cause
    assert reason in text


@pytest.mark.parametrize(
    ("name", "code", "cause", "reason"),
    [
        ("bad-alloc", -6, ends.MEMORY, "SIGABRT (signal 6) because memory allocation failed"),
        ("oom-gpu", 1, ends.MEMORY, "[Op:Mul]; its GPU was out of memory"),
        ("oom-graph", 1, ends.MEMORY, "Graph execution error; its GPU was out of memory"),
        ("oom-cpu", 1, ends.MEMORY, "[Op:Mul]; its peak memory use was 700 MiB"),
        ("too-large", 1, ends.EXIT, "ResourceExhaustedError: Received message larger"),
        ("keras", 1, ends.DOWNLOAD, "known; " + NOT_REACHED % "storage.googleapis.com"),
        ("urllib", 1, ends.DOWNLOAD, "known>; " + NOT_REACHED % "data.example.org"),
        ("requests", 1, ends.DOWNLOAD, NOT_REACHED % "huggingface.co"),
        ("gcs", 1, ends.DOWNLOAD, NOT_REACHED % "storage.googleapis.com"),
        ("lost-rank", 1, ends.EXIT, "failed to connect to all addresses"),
    ],
)
def test_causes_in_logs(name: str, code: int, cause: str, reason: str) -> None:
    log = (REPOSITORY / f"tests/data/ends/{name}.log").read_text()
    # A kill by the kernel for lack of memory explains only an end by SIGKILL.
    found, text = ends.explain(code, log, (1, 1), 700, "")
    assert found == cause
    assert reason in text


def test_kills_by_control_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, kills in (("a/b/memory.events", 2), ("memory/c/memory.oom_control", 5)):
        file = tmp_path / path
        file.parent.mkdir(parents=True)
        file.write_text(f"low 0\noom 3\noom_kill {kills}\n")
    files = {"/proc/self/cgroup": "4:memory:/c\n0::/a/b\n", "/proc/vmstat": "oom_kill 9\n"}
    monkeypatch.setattr(ends, "read_text", lambda path: files.get(path) or read_text(path))
    assert ends.memory_kills(str(tmp_path)) == (7, 9)
    assert ends.memory_kills(str(tmp_path / "none")) == (0, 9)


def record(step: int, phase: str = "training") -> Progress:
    epoch = 1 if step <= 50 else 2
    return {"phase": phase, "step": step, "steps": 100, "epoch": epoch, "epochs": 2}


def test_a_rank_that_makes_no_step_is_overdue() -> None:
    watched = pace.Pace(factor=10, least=5)
    assert watched.overdue(1000) == "", "no step was reported yet"
    for step in range(1, 11):
        watched.feed([record(step)], now=float(step))
    assert watched.overdue(19.0) == ""
    assert (
        watched.overdue(21.0)
        == "has not completed a step for 11 s after step 10; the limit is 10 s"
    )
    watched.feed([record(11)], now=21.5)
    assert watched.overdue(30.0) == ""


def test_a_phase_has_no_limit_before_it_has_been_seen_twice() -> None:
    watched = pace.Pace(factor=2, least=1)
    now = 0.0
    for step in (10, 20):
        watched.feed([record(step), record(step, "evaluating")], now)
        assert watched.overdue(now + 1000) == ""
        now += 30
    watched.feed([record(30), record(30, "evaluating")], now)
    assert watched.overdue(now + 59) == ""
    assert "the limit is 60 s" in watched.overdue(now + 61)


def of_epoch(epoch: int, batch: int, epochs: int = 5) -> Any:
    """Return the console's record of an epoch of 100 batches."""
    done = 100 * (epoch - 1) + batch
    place = {"batch": batch, "batches": 100, "source": "console"}
    return {"phase": "training", "step": done, "epoch": epoch, "epochs": epochs, **place}


def test_where_the_end_of_an_epoch_is_near_a_test_may_have_begun() -> None:
    watched = pace.Pace(factor=2, least=1)
    now = 0.0
    for epoch in (1, 2):
        # The last bar of an epoch is parsed together with the text after it.
        for batch in (1, 33, 66, 97):
            watched.feed([of_epoch(epoch, batch)], now)
            now += 1.0
        assert watched.overdue(now + 1000.0) == "", epoch
        now += 29.0
    watched.feed([of_epoch(3, 1)], now)
    assert "the limit is 2 s" in watched.overdue(now + 3)
    watched.feed([of_epoch(3, 70)], now + 1)
    # 30 s and 1 s, twice: the duration of the test is now known.
    assert watched.overdue(now + 61) == ""
    assert "the limit is 60 s" in watched.overdue(now + 62)


UNKNOWN = {"source": "console", "epoch": 1, "epochs": 3}
SECOND_FIT = [
    *(of_epoch(1, batch, epochs=1) for batch in (1, 50, 100)),
    *({**of_epoch(1, batch, epochs=3), "step": 100 + batch} for batch in (1, 50, 99)),
]


@pytest.mark.parametrize(
    ("factor", "least", "reported", "limit"),
    [
        (10, 5, [{"step": 1}, {"step": 2}], "the limit is 10 s"),
        (10, 60, [record(step) for step in range(1, 20)], "the limit is 60 s"),
        (0, 1, [record(1), record(2)], ""),
        (2, 1, [of_epoch(epoch, n) for epoch in range(1, 6) for n in (50, 100)], ""),
        (2, 1, SECOND_FIT, ""),
        (2, 1, [{**UNKNOWN, "step": step} for step in range(1, 10)], ""),
    ],
    ids=["steps alone", "least", "factor 0", "last epoch", "second fit", "unknown length"],
)
def test_limits(factor: float, least: float, reported: list[Any], limit: str) -> None:
    watched = pace.Pace(factor, least)
    for now, one in enumerate(reported):
        watched.feed([one], float(now))
    assert watched.overdue(len(reported) + 0.9 * least) == ""
    found = watched.overdue(1e6)
    assert limit in found
    assert bool(limit) == bool(found)


STACKS = """Fatal Python error: Aborted

Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

Current thread 0x00007f00 (most recent call first):
{frames}
"""
TENSORFLOW = '  File "/v/lib/python3.11/site-packages/tensorflow/execute.py", line 53 in quick\n'
OWN = '  File "/x/code/main.py", line 12 in load\n  File "/x/code/main.py", line 30 in <module>'


def test_where_a_rank_is_stuck() -> None:
    for frames, waits in ((OWN, False), (TENSORFLOW + OWN, True)):
        found = pace.stuck_in(STACKS.format(frames=frames))
        assert found == ("main.py, line 12 in load", waits)
    assert pace.stuck_in("Aborted\n") == ("", False)


@pytest.mark.parametrize(
    ("record", "seconds"),
    [
        ({"step": 5, "steps": 5}, 60.0),
        ({"step": 4, "steps": 5}, 0.0),
        ({"step": 5}, 0.0),
        ({"step": 5, "steps": 5, "epoch": 3, "epochs": 3}, 60.0),
        ({"step": 5, "steps": 5, "epoch": 1, "epochs": 3}, 0.0),  # steps of each epoch
        ({}, 0.0),
    ],
)
def test_how_long_a_rank_has_made_its_last_step(record: Any, seconds: float) -> None:
    watched = pace.Pace(factor=2, least=1)
    watched.feed([record], 40.0)
    assert watched.finished_for(100.0) == seconds
