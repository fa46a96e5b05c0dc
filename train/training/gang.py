"""Joint operations of a gang's ranks, such as sharing a state, and errors about lost ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import tensorflow as tf

from .cluster import Cluster, TrainingError

#: Maximum length in bytes of a text that a rank can send to all others.
TEXT_LIMIT = 16_384

#: Errors that TensorFlow raises in a rank when another one is lost.
PEER_ERRORS = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)


@contextmanager
def named_peer_errors(cluster: Cluster) -> Iterator[None]:
    """Turn TensorFlow's errors about a lost rank into a one-line TrainingError."""
    try:
        yield
    except PEER_ERRORS as error:
        if cluster.has_servers:  # the message names the chief, too
            names, reason = _server_error(error.message)
        else:
            cause = error.message.rpartition("aborted by: ")[2]
            names = tasks_named(cause) or "another rank"
            reason = next(iter(cause.splitlines()), "").rstrip(":")
        kind = type(error).__name__
        raise TrainingError(f"lost contact with {names}: {kind}: {reason}") from error


def _server_error(message: str) -> tuple[str, str]:
    """Return the server that is lost according to TensorFlow's message, and the reason."""
    found = re.search(r"remote target /job:(\w+)/replica:[0-9]+/task:([0-9]+)", message)
    cause = re.search(r'grpc_message:"\s*([^"\\]+)', message)
    name = "-".join(found.groups()) if found else "a server"
    return name, cause[1] if cause else next(iter(message.splitlines()), "")


def tasks_named(message: str) -> str:
    """Return the names of the ranks in TensorFlow's message, joined by commas."""
    found = re.findall(r"/job:(\w+)/(?:replica:[0-9]+/)?task:([0-9]+)", message)
    return ", ".join(dict.fromkeys(map("-".join, found)))


class Collective:
    """Joint operations of the ranks that train. All ranks must call them in the same order.

    All methods except ``part`` raise tf.errors.OpError if another rank has ended. With parameter
    servers, the chief is the only rank that trains. ``final_barrier`` then calls ``shutdown``.
    """

    def __init__(
        self, strategy: Any, cluster: Cluster, shutdown: Callable[[], None] | None = None
    ) -> None:
        self._strategy, self._cluster, self._shutdown = strategy, cluster, shutdown
        self._alone = len(cluster.ranks) == 1
        # One function for all sizes: TensorFlow warns of many functions that are traced once each.
        self._gather = tf.function(self._gathered, autograph=False)

    def compare(self, digest: bytes, when: str) -> None:
        """Raise TrainingError if the ``digest`` of any rank differs from the chief's.

        The message names these ranks. ``when`` is a part of it, such as ``at the end``.
        """
        rows, ranks = self.gather(list(digest)), self._cluster.ranks
        differing = [rank for rank, row in zip(ranks, rows, strict=True) if (row != rows[0]).any()]
        if differing:
            names = ", ".join(differing)
            raise TrainingError(f"the weights of {names} {when} differ from those of {ranks[0]}")

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.gather([0])

    def final_barrier(self) -> None:
        """Wait for all ranks. This must be the last joint operation."""
        self.barrier()
        if self._shutdown is not None:
            self._shutdown()
        # Every rank that has reached this point knows that no other rank failed before.
        self.part()

    def part(self) -> None:
        """Wait for the other ranks before this one exits, and ignore errors.

        Otherwise, a rank might be gone before the others have received all of the last exchange.
        """
        with suppress(*PEER_ERRORS):
            self.barrier()

    def texts(self, own: str) -> list[str]:
        """Send the text ``own`` to all ranks; return the texts of all ranks, in their order.

        Texts must not contain NUL. Raise ValueError if ``own`` has more than TEXT_LIMIT bytes.
        """
        data = own.encode()
        if len(data) > TEXT_LIMIT:
            raise ValueError(f"{len(data)} bytes for all ranks; the limit is {TEXT_LIMIT}")
        rows = self.gather(list(data.ljust(TEXT_LIMIT, b"\0")))
        return [row.astype(np.uint8).tobytes().rstrip(b"\0").decode() for row in rows]

    def from_rank(self, text: str, source: int) -> str:
        """Return the ``text`` that the rank at index ``source`` has passed; see ``texts``."""
        return self.texts(text if self._cluster.place == source else "")[source]

    def share(self, variables: list[Any], source: int) -> None:
        """Set all ranks' variables to the values, bit for bit, of the rank at index ``source``."""
        if self._alone:
            return
        strategy = self._strategy
        # The first replica sends. Values travel as integers, for which adding zeros changes no bit
        # (-0.0 + 0.0 is 0.0).
        giver = source * (strategy.num_replicas_in_sync // len(self._cluster.ranks))

        def exchange() -> Any:
            context = tf.distribute.get_replica_context()
            gives = tf.cast(tf.equal(context.replica_id_in_sync_group, giver), tf.int32)
            values = [_to_integers(variable.read_value()) * gives for variable in variables]
            return context.all_reduce(tf.distribute.ReduceOp.SUM, values)

        shared = tf.function(lambda: strategy.run(exchange), autograph=False)()
        for variable, bits in zip(variables, shared, strict=True):
            own = strategy.experimental_local_results(bits)[0]
            value = _from_integers(own, variable.dtype, variable.shape)
            variable.assign(value, read_value=False)

    def gather(self, own: list[int]) -> Any:
        """Return the lists ``own`` of all ranks, which must be equally long, as an array's rows."""
        if self._alone:
            return np.array([own])
        rows = self._gather(tf.constant([own], tf.int32)).numpy()
        return rows[:: len(rows) // len(self._cluster.ranks)]

    def _gathered(self, own: Any) -> Any:
        def gather() -> Any:
            # The collective knows the device only of tensors that were made in a replica.
            context = tf.distribute.get_replica_context()
            return context.all_gather(tf.identity(own), axis=0)

        return self._strategy.experimental_local_results(self._strategy.run(gather))[0]


#: Integer types by size in bytes; eight bytes become two numbers, sixteen become four.
_INTEGERS = {1: tf.uint8, 2: tf.uint16, 4: tf.int32, 8: tf.int32, 16: tf.int32}


def _to_integers(value: Any) -> Any:
    """Return a tensor's bits as int32, which collectives support on every device."""
    if value.dtype != tf.bool:
        value = tf.bitcast(value, _INTEGERS[value.dtype.size])
    return tf.cast(value, tf.int32)


def _from_integers(bits: Any, dtype: Any, shape: Any) -> Any:
    """Convert the result of ``_to_integers`` back to the original tensor."""
    if dtype == tf.bool:
        return tf.cast(bits, tf.bool)
    return tf.reshape(tf.bitcast(tf.cast(bits, _INTEGERS[dtype.size]), dtype), shape)
