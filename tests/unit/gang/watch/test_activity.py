"""Whether a task without records is at work."""

from __future__ import annotations

from typing import Any

import pytest

from train.gang.watch.activity import Activity


def test_a_line_that_repeats_with_other_numbers_is_no_work() -> None:
    activity = Activity()
    assert activity.at == 0.0
    activity.add("waits since 1 s\n", None, 10.0)
    activity.add("waits since 20 s\n\n  waits since 300 s", None, 20.0)
    assert activity.at == 10.0
    activity.add("evaluates ckpt-3\n", None, 30.0)
    activity.add("waits since 1 s\n", None, 40.0)
    assert activity.at == 40.0


def test_a_task_that_uses_its_processors_is_at_work() -> None:
    activity = Activity()
    for second, cpu_s in enumerate((5.0, 5.1, 5.2)):  # a tenth of a core
        activity.add("", {"t": float(second), "cpu_s": cpu_s}, 10.0 + second)
    assert activity.at == 0.0
    activity.add("", {"t": 3.0, "cpu_s": 5.5}, 13.0)
    assert activity.at == 13.0


@pytest.mark.parametrize(
    "load",
    [
        *(None, [], {}, {"t": 1.0}, {"t": "x", "cpu_s": 9.0}, {"t": 2.0, "cpu_s": [9.0]}),
        {"t": 1.0, "cpu_s": 900.0},  # the same time again
        {"t": 0.5, "cpu_s": 0.1},  # the host was started again
    ],
)
def test_a_load_that_cannot_be_is_ignored(load: Any) -> None:
    activity = Activity()
    activity.add("", {"t": 1.0, "cpu_s": 1.0}, 1.0)
    activity.add("", load, 2.0)
    assert activity.at == 0.0
