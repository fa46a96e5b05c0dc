"""The order of the examples is a shuffle: as random as numpy's, for any seed and epoch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.training_script import result_of

pytestmark = pytest.mark.tensorflow

ORDER = """
import json
import numpy as np
import tensorflow as tf
from training import order

def epoch_of(size, seed, epoch):
    # The whole epoch is one batch.
    zero = tf.constant(0, tf.int64)
    whole = tf.function(lambda step: order.indices(seed, size, size, step, zero, size))
    return whole(tf.constant(epoch, tf.int64)).numpy()

def most_common_step(places):
    return int(np.bincount(np.diff(places) + len(places)).max())

result = {}
draw = np.random.default_rng(0)

# Neighbours: how often the most common difference between them occurs.
for size in (1437, 50_000):
    epochs = [epoch_of(size, 0, epoch) for epoch in range(8)]
    result[f"whole {size}"] = all(sorted(found) == list(range(size)) for found in map(list, epochs))
    result[f"steps {size}"] = [most_common_step(found) for found in epochs]
    result[f"uniform steps {size}"] = [most_common_step(draw.permutation(size)) for _ in range(8)]

# Epochs and seeds that lie far apart, or next to each other.
size = 1437
base = epoch_of(size, 0, 0)
far = [(0, 256), (256, 0), (0, 65536), (65536, 0), (0, 1), (1, 0), (1, 1), (1_000_000_000, 0)]
result["alike"] = [float((base == epoch_of(size, *other)).mean()) for other in far]

# Where the examples of an epoch stand in the next one.
places = [np.argsort(epoch_of(size, 3, epoch)) for epoch in range(24)]
result["correlations"] = [
    float(np.corrcoef(one, other)[0, 1]) for one, other in zip(places, places[1:])
]

# The first example over seeds and over epochs, in bins of the same size: chi-square.
def chi_square(firsts, bins, size):
    seen = np.histogram(firsts, bins=bins, range=(0, size))[0]
    return float(((seen - len(firsts) / bins) ** 2 / (len(firsts) / bins)).sum())

size, bins = 1000, 10
first = tf.function(
    lambda step: order.indices(7, size, size, step, tf.constant(0, tf.int64), 1)
)
result["over epochs"] = chi_square(
    [int(first(tf.constant(epoch, tf.int64))[0]) for epoch in range(1000)], bins, size
)
zero = tf.constant(0, tf.int64)
result["over seeds"] = chi_square(
    [int(order.indices(seed, size, size, zero, zero, 1)[0]) for seed in range(1000)], bins, size
)
print("RESULT" + json.dumps(result))
"""


@pytest.fixture(scope="module")
def order(tf_python: str) -> Any:
    """What the script ORDER has found."""
    return result_of(tf_python, ORDER)


@pytest.mark.parametrize("size", [1437, 50_000])
def test_neighbours_of_an_epoch_differ_as_in_a_uniform_permutation(order: Any, size: int) -> None:
    assert order[f"whole {size}"]
    # One more than the largest of eight of numpy's: these are maxima over tens of thousands.
    assert max(order[f"steps {size}"]) <= max(order[f"uniform steps {size}"]) + 1


def test_no_two_epochs_or_seeds_have_an_order_in_common(order: Any) -> None:
    # Of 1437 examples one stands where it stood, in the mean; ten would be one run in a million.
    assert max(order["alike"]) < 10 / 1437


def test_an_epoch_says_nothing_of_the_next_one(order: Any) -> None:
    limit = 4 / 1437**0.5
    assert all(abs(correlation) < limit for correlation in order["correlations"])


@pytest.mark.parametrize("over", ["epochs", "seeds"])
def test_any_example_may_be_the_first(order: Any, over: str) -> None:
    # Nine degrees of freedom: more than 33.7 is one run in ten thousand.
    assert order[f"over {over}"] < 33.7
