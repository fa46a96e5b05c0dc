"""The numbers of a training: of any number of workers, of the same in numpy, of Keras' own fit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.training_ranks import Rank, Start, run_gang
from tests.support.training_script import result_of, scalars

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


def losses(python: str, ranks: list[Rank]) -> list[float]:
    """Return the loss of each step that the chief has written."""
    [found] = scalars(python, ranks[0])
    return [loss for _, loss in sorted(found["train/loss"].items())]


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


# ---------------------------------------------------------------------------------- numpy, fit


COMMON = ("--model=linear", "--batch-size=120", "--summary-every=1", "--export=none")
#: 55 steps, of which the first 50 are checked.
FIRST = 50
SGD = (
    "--epochs=5",
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
ADAMW = ("--epochs=5", "--optimizer=adamw", "--learning-rate=0.02", "--weight-decay=0.1")

REFERENCE = """
import math
from sklearn.datasets import load_digits
from training import data, models, order

kind = sys.argv[1]
found = data.open_data("digits", None, download=False, image_size=0, seed=0, examples=0)
every = tf.range(found.train.size, dtype=tf.int64)
x, y = (np.asarray(part, np.float64) for part in found.train.fetch(every))
x, y = x.reshape(len(x), -1), y.astype(int)
test = tf.range(found.test.size, dtype=tf.int64)
x_test, y_test = (np.asarray(part) for part in found.test.fetch(test))
x_test = x_test.reshape(len(x_test), -1)

SIZE, STEPS, TOTAL = 120, 50, 55
network = models.build("linear", (8, 8, 1), 10, 0)
kernel, bias = (variable.numpy().astype(np.float64) for variable in network.variables)
weights = {"kernel": kernel, "bias": bias}
averages = {name: value.copy() for name, value in weights.items()}
first = {name: np.zeros_like(value) for name, value in weights.items()}
second = {name: np.zeros_like(value) for name, value in weights.items()}
factors = np.array([1, 1, 1, 2, 1, 1, 0.5, 1, 1, 1]) if kind == "sgd" else np.ones(10)
smoothing = 0.1 if kind == "sgd" else 0.0

losses = []
for step in range(TOTAL):
    zero = tf.constant(0, tf.int64)
    chosen = order.indices(0, len(x), SIZE, tf.constant(step, tf.int64), zero, SIZE).numpy()
    images, labels = x[chosen], y[chosen]
    logits = images @ weights["kernel"] + weights["bias"]
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    wanted = np.eye(10)[labels] * (1 - smoothing) + smoothing / 10
    each = -(wanted * log_p).sum(axis=1) * factors[labels]
    losses.append(each.mean())
    down = (np.exp(log_p) - wanted) * factors[labels][:, None] / SIZE
    gradients = {"kernel": images.T @ down, "bias": down.sum(axis=0)}
    if kind == "sgd":
        norm = math.sqrt(sum((g**2).sum() for g in gradients.values()))
        gradients = {name: g * min(1.0, 0.4 / norm) for name, g in gradients.items()}
        gradients["kernel"] = gradients["kernel"] + 0.01 * weights["kernel"]
        part = (step - 7) / (TOTAL - 7)
        rate = 0.5 * ((step + 1) / 7 if step < 7 else 0.5 * (1 + math.cos(math.pi * part)))
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

left = averages if kind == "sgd" else weights
logits = x_test @ left["kernel"] + left["bias"]
shifted = logits - logits.max(axis=1, keepdims=True)
log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
test_loss = float(-log_p[np.arange(len(y_test)), y_test.astype(int)].mean())

