"""Whether a rank still makes steps, and where it is stuck."""

from __future__ import annotations

from typing import Any

import pytest

from train.host import pace
from train.host.console import ConsoleParser
from train.host.progress_records import Progress


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


def test_the_time_between_two_steps_must_be_known() -> None:
    """A script may report only every thousandth step, or its first one before it compiles."""
    watched = pace.Pace(factor=20, least=180)
    watched.feed([{"phase": "training", "step": 0}], 0.0)
    assert watched.overdue(10_000) == ""
    watched.feed([{"step": 500}], 300.0)
    assert watched.overdue(300.0 + 20 * 300) == ""
    assert "the limit is 6000 s" in watched.overdue(300.0 + 20 * 300 + 1)


def test_time_in_which_steps_could_not_be_seen_does_not_count() -> None:
    watched = pace.Pace(factor=10, least=5)
    watched.feed([record(99)], 1.0)
    watched.feed([record(100)], 2.0)
    watched.postpone(500.0)
    assert watched.overdue(502.0) == ""
    assert watched.finished_for(503.0) == 1.0


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


def test_a_missing_field_has_its_earlier_value() -> None:
    """A script may write the number of steps, or a phase, only once."""
    watched = pace.Pace(factor=2, least=1)
    watched.feed([{"phase": "training", "steps": 40, "epochs": 2}], 0.0)
    for step in range(1, 41):
        watched.feed([{"step": step, "epoch": 1 + step // 21}], float(step))
    assert watched.finished_for(100.0) == 60.0
    assert watched.overdue(100.0) == ""
    watched = pace.Pace(factor=2, least=1)
    watched.feed([{"phase": "training", "step": 1, "steps": 40}], 1.0)
    for step in range(2, 41):
        assert watched.finished_for(step + 0.5) == 0.0
        watched.feed([{"step": step}], float(step))
    assert watched.finished_for(100.0) == 60.0
    assert watched.overdue(100.0) == ""
    watched = pace.Pace(factor=2, least=1)
    watched.feed([record(step) for step in range(1, 10)], 9.0)
    watched.feed([{"phase": "evaluating"}, {"loss": 1.0}], 10.0)
    assert watched.overdue(1000.0) == ""
    watched.feed([{"phase": "training", "step": 10}], 20.0)
    assert watched.overdue(1000.0)


def test_an_earlier_epoch_or_batch_does_not_end_the_limit() -> None:
    singles: list[Any] = [{"epoch": 1}, {"phase": "evaluating", "batch": 4, "batches": 4}]
    for single in singles:
        watched = pace.Pace(factor=10, least=5)
        for step in range(1, 20):
            written: Any = {"phase": "training", "step": step}
            watched.feed([written], float(step))
            if step == 9:
                watched.feed([written | single], 9.5)
        assert watched.overdue(1000.0)


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


def of_call(step: int, steps: int, phase: str = "training", **fields: Any) -> Any:
    """Return a record of Keras at the end of the last of three epochs."""
    place = {"step": step, "steps": steps, "epoch": 3, "epochs": 3, "batch": 9, "batches": 9}
    return {"source": "console", "phase": phase, **place, **fields}


@pytest.mark.parametrize(
    ("reported", "seconds"),
    [
        ([of_call(27, 27)], 60.0),
        ([of_call(18, 27, epoch=2), of_call(27, 27), of_call(27, 27, loss=0.5)], 60.0),
        # It evaluates or predicts, or has done so.
        ([of_call(27, 27), of_call(27, 27, "evaluating", batch=3)], 0.0),
        ([of_call(27, 27), of_call(27, 27, "predicting", batch=3)], 0.0),
        ([of_call(27, 27), of_call(27, 27, "evaluating")], 60.0),
        ([{"step": 5, "steps": 5}, {"phase": "evaluating"}], 0.0),
        ([{"step": 5, "steps": 5}, {"phase": "evaluating"}, {"phase": "done"}], 60.0),
        ([{"step": 5, "steps": 5}, {"phase": "saving"}], 60.0),
        # It has trained again, or may do so.
        ([of_call(27, 27), of_call(27, 27, epoch=1)], 0.0),
        ([of_call(27, 27), of_call(36, 54, epoch=1), of_call(54, 54)], 0.0),
        ([of_call(27, 27), of_call(9, 27, epoch=1), of_call(27, 27)], 0.0),
        ([of_call(9, 9, epoch=1, epochs=1)], 0.0),
        ([of_call(9, 9, epoch=1, epochs=1), of_call(9, 9, "evaluating", epoch=1, epochs=1)], 0.0),
        # The script knows its own steps.
        ([{"step": 5, "steps": 5}, {"step": 6, "steps": 10}, {"step": 10}], 60.0),
        ([{"step": 5, "steps": 5, "epoch": 1, "epochs": 1}], 60.0),
    ],
)
def test_a_rank_that_may_continue_has_not_finished(reported: list[Any], seconds: float) -> None:
    watched = pace.Pace(factor=2, least=1)
    for record in reported:
        watched.feed([record], 40.0)
    assert watched.finished_for(100.0) == seconds


def test_a_loop_over_fit_has_not_finished() -> None:
    """With ``verbose=2``, it prints nothing until the end of each call."""
    for ends in ("loss: 0.5000", "loss: 0.5000 - val_loss: 0.4000"):
        parser, watched = ConsoleParser(), pace.Pace(factor=2, least=1)
        for now in range(5):
            watched.feed(parser.feed(f"9/9 - 60s - 7s/step - {ends}\n\n".encode()), 60.0 * now)
            assert watched.finished_for(60.0 * now + 59) == 0.0


def test_where_a_script_crashed_is_the_thread_that_got_the_signal() -> None:
    assert pace.crashed_in(STACKS.format(frames=TENSORFLOW + OWN)) == "main.py, line 12 in load"
    other = 'Thread 0x2 (most recent call first):\n  File "/x/code/other.py", line 1 in f\n'
    assert pace.crashed_in(f"{STACKS.format(frames=OWN)}\n{other}") == "main.py, line 12 in load"
    assert pace.crashed_in("Epoch 1/2\nKeyError: 'a'\n") == ""
