"""Made-up images that can be learned: no file, and the same everywhere.

An image is its class's coarse pattern under noise. Both follow from the seed and the example's
number by a hash in whole numbers, in the graph, so any number of examples takes no memory.
"""

from __future__ import annotations

import math
from typing import Any

from . import fingerprints
from .arrays import scaled
from .base import Data

SHAPE = (32, 32, 3)
PIXELS = math.prod(SHAPE)
CLASSES = 10
#: An example for the test for so many to train on.
TEST_EVERY = 5
#: Height and width of the squares of a pattern, in pixels.
SQUARE = 8
#: Part of the fingerprint: change it with what is drawn.
VERSION = 1


class SyntheticSplit:
    """Made-up examples.

    Args:
        size: number of examples.
        seed: a whole number from 0.
        part: 0 to train on, 1 to test on: other examples of the same classes.
    """

    def __init__(self, size: int, seed: int, part: int) -> None:
        self.size = size
        self._seed, self._part = seed & 0xFFFFFFFF, part

    def fetch(self, indices: Any) -> tuple[Any, Any]:
        """Return features and labels by number: see Split."""
        import tensorflow as tf

        keys = _draw(self._seed, self._part, indices)
        labels = tf.cast(_mix(keys) % CLASSES, tf.int32)
        # Four pixels in a word: a quarter of a pattern's 0 to 255 and three quarters of the noise's
        # are 63 and 189 at most, so no sum reaches the pixel beside.
        noise = 3 * _quarters(_words(keys, PIXELS // 4))
        words = tf.gather(self._patterns(), labels) + noise
        features = scaled(tf.reshape(tf.bitcast(words, tf.uint8), [-1, *SHAPE]))
        features.set_shape([indices.shape[0], *SHAPE])
        return features, tf.cast(labels, tf.int64)

    def _patterns(self) -> Any:
        """Return each class's share of the pixels, uint32 [CLASSES, PIXELS / 4]."""
        import tensorflow as tf

        height, width, channels = SHAPE
        rows, columns = height // SQUARE, width // SQUARE
        classes = _draw(self._seed, 2, tf.range(CLASSES))
        drawn = tf.bitcast(_quarters(_words(classes, rows * columns * channels // 4)), tf.uint8)
        drawn = tf.reshape(drawn, [CLASSES, rows, columns, channels])
        drawn = tf.repeat(tf.repeat(drawn, SQUARE, axis=1), SQUARE, axis=2)
        return tf.bitcast(tf.reshape(drawn, [CLASSES, PIXELS // 4, 4]), tf.uint32)


def _mix(values: Any) -> Any:
    """Return the 32-bit finalizer of MurmurHash3 of uint32 tensors."""
    import tensorflow as tf

    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        values = tf.bitwise.bitwise_xor(values, tf.bitwise.right_shift(values, _word(shift)))
        values *= _word(factor)
    return tf.bitwise.bitwise_xor(values, tf.bitwise.right_shift(values, _word(16)))


def _word(value: int) -> Any:
    import tensorflow as tf

    return tf.constant(value, tf.uint32)


def _draw(seed: int, stream: int, numbers: Any) -> Any:
    """Return a uint32 for each number; streams are independent."""
    import tensorflow as tf

    key = _mix(_mix(_word(seed)) + _word(stream))
    return _mix(tf.bitwise.bitwise_xor(tf.cast(numbers, tf.uint32), key))


def _words(keys: Any, count: int) -> Any:
    """Return ``count`` words for each of the keys [n]: uint32 [n, count]."""
    import tensorflow as tf

    # The odd factor (2 ** 32 over the golden ratio) sets neighbouring places far apart.
    places = tf.cast(tf.range(1, count + 1), tf.uint32) * _word(0x9E3779B9)
    return _mix(keys[:, tf.newaxis] + places[tf.newaxis, :])


def _quarters(words: Any) -> Any:
    """Return uint32 tensors, each byte 0 to 63 in place of 0 to 255."""
    import tensorflow as tf

    return tf.bitwise.bitwise_and(tf.bitwise.right_shift(words, _word(2)), _word(0x3F3F3F3F))


def open_synthetic(examples: int, seed: int) -> Data:
    """Return ``examples`` made-up images to train on, and a fifth as many to test on.

    Args:
        examples: at least 1.
        seed: of the images, a whole number from 0.
    """
    tests = max(1, examples // TEST_EVERY)
    return Data(
        "synthetic",
        SyntheticSplit(examples, seed, 0),
        SyntheticSplit(tests, seed, 1),
        SHAPE,
        CLASSES,
        fingerprints.of_text("synthetic", VERSION, examples, seed),
    )