done([losses[:STEPS], test_loss])
"""


@pytest.mark.parametrize(("kind", "options"), [("sgd", SGD), ("adamw", ADAMW)])
def test_fifty_steps_have_the_losses_of_the_same_steps_in_numpy(
    start: Start, tf_python: str, tmp_path: Path, kind: str, options: tuple[str, ...]
) -> None:
    [whole] = run_gang(start, tmp_path / "whole", *COMMON, *options, workers=1)
    parts = run_gang(start, tmp_path / "parts", *COMMON, *options, "--accumulate=3")
    expected, test_loss = result_of(tf_python, REFERENCE, kind)
    assert expected[-1] < expected[0] / 1.5, "it has not learnt"
    for rank in (whole, parts[0]):
        assert losses(tf_python, [rank])[:FIRST] == pytest.approx(expected, rel=CLOSE)
        assert rank.records()[-1]["metrics"]["test_loss"] == pytest.approx(test_loss, rel=1e-4)


OWN = '''
import tensorflow as tf

class Added(tf.keras.layers.Layer):
    """Adds the mean square of its inputs to the loss."""

    def call(self, inputs):
        self.add_loss({factor} * tf.reduce_mean(tf.square(inputs)))
        return inputs

def build_model(shape, classes):
    l2 = tf.keras.regularizers.L2({factor})
    return tf.keras.Sequential([
        tf.keras.Input(shape),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(16, "relu", kernel_initializer=tf.keras.initializers.GlorotUniform(3),
                              kernel_regularizer=l2),
        Added(),
        tf.keras.layers.Dense(classes, kernel_initializer=tf.keras.initializers.GlorotUniform(4)),
    ])
'''

FIT = """
import importlib.util
from training import checkpoints, data, order

path, checkpoint = sys.argv[1:]
spec = importlib.util.spec_from_file_location("own", path)
own = importlib.util.module_from_spec(spec)
spec.loader.exec_module(own)
found = data.open_data("digits", None, download=False, image_size=0, seed=0, examples=0)
zero = tf.constant(0, tf.int64)
steps = range(2 * (found.train.size // 120))
def batch(step):
    step = tf.constant(step, tf.int64)
    return found.train.fetch(order.indices(0, found.train.size, 120, step, zero, 120))

examples = [batch(step) for step in steps]
dataset = tf.data.Dataset.from_generator(
    lambda: iter(examples),
    output_signature=(tf.TensorSpec([120, 8, 8, 1], tf.float32), tf.TensorSpec([120], tf.int64)),
)
model = own.build_model((8, 8, 1), 10)
model.compile(
    tf.keras.optimizers.SGD(0.1, momentum=0.9),
    tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
history = model.fit(dataset, verbose=0)
arrays = checkpoints.read(checkpoint).arrays
pairs = [(value, arrays[f"model.{n:04}"]) for n, value in enumerate(model.get_weights())]
difference = max(float(abs(a - b).max()) for a, b in pairs)
done([difference, history.history["loss"]])
"""


def test_losses_that_a_model_adds_count_as_in_fit(
    start: Start, tf_python: str, tmp_path: Path
) -> None:
    weights = {}
    for factor in (0.0, 0.05):
        own = tmp_path / f"own{factor}.py"
        own.write_text(OWN.format(factor=factor))
        options = [f"--model={own}", "--epochs=2", "--export=none"]
        [alone] = run_gang(start, tmp_path / f"alone{factor}", *options, workers=1)
        shared = run_gang(start, tmp_path / f"shared{factor}", *options, "--accumulate=2")
        weights[factor] = alone.weights()
        for rank in (alone, shared[0]):
            checkpoint = str(rank.folder / "checkpoints/ckpt-22.npz")
            difference, _ = result_of(tf_python, FIT, str(own), checkpoint)
            assert difference < 1e-5, (factor, rank.folder)
    assert weights[0.0] != weights[0.05]


def test_reported_loss_has_what_the_model_adds(
    start: Start, tf_python: str, tmp_path: Path
) -> None:
    own = tmp_path / "own.py"
    own.write_text(OWN.format(factor=0.05))
    [rank] = run_gang(start, tmp_path / "run", f"--model={own}", "--epochs=2", workers=1)
    checkpoint = str(rank.folder / "checkpoints/ckpt-22.npz")
    _, [mean] = result_of(tf_python, FIT, str(own), checkpoint)
    said = [line for line in rank.said().splitlines() if line.startswith("epoch ")]
    both = [float(line.split("loss ")[1].split(",")[0]) for line in said]
    assert sum(both) / 2 == pytest.approx(mean, abs=1e-4)
