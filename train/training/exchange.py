"""The exchange of gradients: every replica gets the sum of all replicas' values.

All replicas get the same bits in every case, so that their weights stay equal.

Between workers, the gradients of a large network are sent in packs, the last layers first. Each
pack is sent as soon as the backward pass has computed it. The gradients of a small network are sent
together, after the backward pass: nothing is gained by sending them earlier, and replicas whose
computation is not disturbed wait less for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from .dependencies import held

#: Bytes of a pack; TensorFlow's ring is slower with much smaller or larger packs.
PACK_BYTES = 8 * 2**20
#: First key of the collectives made here; TensorFlow counts its own from 1.
_KEYS = 1_000_000_000

#: Maps a replica's gradients, float32 in the layers' order, and other values of any type to their
#: sums over all replicas, in the same order, types and shapes. It is called within a replica.
Exchange = Callable[[Sequence[Any], Sequence[Any]], list[Any]]


def make_exchange(strategy: Any, workers: int, precision: str) -> Exchange:
    """Return the exchange of a synchronous strategy.

    ``workers`` is the number of ranks. Gradients are sent as ``precision``: float32, bfloat16 or
    float16. Other values are always sent in their own type.
    """
    dtype = tf.as_dtype(precision)
    if dtype == tf.float32:
        return _with_all_bits
    # SumsRoundedOnce is for ranks that have one replica each, on a CPU.
    devices = strategy.extended.worker_devices
    if len(devices) > 1 or "GPU" in devices[0]:
        return RoundedSums(dtype)
    return SumsRoundedOnce(dtype, workers)


def _with_all_bits(gradients: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    return all_reduce([*gradients, *others])


class RoundedSums:
    """TensorFlow's all-reduce, which adds in the type that is sent, so each addition rounds."""

    def __init__(self, dtype: Any) -> None:
        self._dtype = dtype

    def __call__(self, gradients: Sequence[Any], others: Sequence[Any]) -> list[Any]:
        """Return the sums, see Exchange."""
        sums = all_reduce([tf.cast(value, self._dtype) for value in gradients])
        return [*(tf.cast(value, tf.float32) for value in sums), *all_reduce(others)]


class SumsRoundedOnce:
    """Sums that are added in float32 and sent with fewer bits.

    Each rank must have one replica, on a CPU. Each sum is rounded once, in one rank, whatever the
    number of ranks, and all ranks get the rounded value.
    """

    def __init__(self, dtype: Any, workers: int) -> None:
        self._dtype, self._workers = dtype, workers

    def __call__(self, gradients: Sequence[Any], others: Sequence[Any]) -> list[Any]:
        """Return the sums, see Exchange."""
        return [*self._in_packs(gradients), *all_reduce(others)]

    def _in_packs(self, gradients: Sequence[Any]) -> list[Any]:
        sums: list[Any] = []
        for number, pack in enumerate(packs(gradients, self._dtype.size, PACK_BYTES)):
            flat = tf.concat([tf.reshape(value, [-1]) for value in pack], axis=0)
            total = self._sum(flat, _KEYS + 2 * number)
            parts = tf.split(total, [value.shape.num_elements() for value in pack])
            shaped = [tf.reshape(part, v.shape) for part, v in zip(parts, pack, strict=True)]
            sums = [*shaped, *sums]
        return sums

    def _sum(self, flat: Any, key: int) -> Any:
        """Return the sum of a float32 vector over the ranks.

        ``key`` and ``key`` + 1 identify two collectives. No other collective may use these numbers.
        """
        # Each rank adds up its share of all ranks' gradients and sends the sum to all. The traffic
        # is that of a ring with half of the bytes.
        size, workers = flat.shape[0], self._workers
        shares = tf.reshape(tf.pad(flat, [[0, -size % workers]]), [workers, -1])
        own = self._swap(tf.cast(shares, self._dtype), key)
        total = tf.cast(tf.reduce_sum(tf.cast(own, tf.float32), axis=0), self._dtype)
        # Each rank sends to every other one, because TensorFlow cannot gather bfloat16.
        sums = self._swap(tf.tile(total[tf.newaxis], [workers, 1]), key + 1)
        return tf.cast(tf.reshape(sums, [-1])[:size], tf.float32)

    def _swap(self, rows: Any, key: int) -> Any:
        """Send row r to rank r; return the rows sent to this rank, in the order of the ranks."""
        return tf.raw_ops.CollectiveAllToAllV2(
            input=rows,
            group_size=self._workers,
            group_key=_KEYS,
            instance_key=key,
            ordering_token=[],
            communication_hint="ring",
        )


def all_reduce(values: Sequence[Any]) -> list[Any]:
    """Return the sums of the replicas' values, added in their own types by TensorFlow.

    Values of up to PACK_BYTES in total are sent together, once all of them are computed. Larger
    ones are sent in packs of this size.
    """
    if not values:
        return []
    options = None
    if sum(value.dtype.size * value.shape.num_elements() for value in values) > PACK_BYTES:
        options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=PACK_BYTES)
    else:
        values = held(list(values), until=values)
    context = tf.distribute.get_replica_context()
    return list(context.all_reduce(tf.distribute.ReduceOp.SUM, list(values), options))


def packs(values: Sequence[Any], item_bytes: int, pack_bytes: int) -> list[list[Any]]:
    """Divide values into packs of more than ``pack_bytes`` bytes, beginning with the last values.

    Values keep their order within a pack. The last pack may be smaller. ``item_bytes`` is the size
    in bytes of a number when it is sent.
    """
    divided: list[list[Any]] = [[]]
    size = 0
    for value in reversed(values):
        if size > pack_bytes:
            divided.append([])
            size = 0
        divided[-1].insert(0, value)
        size += value.shape.num_elements() * item_bytes
    return divided
