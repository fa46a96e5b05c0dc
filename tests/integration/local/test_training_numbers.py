"""A training's numbers with any number of workers, compared with numpy and with Keras' fit."""

from __future__ import annotations

import math
import re
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.training_ranks import Rank, Start, run_gang, start_gang
from tests.support.training_script import call, modules, np, scalars, tf

checkpoints, models, order = modules("training.checkpoints", "training.models", "training.order")
settings, task = modules("training.settings", "training.task")

pytestmark = pytest.mark.tensorflow

STEPS = 44
#: With dropout. The loss of every step is written to the events.
OPTIONS = (
    f"--epochs={STEPS // 11}",
    "--summary-every=1",
    "--evaluate-every=0",
    "--export=none",
    "--learning-rate=0.05",
    "--dropout=0.2",
    "--clip-norm=0.5",
    "--label-smoothing=0.1",
    "--class-weights=1,1,1,2,1,1,1,1,1,0.5",
    "--ema=0.9",
)
#: The relative tolerance of the losses, because rounding errors grow from step to step.
CLOSE = 1e-5


def losses(python: str, rank: Rank) -> list[float]:
    """Return the loss of each step that the chief has written."""
    [found] = scalars(python, rank)
    return [loss for _, loss in sorted(found["train/loss"].items())]


def test_any_number_of_workers_has_the_same_losses(
    start: Start, tf_python: str, tmp_path: Path
) -> None:
    """One worker, two workers, and one or three that resume a run of two have equal losses."""
    [alone] = start_gang(start, tmp_path / "alone", *OPTIONS, workers=1)
    run_gang(start, tmp_path / "2", *OPTIONS, f"--epochs={STEPS // 22}")
    assert alone.end() == 0, alone.said()
    expected = losses(tf_python, alone)
    assert len(expected) == STEPS
    assert expected[-1] < expected[0] / 2, "it has not learnt"
    for workers in (1, 3):
        shutil.copytree(tmp_path / "2", tmp_path / str(workers))
        ranks = run_gang(start, tmp_path / str(workers), *OPTIONS, workers=workers)
        assert f"resumed at step {STEPS // 2}" in ranks[0].said()
        assert len({rank.weights() for rank in ranks}) == 1
        assert losses(tf_python, ranks[0]) == pytest.approx(expected, rel=CLOSE)


COMMON = (
    f"--epochs={STEPS // 11}",
    "--model=linear",
    "--batch-size=120",
    "--summary-every=1",
    "--export=none",
)
SGD = (
    "--learning-rate=0.5",
    "--momentum=0.8",
    "--schedule=cosine",
    "--warmup-steps=7",
    "--weight-decay=0.01",
    "--clip-norm=0.4",
    "--label-smoothing=0.1",
    "--class-weights=1,1,1,2,1,1,0.5,1,1,1",
    "--ema=0.9",
)
ADAMW = ("--optimizer=adamw", "--learning-rate=0.02", "--weight-decay=0.1")


def batch(split: Any, step: int) -> Any:
    """Return the global batch of a step."""
    zero = tf.constant(0, tf.int64)
    return split.fetch(order.indices(0, split.size, 120, tf.constant(step, tf.int64), zero, 120))


def flat(examples: Any) -> tuple[Any, Any]:
    features, labels = (np.asarray(part) for part in examples)
    return features.reshape(len(features), -1).astype(np.float64), labels.astype(int)


