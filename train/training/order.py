"""The order of the examples: a pure function of the seed, the epoch and the step.

The rule: each epoch goes through a permutation of its own, in full global batches; what is left,
fewer examples than a batch, is left out (other ones in each epoch). The global batch of a step is
the same for any number of replicas, of which the r-th takes the r-th equal share. So no worker runs
out before another, and a run can go on at any step.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from . import keyed
from .augment import crop_flip, resized_crop_flip
from .data import Split, as_read, scaled

#: Sixteen rounds of the cipher behind the permutation: with TensorFlow's default of four,
#: neighbours of an epoch are neighbours again in others.
_ROUNDS = 16


def indices(seed: int, size: int, batch_size: int, step: Any, first: Any, count: int) -> Any:
    """Return which examples stand at some places of the global batch of a step.

    Args:
        seed: 0 to 1,000,000,000.
        size: number of examples, at least ``batch_size``.
        batch_size: the global batch size.
        step: the step, from 0; a scalar int64 tensor.
        first: the first place, from 0; a scalar int64 tensor.
        count: how many places.

    Returns:
        int64 of shape [count], each from 0 to ``size`` - 1.
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
    """Return a part of the global batch of a step: features, labels, keys.

    Args:
        split: the examples.
        augment: ``none``, ``crop-flip`` or ``resized-crop-flip``.
        seed, batch_size, step, first, count: as for ``indices``.

    Returns:
        features of shape [count, ...], uint8 or float32, which Learner.prepare is for; labels
        [count, ...]; and the uint32 keys [count, 2] from which all randomness of these examples in
        this step is drawn.
    """
    chosen = indices(seed, split.size, batch_size, step, first, count)
    features, labels = as_read(split)(chosen)
    for values in (features, labels):
        # A user's own fetch may not tell how many it gives, and parts of them are taken.
        values.set_shape([count, *values.shape[1:]])
    keys = keyed.sample_keys(seed, step, chosen)
    if augment == "crop-flip":
        features = crop_flip(features, keys)
    elif augment == "resized-crop-flip":
        features = resized_crop_flip(scaled(features), keys)
    return features, labels, keys


class Fetch:
    """Shares that each replica takes within its own step: for examples in memory, on CPUs.

    A stream would take turns with the training on the same cores, and gain nothing.

    Args:
        split, seed, batch_size, augment: as for ``batch``.
        replicas: in the whole gang.
    """

    def __init__(
        self, split: Split, seed: int, batch_size: int, augment: str, replicas: int
    ) -> None:
        self._arguments = split, seed, batch_size, augment
        self._share = batch_size // replicas

    def fetch(self, step: Any, replica: Any) -> tuple[Any, Any, Any]:
        """Return the replica's part of a step: features, labels, keys; within a graph."""
        first = tf.cast(replica, tf.int64) * self._share
        return batch(*self._arguments, step, first, self._share)


class Stream:
    """Shares that tf.data prepares while the training goes on.

    They are cut here, by the numbers of the replicas: TensorFlow does not shard. ``iterator`` is
    endless and distributed: (features, labels, keys) for each replica.

    Args:
        strategy: whose replicas are fed.
        split, seed, batch_size, augment: as for ``batch``.
        step: the first one.
    """

    def __init__(
        self, strategy: Any, split: Split, seed: int, batch_size: int, augment: str, step: int
    ) -> None:
        share = batch_size // strategy.num_replicas_in_sync

        def pipeline(context: Any) -> Any:
            local = context.num_replicas_in_sync // context.num_input_pipelines
            own = context.input_pipeline_id * local

            def part(element: Any) -> Any:
                first = (own + element % local) * share
                return batch(split, seed, batch_size, augment, element // local, first, share)

            # Endless on purpose: of a finite dataset the ranks would ask one another at every step
            # whether it has ended. The local replicas take elements in turn.
            counter = tf.data.Dataset.counter(start=step * local)
            part_of = tf.autograph.experimental.do_not_convert(part)
            return counter.map(part_of, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2 * local)

        self.iterator = iter(strategy.distribute_datasets_from_function(pipeline))
