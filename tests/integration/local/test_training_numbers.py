"""The same numbers for any number of workers: one global batch size, one seed, no BatchNorm."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.training_ranks import Rank, Start, run_gang
from tests.support.training_script import result_of

pytest_plugins = ("tests.support.training_ranks",)
pytestmark = pytest.mark.tensorflow

STEPS = 110
#: Of every step, the loss goes into the events; with dropout.
OPTIONS = (
    f"--epochs={STEPS // 11}",
    "--summary-every=1",
    "--evaluate-every=0",
    "--learning-rate=0.02",
    "--dropout=0.2",
    "--clip-norm=0.5",
    "--label-smoothing=0.1",
    "--class-weights=1,1,1,2,1,1,1,1,1,0.5",
    "--ema=0.9",
)
#: What the losses may differ by, relative: rounding grows from step to step.
CLOSE, LATER = 1e-5, 1e-4
EARLY = 60

LOSSES = """
import json, sys
from pathlib import Path
import tensorflow as tf

losses = {}
for path in sorted(Path(sys.argv[1]).glob("events*"), key=lambda path: path.stat().st_mtime_ns):
    for event in tf.compat.v1.train.summary_iterator(str(path)):
        for value in event.summary.value:
            if value.tag == "train/loss":
                losses[event.step] = float(tf.make_ndarray(value.tensor))
print("RESULT" + json.dumps([losses[step] for step in sorted(losses)]))
"""


def losses(python: str, ranks: list[Rank]) -> list[float]:
    """Return the loss of each step that the chief has written."""
    found: list[float] = result_of(python, LOSSES, str(ranks[0].folder / "tensorboard"))
    return found


def check(found: list[float], expected: list[float]) -> None:
    """Check the losses of all steps."""
    assert found[:EARLY] == pytest.approx(expected[:EARLY], rel=CLOSE)
    assert found == pytest.approx(expected, rel=LATER)


@pytest.fixture(scope="module")
def alone(start: Start, tf_python: str, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of one worker."""
    ranks = run_gang(start, tmp_path_factory.mktemp("alone"), *OPTIONS, workers=1)
    found = losses(tf_python, ranks)
    assert len(found) == STEPS
    assert found[-1] < found[0] / 2, "it has not learnt"
    return found


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_more_workers_have_the_same_losses(
    start: Start, tf_python: str, tmp_path: Path, alone: list[float], workers: int
) -> None:
    ranks = run_gang(start, tmp_path, *OPTIONS, workers=workers)
    assert len({rank.weights() for rank in ranks}) == 1
    check(losses(tf_python, ranks), alone)


def test_resumed_with_more_or_fewer_workers_goes_on_along_the_curve(
    start: Start, tf_python: str, tmp_path: Path, alone: list[float]
) -> None:
    half = [f"--epochs={STEPS // 22}", *OPTIONS[1:]]
    run_gang(start, tmp_path / "2", *half)
    for workers in (1, 3):
        shutil.copytree(tmp_path / "2", tmp_path / str(workers))
        ranks = run_gang(start, tmp_path / str(workers), *OPTIONS, workers=workers)
        assert f"resumed at step {STEPS // 2}" in ranks[0].said()
        check(losses(tf_python, ranks), alone)
