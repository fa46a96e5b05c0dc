"""Changes images at random in training; what happens to one is a function of its keys."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from .keyed import uniform

CROP_FLIP_STREAM = 0


def crop_flip(images: Any, keys: Any, pad: int = 4) -> Any:
    """Return each image moved by up to ``pad`` pixels and flipped left to right, or not.

    That is the augmentation of He et al., "Deep Residual Learning for Image Recognition" (2015),
    section 4.2: zeros are put around the image, a random crop of its first size is taken, and half
    of the crops are flipped. All ``(2 * pad + 1)**2`` crops are as likely.

    Args:
        images: [n, height, width, channels] of any type; height and width are known.
        keys: of ``keyed.sample_keys``, uint32 [n, 2].
        pad: pixels on each side.

    Returns:
        Images of the same shape and type.
    """
    height, width = images.shape[1], images.shape[2]
    drawn = uniform(keys, (3,), CROP_FLIP_STREAM)
    # In float32 a product with a number just below 1 may round up to the limit.
    crops = tf.minimum(tf.floor(drawn[:, :2] * (2 * pad + 1)), 2 * pad)
    top, left = tf.unstack(tf.cast(crops, tf.int64)[..., tf.newaxis], axis=1)
    # Each row of these counts an image's pixels from one side to the other.
    rows = top + tf.range(height, dtype=tf.int64)
    columns = left + tf.where(
        drawn[:, 2:] < 0.5,
        tf.range(width, dtype=tf.int64),
        tf.range(width - 1, -1, -1, dtype=tf.int64),
    )
    padded = tf.pad(images, [[0, 0], [pad, pad], [pad, pad], [0, 0]])
    return tf.gather(tf.gather(padded, rows, axis=1, batch_dims=1), columns, axis=2, batch_dims=1)


def resized_crop_flip(images: Any, keys: Any) -> Any:
    """Return a random part of each image in the image's size, flipped left to right or not.

    That is the augmentation of Szegedy et al., "Going Deeper with Convolutions" (2014), section 6:
    a part of 8 % to all of the area, its sides' ratio from 3/4 to 4/3. Where such a part would be
    higher or wider than the image, it is cut off.

    Args:
        images: float32 [n, height, width, channels]; height and width are known.
        keys: of ``keyed.sample_keys``, uint32 [n, 2].

    Returns:
        Images of the same shape, interpolated bilinearly.
    """
    area, ratio, top, left, flip = tf.unstack(uniform(keys, (5,), CROP_FLIP_STREAM), axis=1)
    area = 0.08 + 0.92 * area
    ratio = tf.exp(math.log(4 / 3) * (2 * ratio - 1))
    height, width = (tf.minimum(tf.sqrt(side), 1.0) for side in (area / ratio, area * ratio))
    top, left = top * (1 - height), left * (1 - width)
    edges = left, left + width
    first, last = (tf.where(flip < 0.5, *pair) for pair in (edges, edges[::-1]))
    boxes = tf.stack([top, first, top + height, last], axis=1)
    return tf.image.crop_and_resize(images, boxes, tf.range(tf.shape(images)[0]), images.shape[1:3])
