"""How the state and progress of a rank read in one line."""

from __future__ import annotations

from typing import Any

import pytest

from train.gang import lines

KERAS: dict[str, Any] = {
    "phase": "training",
    "epoch": 2,
    "epochs": 3,
    "step": 7,
    "loss": 0.123456,
    "approximate": {"loss": 0.5, "accuracy": 0.25},
    "metrics": {"accuracy": 0.98765, "f1": "NaN"},
    "examples_per_s": 12345.6,
}


def test_a_rank_at_work() -> None:
    assert lines.line("running", "", KERAS, "a line of the log") == (
        "training  epoch 2/3  step 7  loss ~0.5  accuracy ~0.25  f1 NaN  12346 ex/s"
    )


def test_a_rank_without_records_shows_its_log() -> None:
    assert lines.line("running", None, {}, "Downloading data") == "running  Downloading data"


def test_a_rank_that_ended_shows_only_what_was_measured() -> None:
    ended = lines.line("failed", "was killed", KERAS, "a line of the log")
    assert ended == "failed  was killed  accuracy 0.9877  f1 NaN"


def test_a_loss_of_zero_is_shown() -> None:
    assert lines.line("running", "", {"loss": 0.0, "step": 0}, "") == "running  step 0  loss 0"


@pytest.mark.parametrize(
    ("record", "shown"),
    [
        ({"examples_per_s": 9.96}, "10 ex/s"),
        ({"examples_per_s": 123.4}, "123 ex/s"),
        ({"examples_per_s": 0.123, "steps_per_s": 50}, "0.12 ex/s"),
        ({"steps_per_s": 10}, "10 steps/s"),
        ({"examples_per_s": "NaN", "steps_per_s": 3.5}, "3.5 steps/s"),
        ({}, ""),
    ],
)
def test_a_speed_has_two_digits(record: dict[str, Any], shown: str) -> None:
    assert lines.rate(record) == shown


def test_doubts_come_before_notes() -> None:
    assert lines.remarks(["it may be wrong"], ["a", "b"]) == [
        *("doubt: it may be wrong", "note: a", "note: b")
    ]
