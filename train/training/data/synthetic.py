"""Learnable synthetic images, made without files and identical everywhere.

An image is the coarse pattern of its class, with noise. The pattern is a hash of the seed and the
class, and the noise is a hash of the seed and the example's number. Both are computed in the graph,
with whole numbers, so the examples take no memory.
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from ..keyed import mix, word
from . import Data, text_fingerprint
from .arrays import scaled

SHAPE = (32, 32, 3)
PIXELS = math.prod(SHAPE)
CLASSES = 10
#: Height and width in pixels of the squares in a pattern.
SQUARE = 8
#: Part of the fingerprint: increase it when the images change.
VERSION = 1


class SyntheticSplit:
    """Synthetic examples to train on (``part`` 0), or others of the same classes to test on (1)."""

    def __init__(self, size: int, seed: int, part: int) -> None:
        self.size = size
        self._seed, self._part = seed & 0xFFFFFFFF, part

    def fetch(self, indices: Any) -> tuple[Any, Any]:
        """Return the features and labels of the examples at ``indices``; see Split."""
        keys = _draw(self._seed, self._part, indices)
        labels = tf.cast(mix(keys) % CLASSES, tf.int32)
        # Add four pixels in one number: a quarter of a pattern's 0 to 255 and three quarters of the
        # noise's are at most 63 and 189, so that no sum overflows into the next pixel.
        noise = 3 * _quarters(_words(keys, PIXELS // 4))
        words = tf.gather(self._patterns(), labels) + noise
        features = scaled(tf.reshape(tf.bitcast(words, tf.uint8), [-1, *SHAPE]))
        features.set_shape([indices.shape[0], *SHAPE])
        return features, tf.cast(labels, tf.int64)

    def _patterns(self) -> Any:
        """Return the pattern of each class, with four pixels in a uint32: [CLASSES, PIXELS / 4]."""
        height, width, channels = SHAPE
        rows, columns = height // SQUARE, width // SQUARE
        classes = _draw(self._seed, 2, tf.range(CLASSES))
        drawn = tf.bitcast(_quarters(_words(classes, rows * columns * channels // 4)), tf.uint8)
        drawn = tf.reshape(drawn, [CLASSES, rows, columns, channels])
        drawn = tf.repeat(tf.repeat(drawn, SQUARE, axis=1), SQUARE, axis=2)
        return tf.bitcast(tf.reshape(drawn, [CLASSES, PIXELS // 4, 4]), tf.uint32)


def _draw(seed: int, stream: int, numbers: Any) -> Any:
    """Return a random uint32 for each number; streams are independent."""
    key = mix(mix(word(seed)) + word(stream))
    return mix(tf.bitwise.bitwise_xor(tf.cast(numbers, tf.uint32), key))


def _words(keys: Any, count: int) -> Any:
    """Return ``count`` words for each of the keys [n]: uint32 [n, count]."""
    # The odd factor (2 ** 32 over the golden ratio) spreads neighboring positions far apart.
    places = tf.cast(tf.range(1, count + 1), tf.uint32) * word(0x9E3779B9)
    return mix(keys[:, tf.newaxis] + places[tf.newaxis, :])


def _quarters(words: Any) -> Any:
    """Return uint32 tensors with each byte scaled from 0..255 to 0..63."""
    return tf.bitwise.bitwise_and(tf.bitwise.right_shift(words, word(2)), word(0x3F3F3F3F))


def open_synthetic(examples: int, seed: int) -> Data:
    """Return ``examples`` synthetic images to train on, and a fifth as many to test on."""
    train = SyntheticSplit(examples, seed, 0)
    test = SyntheticSplit(max(1, examples // 5), seed, 1)
    fingerprint = text_fingerprint("synthetic", VERSION, examples, seed)
    return Data("synthetic", train, test, SHAPE, CLASSES, fingerprint)
