"""What the ranks of a gang tell one another: the chief's state, the proof of one result, errors.

Imports TensorFlow. All but the errors are collective: every rank must call the same, in the same
order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from .cluster import Cluster, TrainingError

#: The longest text that the chief can tell all ranks, in bytes.
TEXT_LIMIT = 16_384


@contextmanager
def losses_named(cluster: Cluster) -> Iterator[None]:
    """Turn TensorFlow's errors about a lost rank into a TrainingError of one line."""
    try:
        yield
    except (
        tf.errors.AbortedError,
        tf.errors.CancelledError,
        tf.errors.DeadlineExceededError,
        tf.errors.UnavailableError,
    ) as error:
        cause = error.message.rpartition("aborted by: ")[2]
        told = next(iter(cause.splitlines()), "").rstrip(":")
        names = tasks_named(cause) or "another rank"
        kind = type(error).__name__
        raise TrainingError(f"lost contact with {names}: {kind}: {told}") from error


def tasks_named(message: str) -> str:
    """Return the names of the ranks that TensorFlow's message mentions, joined by commas."""
    found = re.findall(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)", message)
    return ", ".join(dict.fromkeys(map("-".join, found)))


class Gang:
    """The ranks that train, for what they must do together: all call the same, in one order.

    Args:
        strategy: their strategy.
        cluster: tells which of them this one is.
    """

    def __init__(self, strategy: Any, cluster: Cluster) -> None:
        self._strategy = strategy
        self._cluster = cluster
        self._alone = len(cluster.ranks) == 1

    def compare(self, own: bytes) -> None:
        """Make sure that all ranks hold the same digest.

        Raises:
            TrainingError: they differ; it names the ranks that differ from the chief.
            tf.errors.OpError: another rank has ended.
        """
        rows = self._rows(list(own))
        differing = [
            rank
            for rank, row in zip(self._cluster.ranks, rows, strict=True)
            if (row != rows[0]).any()
        ]
        if differing:
            raise TrainingError(
                f"the final weights differ from those of {self._cluster.chief}: "
                + ", ".join(differing)
            )

    def barrier(self) -> None:
        """Wait until all ranks are here.

        Raises:
            tf.errors.OpError: another rank has ended.
        """
        self._rows([0])

    def from_chief(self, text: str) -> str:
        """Return the chief's ``text`` in all ranks; what the others give does not matter.

        Raises:
            tf.errors.OpError: another rank has ended.
            ValueError: it is longer than TEXT_LIMIT.
        """
        data = text.encode() if self._cluster.is_chief else b""
        if len(data) > TEXT_LIMIT:
            raise ValueError(
                f"a text of {len(data)} bytes for all ranks, the limit is {TEXT_LIMIT}"
            )
        rows = self._rows([*data, *[0] * (TEXT_LIMIT - len(data))])
        return bytes(int(byte) for byte in rows[0]).rstrip(b"\0").decode()

    def share(self, variables: list[Any]) -> None:
        """Give all ranks' variables the values, bit for bit, that the chief's have.

        The values travel as integers, for which a sum with zeros changes no bit (-0.0 + 0.0 is
        0.0).

        Raises:
            tf.errors.OpError: another rank has ended.
        """
        if self._alone:
            return
        strategy = self._strategy

        def exchange() -> Any:
            context = tf.distribute.get_replica_context()
            first = tf.cast(tf.equal(context.replica_id_in_sync_group, 0), tf.int32)
            values = [_to_integers(variable.read_value()) * first for variable in variables]
            return context.all_reduce(tf.distribute.ReduceOp.SUM, values)

        shared = tf.function(lambda: strategy.run(exchange), autograph=False)()
        for variable, bits in zip(variables, shared, strict=True):
            own = strategy.experimental_local_results(bits)[0]
            variable.assign(_from_integers(own, variable.dtype, variable.shape))

    def _rows(self, own: list[int]) -> Any:
        """Return the lists of int32 of all ranks as an array, a row for each, in their order."""
        if self._alone:
            return np.array([own])
        value, strategy = tf.constant([own], dtype=tf.int32), self._strategy

        def gather() -> Any:
            # Only a tensor made in a replica has a device that the collective knows.
            context = tf.distribute.get_replica_context()
            return context.all_gather(tf.identity(value), axis=0)

        gathered = tf.function(lambda: strategy.run(gather), autograph=False)()
        rows = strategy.experimental_local_results(gathered)[0].numpy()
        return rows[:: len(rows) // len(self._cluster.ranks)]


def _to_integers(value: Any) -> Any:
    """Return a tensor's bits as int32: what collectives on every device can carry."""
    if value.dtype == tf.bool:
        return tf.cast(value, tf.int32)
    if value.dtype.size >= 4:
        return tf.bitcast(value, tf.int32)
    return tf.cast(tf.bitcast(value, {1: tf.uint8, 2: tf.uint16}[value.dtype.size]), tf.int32)


def _from_integers(bits: Any, dtype: Any, shape: Any) -> Any:
    """Return the tensor that ``_to_integers`` was given."""
    if dtype == tf.bool:
        return tf.cast(bits, tf.bool)
    if dtype.size < 4:
        bits = tf.cast(bits, {1: tf.uint8, 2: tf.uint16}[dtype.size])
    return tf.reshape(tf.bitcast(bits, dtype), shape)
