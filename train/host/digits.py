"""The task that worker.py learns: scikit-learn's handwritten digits, and a small network.

The data are 1797 images of 8 x 8 pixels that come with scikit-learn: nothing is downloaded. Every
fifth one is kept for the test, whatever the seed. To train on something else, replace this file.

TensorFlow is imported by the functions that need it, so that options can be checked without it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TEST_EVERY = 5
TRAIN_EXAMPLES = 1437
TEST_EXAMPLES = 360
CLASSES = 10
#: Both generations of Keras draw the same from seeds of 31 bits.
MAX_SEED = 1_000_000_000


@dataclass(frozen=True)
class Examples:
    """Images, float32 of shape [n, 8, 8, 1] between 0 and 1, and their digits, int64 of [n]."""

    images: Any
    labels: Any


def load() -> tuple[Examples, Examples]:
    """Return the examples to train on and those to test on.

    Reads the file behind ``sklearn.datasets.load_digits`` itself: importing scikit-learn would
    delay the first step by half a second.

    Raises:
        FileNotFoundError: scikit-learn is not installed.
    """
    import numpy as np

    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise FileNotFoundError("the digits come with scikit-learn, which is not installed")
    path = Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    table = np.loadtxt(path, delimiter=",", dtype=np.float32)
    images = (table[:, :-1] / 16).reshape(-1, 8, 8, 1)
    labels = table[:, -1].astype(np.int64)
    test = np.arange(len(table)) % TEST_EVERY == 0
    return Examples(images[~test], labels[~test]), Examples(images[test], labels[test])


def steps_per_epoch(batch_size: int) -> int:
    """Return the number of full global batches in an epoch.

    The rest, fewer than ``batch_size`` examples, is left out; which ones differs by epoch.
    """
    return TRAIN_EXAMPLES // batch_size


def batch_indices(
    seed: int,
    batch_size: int,
    replicas: int = 1,
    own: range = range(1),
) -> Any:
    """Return an endless tf.data.Dataset of the indices of the examples to train on.

    The global batch of a step is a function of ``seed`` and the step alone: each epoch goes
    through a permutation of its own. Replica ``r`` takes the ``r``-th equal share of it. So any
    number of replicas sees the same global batches.

    Args:
        seed: 0 to MAX_SEED.
        batch_size: the global batch size, a multiple of ``replicas``.
        replicas: number of replicas in the gang.
        own: those that this pipeline feeds. They take elements in turn.

    Returns:
        Elements int64 of shape [batch_size / replicas]: ``len(own)`` of them for each step.
    """
    import tensorflow as tf

    share = batch_size // replicas
    per_epoch = steps_per_epoch(batch_size)

    def indices(element: Any) -> Any:
        step, replica = element // len(own), own.start + element % len(own)
        epoch = step // per_epoch
        first = (step % per_epoch) * batch_size + replica * share
        return tf.random.experimental.index_shuffle(
            first + tf.range(share, dtype=tf.int64),
            tf.stack([tf.constant(seed, tf.int64), epoch]),
            tf.constant(TRAIN_EXAMPLES - 1, tf.int64),
        )

    # Endless on purpose: of a finite dataset the ranks would ask one another at every step
    # whether it has ended.
    return tf.data.Dataset.counter().map(indices)


def distribute(strategy: Any, examples: Examples, seed: int, batch_size: int) -> Any:
    """Return the endless distributed dataset of (images, labels), one share for each replica.

    The ranks' shares are cut here, by the numbers of their replicas: TensorFlow does not shard.
    """
    import tensorflow as tf

    def pipeline(context: Any) -> Any:
        local = context.num_replicas_in_sync // context.num_input_pipelines
        first = context.input_pipeline_id * local
        images, labels = tf.constant(examples.images), tf.constant(examples.labels)
        order = batch_indices(
            seed, batch_size, context.num_replicas_in_sync, range(first, first + local)
        )
        batches = order.map(lambda chosen: (tf.gather(images, chosen), tf.gather(labels, chosen)))
        return batches.prefetch(2 * local)

    return strategy.distribute_datasets_from_function(pipeline)


def build_model(seed: int) -> Any:
    """Return the network: a Keras model from images to logits [n, 10], its weights drawn by seed.

    It has neither BatchNorm, whose statistics would depend on the number of replicas, nor
    Dropout, whose random state no checkpoint holds.
    """
    import tensorflow as tf

    layers = tf.keras.layers

    def drawn(number: int) -> Any:
        # A seed for each layer: the same weights in every rank and with both generations of
        # Keras, whatever was drawn before.
        return tf.keras.initializers.GlorotUniform(seed=seed + number)

    return tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu", kernel_initializer=drawn(0)),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu", kernel_initializer=drawn(1)),
            layers.Flatten(),
            layers.Dense(CLASSES, kernel_initializer=drawn(2)),
        ]
    )


def make_test(model: Any, examples: Examples) -> Callable[[], dict[str, float]]:
    """Return a function that gives the model's ``test_accuracy`` and ``test_loss`` as it is now.

    Every rank tests on all examples: for so few that takes less time than to agree on shares,
    and the numbers are the same everywhere.
    """
    import tensorflow as tf

    images, labels = tf.constant(examples.images), tf.constant(examples.labels)

    def test() -> Any:
        logits = model(images, training=False)
        right = tf.equal(tf.argmax(logits, axis=-1), labels)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        return tf.reduce_mean(tf.cast(right, tf.float32)), tf.reduce_mean(losses)

    compiled = tf.function(test)

    def metrics() -> dict[str, float]:
        accuracy, loss = compiled()
        return {"test_accuracy": float(accuracy), "test_loss": float(loss)}

    return metrics
