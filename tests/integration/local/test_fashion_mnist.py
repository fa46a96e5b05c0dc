"""A real data set, of Debian's package dataset-fashion-mnist, where that is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.training_ranks import Start, run_gang

pytest_plugins = ("tests.support.training_ranks",)
pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(
        not Path("/usr/share/datasets/fashion-mnist").is_dir(),
        reason="Debian's package dataset-fashion-mnist is not installed",
    ),
]


def test_two_workers_reach_nine_of_ten(start: Start, tmp_path: Path) -> None:
    options = ("--data=fashion-mnist", "--epochs=6", "--learning-rate=0.05", "--schedule=cosine")
    ranks = run_gang(start, tmp_path, *options, "--steps-per-execution", "25")
    assert ranks[0].weights() == ranks[1].weights()
    assert ranks[0].records()[-1]["metrics"]["test_accuracy"] >= 0.90
