"""The exchange of gradients among the replicas: in packs, and if asked with fewer bits.

Between workers, a large network's gradients go in packs, the last layers' first, each as soon as
the backward pass has made it. A small one's go at once after it: there is nothing to gain, and
replicas that compute undisturbed wait less for one another.

With fewer bits, what travels is bfloat16 or float16. On CPUs, sums are made in float32: each rank
gets its share of all ranks' gradients, adds them up, and gives the sum to all. That is the traffic
of a ring with half of the bytes. Every sum is rounded once, and all ranks have the same. On GPUs,
and where a rank has several replicas, TensorFlow's own collectives add in the type that travels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import collective_ops

#: Bytes of a pack; TensorFlow's ring is slower with packs that are much smaller or larger.
PACK_BYTES = 8 * 2**20
#: Of the collectives made here; TensorFlow counts its own from 1.
_KEYS = 1_000_000_000


class Exchange:
    """Adds up the replicas' values; called within a replica.

    Args:
        strategy: a synchronous strategy.
        workers: how many ranks there are.
        precision: ``float32``, ``bfloat16`` or ``float16``, in which gradients travel.
    """

    def __init__(self, strategy: Any, workers: int, precision: str) -> None:
        self._workers = workers
        self._precision = tf.as_dtype(precision)
        # With several replicas in a rank, or GPUs, TensorFlow's own way is the better one.
        self._plain = len(strategy.extended.worker_devices) > 1 or any(
            "GPU" in device for device in strategy.extended.worker_devices
        )

    def __call__(self, gradients: Sequence[Any], others: Sequence[Any]) -> list[Any]:
        """Return the sums over the replicas of the gradients and of the others, in their order.

        Args:
            gradients: float32 tensors, in the order of the layers.
            others: more of them, which keep their precision.
        """
        if self._precision == tf.float32:
            return _all_reduce([*gradients, *others])
        if self._plain:
            sent = _all_reduce([tf.cast(value, self._precision) for value in gradients])
            return [*(tf.cast(value, tf.float32) for value in sent), *_all_reduce(others)]
        return [*self._in_packs(gradients), *_all_reduce(others)]

    def _in_packs(self, gradients: Sequence[Any]) -> list[Any]:
        sums: list[Any] = []
        for number, pack in enumerate(_packs(gradients, self._precision.size)):
            flat = tf.concat([tf.reshape(value, [-1]) for value in pack], axis=0)
            sums = [*_unpack(self._sum(flat, _KEYS + 2 * number), pack), *sums]
        return sums

    def _sum(self, flat: Any, key: int) -> Any:
        """Return the sum over the ranks of a vector."""
        size, workers = flat.shape[0], self._workers
        group = {"group_size": workers, "group_key": _KEYS, "communication_hint": "ring"}
        shares = tf.reshape(tf.pad(flat, [[0, -size % workers]]), [workers, -1])
        own = collective_ops.all_to_all_v2(
            tf.cast(shares, self._precision), instance_key=key, **group
        )
        total = tf.cast(tf.reduce_sum(tf.cast(own, tf.float32), axis=0), self._precision)
        # Each rank to each other one: TensorFlow gathers no bfloat16.
        copies = tf.tile(total[tf.newaxis], [workers, 1])
        sums = collective_ops.all_to_all_v2(copies, instance_key=key + 1, **group)
        return tf.cast(tf.reshape(sums, [-1])[:size], tf.float32)


def _all_reduce(values: Sequence[Any]) -> list[Any]:
    if not values:
        return []
    context = tf.distribute.get_replica_context()
    options = None
    if sum(value.dtype.size * value.shape.num_elements() for value in values) > PACK_BYTES:
        options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=PACK_BYTES)
    else:
        with tf.control_dependencies(values):
            values = [tf.identity(value) for value in values]
    shared: list[Any] = context.all_reduce(tf.distribute.ReduceOp.SUM, list(values), options)
    return shared


def _packs(values: Sequence[Any], item_bytes: int) -> list[list[Any]]:
    """Return the values in packs of at least PACK_BYTES, but for one; the last values first."""
    packs: list[list[Any]] = [[]]
    size = 0
    for value in reversed(values):
        if size > PACK_BYTES:
            packs.append([])
            size = 0
        packs[-1].insert(0, value)
        size += value.shape.num_elements() * item_bytes
    return packs


def _unpack(flat: Any, like: Sequence[Any]) -> list[Any]:
    """Return the parts of a vector, in the shapes of some tensors."""
    parts = tf.split(flat, [value.shape.num_elements() for value in like])
    return [tf.reshape(part, value.shape) for part, value in zip(parts, like, strict=True)]
