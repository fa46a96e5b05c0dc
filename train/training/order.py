"""The order of the examples and their augmentation: pure functions of the seed and the step.

Each epoch is a different permutation of the examples, divided into full global batches. The
examples that remain are left out. The global batch of a step is the same for any number of
replicas. It is divided into equal shares, and replica r takes the r-th.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from . import keyed
from .data import Split
from .data.arrays import scaled

#: Number of cipher rounds for the permutation. With TensorFlow's default of four, neighbors in an
#: epoch are neighbors again in other epochs.
_ROUNDS = 16
CROP_FLIP_STREAM = 0


def indices(seed: int, size: int, batch_size: int, step: Any, first: Any, count: int) -> Any:
    """Return the indices of ``count`` examples in the global batch of a step, int64 [count].

    There are ``size`` examples. ``step`` and ``first``, the position in the global batch, both
    count from 0 and are scalar int64 tensors.
    """
    per_epoch = size // batch_size
    places = (step % per_epoch) * batch_size + first + tf.range(count, dtype=tf.int64)
    return tf.raw_ops.RandomIndexShuffle(
        index=places,
        seed=keyed.order_key(seed, step // per_epoch),
        max_index=tf.constant(size - 1, tf.int64),
        rounds=_ROUNDS,
    )


def batch(
    split: Split, seed: int, batch_size: int, augment: str, step: Any, first: Any, count: int
) -> tuple[Any, Any, Any]:
    """Return features, labels and keys of a part of a step's global batch; see ``indices``.

    Features are uint8 or float32 [count, ...]; labels [count, ...]; keys uint32 [count, 2].
    """
    chosen = indices(seed, split.size, batch_size, step, first, count)
    features, labels = split.fetch(chosen)
    for values in (features, labels):
        # The size of a user's fetch may be unknown, but parts of the results are taken.
        values.set_shape([count, *values.shape[1:]])
    keys = keyed.sample_keys(seed, step, chosen)
    if augment == "crop-flip":
        features = crop_flip(features, keys)
    elif augment == "resized-crop-flip":
        features = resized_crop_flip(scaled(features), keys)
    return features, labels, keys


def share(
    split: Split, seed: int, batch_size: int, augment: str, replicas: int
) -> Callable[[Any, Any], tuple[Any, Any, Any]]:
    """Return a function that takes a step and a replica, and fetches the replica's share."""
    size = batch_size // replicas

    def fetch(step: Any, replica: Any) -> tuple[Any, Any, Any]:
        first = tf.cast(replica, tf.int64) * size
        return batch(split, seed, batch_size, augment, step, first, size)

    return fetch


def feed(
    strategy: Any, fetch: Callable[[Any, Any], Any], step: int, *, ahead: int
) -> Iterator[Any]:
    """Return an endless, distributed iterator over the results of ``fetch``, beginning at ``step``.

    ``fetch`` takes a step and a replica. While the training continues, tf.data prepares ``ahead``
    elements for each replica, in parallel if there is more than one.
    """

    def pipeline(context: Any) -> Any:
        local = context.num_replicas_in_sync // context.num_input_pipelines
        own = context.input_pipeline_id * local

        # The shares are cut here, not by TensorFlow's sharding.
        def part(element: Any) -> Any:
            return fetch(element // local, own + element % local)

        # Endless on purpose: with a finite dataset, the ranks would have to agree at every step
        # whether it has ended. The local replicas take elements in turn.
        counter = tf.data.Dataset.counter(start=step * local)
        part_of = tf.autograph.experimental.do_not_convert(part)
        parallel = tf.data.AUTOTUNE if ahead > 1 else None
        return counter.map(part_of, num_parallel_calls=parallel).prefetch(ahead * local)

    return iter(strategy.distribute_datasets_from_function(pipeline))


def crop_flip(images: Any, keys: Any, pad: int = 4) -> Any:
    """Shift each image by up to ``pad`` pixels and flip it left to right, at random.

    This is the augmentation of He et al., "Deep Residual Learning for Image Recognition" (2015),
    section 4.2: a random crop of the image padded with zeros. All crops are equally likely. Images
    are of any type, [n, height, width, channels], and keys uint32 [n, 2].
    """
    height, width = images.shape[1], images.shape[2]
    drawn = keyed.uniform(keys, (3,), CROP_FLIP_STREAM)
    # In float32, a product with a number just below 1 may be rounded up to the limit.
    crops = tf.minimum(tf.floor(drawn[:, :2] * (2 * pad + 1)), 2 * pad)
    top, left = tf.unstack(tf.cast(crops, tf.int64)[..., tf.newaxis], axis=1)
    # Pixel positions from one side of an image to the other, one row per image.
    rows = top + tf.range(height, dtype=tf.int64)
    ahead, back = tf.range(width, dtype=tf.int64), tf.range(width - 1, -1, -1, dtype=tf.int64)
    columns = left + tf.where(drawn[:, 2:] < 0.5, ahead, back)
    padded = tf.pad(images, [[0, 0], [pad, pad], [pad, pad], [0, 0]])
    return tf.gather(tf.gather(padded, rows, axis=1, batch_dims=1), columns, axis=2, batch_dims=1)


def resized_crop_flip(images: Any, keys: Any) -> Any:
    """Return a random part of each image, scaled to the image's size and flipped at random.

    This is the augmentation of Szegedy et al., "Going Deeper with Convolutions" (2014), section 6:
    a part with 8 % to 100 % of the area and a ratio of sides from 3/4 to 4/3, which is cut off if
    it is higher or wider than the image. Images are float32, and flipped left to right. For the
    other arguments see ``crop_flip``.
    """
    area, ratio, top, left, flip = tf.unstack(keyed.uniform(keys, (5,), CROP_FLIP_STREAM), axis=1)
    area = 0.08 + 0.92 * area
    ratio = tf.exp(math.log(4 / 3) * (2 * ratio - 1))
    height, width = (tf.minimum(tf.sqrt(side), 1.0) for side in (area / ratio, area * ratio))
    top, left = top * (1 - height), left * (1 - width)
    edges = left, left + width
    first, last = (tf.where(flip < 0.5, *pair) for pair in (edges, edges[::-1]))
    boxes = tf.stack([top, first, top + height, last], axis=1)
    return tf.image.crop_and_resize(images, boxes, tf.range(tf.shape(images)[0]), images.shape[1:3])
