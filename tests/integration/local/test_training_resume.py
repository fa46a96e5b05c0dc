"""Runs that are killed and resumed end with the same bits as uninterrupted ones."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.support.training_ranks import (
    Rank,
    Start,
    kill,
    run_gang,
    saved_steps,
    start_gang,
    wait_until,
)
from tests.support.training_script import call, modules, scalars

[tensorboard] = modules("tensorboard.backend.event_processing.plugin_event_accumulator")

pytestmark = pytest.mark.tensorflow

#: With everything random (order, augmentation, dropout), and all state besides the weights.
OPTIONS = (
    "--epochs=15",
    "--checkpoint-every=25",
    "--steps-per-execution=5",
    "--evaluate-every=10",
    "--augment=crop-flip",
    "--dropout=0.3",
    "--optimizer=adamw",
    "--learning-rate=0.003",
    "--weight-decay=0.01",
    "--clip-norm=1",
    "--label-smoothing=0.1",
    "--ema=0.99",
    "--patience=100",
    "--export=none",
)
#: Number of kills at random points; set KILL_POINTS=20 for more.
POINTS = int(os.environ.get("KILL_POINTS", "1"))


@pytest.fixture(scope="module")
def undisturbed(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Rank:
    """Return the chief of a run that was never interrupted."""
    ranks = run_gang(start, tmp_path_factory.mktemp("undisturbed"), *OPTIONS)
    assert ranks[0].weights() == ranks[1].weights()
    return ranks[0]


@pytest.mark.parametrize("point", range(POINTS))
def test_killed_run_ends_with_the_same_bits(
    start: Start, tmp_path: Path, undisturbed: Rank, point: int
) -> None:
    draw = random.Random(point)
    ranks = start_gang(start, tmp_path, *OPTIONS)
    ranks[0].wait_for("training")
    victims = [[0], [1], [0, 1]][point % 3]
    folder = tmp_path / "0/checkpoints"
    if point % 3 == 2:
        # While a checkpoint is written, at some time in the run.
        after = time.monotonic() + draw.uniform(0, 0.35)
        while ranks[0].process.poll() is None:
            if time.monotonic() > after and any(folder.glob("unfinished-*")):
                break
    else:
        time.sleep(draw.uniform(0, 0.35))
    kill(ranks, victims)
    assert ranks[victims[0]].process.returncode == -signal.SIGKILL, "it ended before the kill"

    again = run_gang(start, tmp_path, *OPTIONS)
    assert [rank.weights() for rank in again] == [undisturbed.weights()] * 2


def test_sigterm_saves_the_same_step_everywhere_and_ends(
    start: Start, tf_python: str, tmp_path: Path, undisturbed: Rank
) -> None:
    ranks = start_gang(start, tmp_path, *OPTIONS, "--summary-every=1")
    ranks[1].wait_for("training")
    ranks[1].process.send_signal(signal.SIGTERM)
    assert [rank.end() for rank in ranks] == [128 + signal.SIGTERM] * 2
    told = [rank.said().splitlines()[-1] for rank in ranks]
    step = int(told[0].split()[-3])
    assert told == [
        f"worker-0: ends with another rank, asked to end; the checkpoint of step {step} is written",
        f"worker-1: asked to end; the checkpoint of step {step} is written",
    ]
    assert (tmp_path / f"0/checkpoints/ckpt-{step}.npz").is_file()
    assert not (tmp_path / "1/checkpoints").exists()
    # Events of earlier steps are kept.
    [tags] = scalars(tf_python, ranks[0])
    assert sorted(tags["train/loss"]) == list(range(1, step + 1))

    again = run_gang(start, tmp_path, *OPTIONS)
    assert f"worker-0: resumed at step {step}" in again[0].said()
    assert [rank.weights() for rank in again] == [undisturbed.weights()] * 2


def test_damaged_checkpoints_are_passed_over(
    start: Start, tmp_path: Path, undisturbed: Rank
) -> None:
    folder = tmp_path / "0/checkpoints"
    shutil.copytree(undisturbed.folder / "checkpoints", folder)
    oldest, middle, newest = (folder / f"ckpt-{step}.npz" for step in saved_steps(folder))
    os.truncate(newest, newest.stat().st_size // 2)
    content = bytearray(middle.read_bytes())
    content[len(content) // 2] ^= 1
    middle.write_bytes(content)
    (folder / "unfinished-1").write_bytes(b"half")

    again = run_gang(start, tmp_path, *OPTIONS)
    said = again[0].said()
    assert f"warning: ignoring {newest.relative_to(tmp_path / '0')}: " in said
    assert f"warning: ignoring {middle.relative_to(tmp_path / '0')}: " in said
    assert f"worker-0: resumed at step {oldest.stem[5:]}" in said
    assert not (folder / "unfinished-1").exists()
    assert [rank.weights() for rank in again] == [undisturbed.weights()] * 2


SLOW = """
import time
import tensorflow as tf

class Slow(tf.keras.layers.Layer):
    def call(self, inputs):
        def wait():
            time.sleep(1.2)
            return 0.0

        waited = tf.numpy_function(wait, [], tf.double)
        return inputs + tf.cast(tf.ensure_shape(waited, []), inputs.dtype)

def build_model(shape, classes):
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [tf.keras.Input(shape), layers.Flatten(), Slow(), layers.Dense(classes)]
    )
"""


@pytest.mark.soak
def test_sigterm_saves_however_slow_the_steps_are(start: Start, tmp_path: Path) -> None:
    # A call with ten steps would take 12 s, but only 8 s are left after the signal.
    (tmp_path / "slow.py").write_text(SLOW)
    options = [f"--model={tmp_path}/slow.py", "--export=none", "--evaluate-every=0"]
    ranks = start_gang(start, tmp_path, *options)
    wait_until(ranks[1], lambda: any(r.get("step", 0) >= 5 for r in ranks[1].records()))
    ranks[1].process.send_signal(signal.SIGTERM)
    assert [rank.end() for rank in ranks] == [128 + signal.SIGTERM] * 2
    [checkpoint] = (tmp_path / "0/checkpoints").iterdir()
    assert f"the checkpoint of step {checkpoint.stem[5:]} is written" in ranks[0].said()


def steps_shown(folder: Path) -> list[int]:
    """Return the steps whose loss TensorBoard shows."""
    seen = tensorboard.EventAccumulator(str(folder), size_guidance={"tensors": 0})
    seen.Reload()
    return [event.step for event in seen.Tensors("train/loss")]


@pytest.mark.soak
def test_tensorboard_shows_each_step_once_after_a_resume_from_before(
    start: Start, tf_python: str, tmp_path: Path
) -> None:
    options = ["--summary-every=1", "--checkpoint-every=20", "--export=none"]
    [rank] = run_gang(start, tmp_path, *options, "--epochs=4", workers=1)
    events = rank.folder / "tensorboard"
    assert call(tf_python, steps_shown, events) == list(range(1, 45))
    # A kill may leave checkpoints that are older than the events, so the next run repeats steps.
    for step in (40, 44):
        (rank.folder / f"checkpoints/ckpt-{step}.npz").unlink()
    [again] = run_gang(start, tmp_path, *options, "--epochs=5", workers=1)
    assert "resumed at step 20" in again.said()
    assert call(tf_python, steps_shown, events) == list(range(1, 56))