def log_softmax(weights: dict[str, Any], images: Any) -> Any:
    logits = images @ weights["kernel"] + weights["bias"]
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def reference(kind: str) -> tuple[list[float], float]:
    """Return the losses of all steps, and the test loss, computed in numpy."""
    is_sgd = kind == "sgd"
    found = task.open_data(settings.Settings())
    network = models.build("linear", (8, 8, 1), 10, 0)
    kernel, bias = (variable.numpy().astype(np.float64) for variable in network.variables)
    weights = {"kernel": kernel, "bias": bias}
    averages = {name: value.copy() for name, value in weights.items()}
    first = {name: np.zeros_like(value) for name, value in weights.items()}
    second = {name: np.zeros_like(value) for name, value in weights.items()}
    factors = np.array([1, 1, 1, 2, 1, 1, 0.5, 1, 1, 1]) if is_sgd else np.ones(10)
    smoothing = 0.1 if is_sgd else 0.0

    losses = []
    for step in range(STEPS):
        images, labels = flat(batch(found.train, step))
        log_p = log_softmax(weights, images)
        wanted = np.eye(10)[labels] * (1 - smoothing) + smoothing / 10
        each = -(wanted * log_p).sum(axis=1) * factors[labels]
        losses.append(float(each.mean()))
        down = (np.exp(log_p) - wanted) * factors[labels][:, None] / len(images)
        gradients = {"kernel": images.T @ down, "bias": down.sum(axis=0)}
        if is_sgd:
            norm = math.sqrt(sum((g**2).sum() for g in gradients.values()))
            gradients = {name: g * min(1.0, 0.4 / norm) for name, g in gradients.items()}
            gradients["kernel"] = gradients["kernel"] + 0.01 * weights["kernel"]
            part = (step - 7) / (STEPS - 7)
            cosine = 0.5 * (1 + math.cos(math.pi * part))
            rate = 0.5 * ((step + 1) / 7 if step < 7 else cosine)
            for name, gradient in gradients.items():
                first[name] = 0.8 * first[name] - rate * gradient
                weights[name] = weights[name] + first[name]
        else:
            weights["kernel"] = weights["kernel"] * (1 - 0.02 * 0.1)
            for name, gradient in gradients.items():
                first[name] = 0.9 * first[name] + 0.1 * gradient
                second[name] = 0.999 * second[name] + 0.001 * gradient**2
                scale = math.sqrt(1 - 0.999 ** (step + 1)) / (1 - 0.9 ** (step + 1))
                change = first[name] / (np.sqrt(second[name]) + 1e-7)
                weights[name] = weights[name] - 0.02 * scale * change
        for name, value in weights.items():
            averages[name] = 0.9 * averages[name] + 0.1 * value

    test = tf.range(found.test.size, dtype=tf.int64)
    images, labels = flat(found.test.fetch(test))
    log_p = log_softmax(averages if is_sgd else weights, images)
    return losses, float(-log_p[np.arange(len(labels)), labels].mean())


@pytest.mark.parametrize(("kind", "options"), [("sgd", SGD), ("adamw", ADAMW)])
def test_steps_have_the_losses_of_the_same_steps_in_numpy(
    start: Start, tf_python: str, tmp_path: Path, kind: str, options: tuple[str, ...]
) -> None:
    rank, _ = run_gang(start, tmp_path, *COMMON, *options, "--accumulate=3")
    expected, test_loss = call(tf_python, reference, kind)
    assert expected[-1] < expected[0] / 1.5, "it has not learnt"
    assert losses(tf_python, rank) == pytest.approx(expected, rel=CLOSE)
    assert rank.records()[-1]["metrics"]["test_loss"] == pytest.approx(test_loss, rel=1e-4)


OWN = '''
import tensorflow as tf

class Added(tf.keras.layers.Layer):
    """Adds the mean square of its inputs to the loss."""

    def call(self, inputs):
        self.add_loss(0.05 * tf.reduce_mean(tf.square(inputs)))
        return inputs

def build_model(shape, classes):
    l2 = tf.keras.regularizers.L2(0.05)
    return tf.keras.Sequential([
        tf.keras.Input(shape),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(16, "relu", kernel_initializer=tf.keras.initializers.GlorotUniform(3),
                              kernel_regularizer=l2),
        Added(),
        tf.keras.layers.Dense(classes, kernel_initializer=tf.keras.initializers.GlorotUniform(4)),
    ])
'''


def fit(path: Path, saved: Path) -> tuple[float, float]:
    """Train with Keras' own fit.

    Returns:
        by how much its weights differ from a checkpoint's at most, and the mean of the losses.
    """
    train = task.open_data(settings.Settings()).train
    examples = [batch(train, step) for step in range(22)]
    dataset = tf.data.Dataset.from_generator(
        lambda: iter(examples),
        output_signature=(
            tf.TensorSpec([120, 8, 8, 1], tf.float32),
            tf.TensorSpec([120], tf.int64),
        ),
    )
    model = runpy.run_path(str(path))["build_model"]((8, 8, 1), 10)
    model.compile(
        tf.keras.optimizers.SGD(0.1, momentum=0.9),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    [loss] = model.fit(dataset, verbose=0).history["loss"]
    arrays = checkpoints.read(saved).arrays
    differences = (
        abs(value - arrays[f"model.{number:04}"]).max()
        for number, value in enumerate(model.get_weights())
    )
    return float(max(differences)), loss


def test_losses_that_a_model_adds_count_as_in_fit_and_are_reported(
    start: Start, tf_python: str, tmp_path: Path
) -> None:
    own = tmp_path / "own.py"
    own.write_text(OWN)
    options = [f"--model={own}", "--epochs=2", "--export=none"]
    chief, _ = run_gang(start, tmp_path, *options, "--accumulate=2")
    difference, mean = call(tf_python, fit, own, chief.folder / "checkpoints/ckpt-22.npz")
    assert difference < 1e-5
    both = re.findall(r"^epoch \S+ loss ([\d.]+),", chief.said(), re.MULTILINE)
    assert sum(map(float, both)) / 2 == pytest.approx(mean, abs=1e-4)
