"""What the ranks of a gang do together: share one state, prove one result; and peer errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import tensorflow as tf

from .cluster import Cluster, TrainingError

#: The longest text that a rank can send to all others, in bytes.
TEXT_LIMIT = 16_384

#: What TensorFlow raises in a rank when another one is lost.
PEER_ERRORS = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)


@contextmanager
def named_peer_errors(cluster: Cluster) -> Iterator[None]:
    """Turn TensorFlow's errors about a lost rank into a TrainingError of one line."""
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
    """Return which server TensorFlow's message says is lost, and why."""
    found = re.search(r"remote target /job:(\w+)/replica:[0-9]+/task:([0-9]+)", message)
    cause = re.search(r'grpc_message:"\s*([^"\\]+)', message)
    name = "-".join(found.groups()) if found else "a server"
    return name, cause[1] if cause else next(iter(message.splitlines()), "")


def tasks_named(message: str) -> str:
    """Return the names of the ranks that TensorFlow's message mentions, joined by commas."""
    found = re.findall(r"/job:(\w+)/(?:replica:[0-9]+/)?task:([0-9]+)", message)
    return ", ".join(dict.fromkeys(map("-".join, found)))


class Gang:
    """The ranks that train, for what they must do together: all call the same, in one order.

    All methods raise tf.errors.OpError where another rank has ended. ``shutdown`` is what the chief
    of parameter servers, who is alone in its gang, does at the end.
    """

    def __init__(
        self, strategy: Any, cluster: Cluster, shutdown: Callable[[], None] | None = None
    ) -> None:
        self._strategy, self._cluster, self._shutdown = strategy, cluster, shutdown
        self._alone = len(cluster.ranks) == 1
        # One function for all: TensorFlow warns of many that are traced once each.
        self._gather = tf.function(self._gathered, autograph=False)

    def compare(self, digest: bytes, when: str) -> None:
        """Raise TrainingError, with the ranks that differ, unless all have the chief's digest."""
        rows, ranks = self.gather(list(digest)), self._cluster.ranks
        differing = [rank for rank, row in zip(ranks, rows, strict=True) if (row != rows[0]).any()]
        if differing:
            names = ", ".join(differing)
            raise TrainingError(f"the weights {when} differ from those of {ranks[0]}: {names}")

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.gather([0])

    def final_barrier(self) -> None:
        """Wait until all ranks are here, as the last that this one does."""
        self.barrier()
        if self._shutdown is not None:
            self._shutdown()
        # Every rank that has reached this point knows that no other rank failed before.
        self.part()

    def part(self) -> None:
        """Wait for the other ranks before this one exits, because the first to exit may be gone
        before the others have received all of the last exchange. Errors no longer matter.
        """
        with suppress(*PEER_ERRORS):
            self.barrier()

    def texts(self, own: str) -> list[str]:
        """Return the texts of all ranks, of up to TEXT_LIMIT bytes and without NUL."""
        data = own.encode()
        if len(data) > TEXT_LIMIT:
            raise ValueError(f"{len(data)} bytes for all ranks, the limit is {TEXT_LIMIT}")
        rows = self.gather(list(data.ljust(TEXT_LIMIT, b"\0")))
        return [row.astype(np.uint8).tobytes().rstrip(b"\0").decode() for row in rows]

    def from_rank(self, text: str, source: int) -> str:
        """Return the ``text`` of the rank at place ``source`` in all of them, see ``texts``."""
        return self.texts(text if self._cluster.place == source else "")[source]

    def share(self, variables: list[Any], source: int) -> None:
        """Give all ranks' variables the values, bit for bit, of the rank at place ``source``."""
        if self._alone:
            return
        strategy = self._strategy
        # Its first replica. Values travel as integers, for which a sum with zeros changes no bit
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
        """Return the lists, equally long, of all ranks as an int32 array: a row for each."""
        if self._alone:
            return np.array([own])
        rows = self._gather(tf.constant([own], tf.int32)).numpy()
        return rows[:: len(rows) // len(self._cluster.ranks)]

    def _gathered(self, own: Any) -> Any:
        def gather() -> Any:
            # Only a tensor made in a replica has a device that the collective knows.
            context = tf.distribute.get_replica_context()
            return context.all_gather(tf.identity(own), axis=0)

        return self._strategy.experimental_local_results(self._strategy.run(gather))[0]


#: Whole numbers of as many bits, by bytes; eight bytes are two numbers, sixteen are four.
_INTEGERS = {1: tf.uint8, 2: tf.uint16, 4: tf.int32, 8: tf.int32, 16: tf.int32}


def _to_integers(value: Any) -> Any:
    """Return a tensor's bits as int32: what collectives on every device can carry."""
    if value.dtype != tf.bool:
        value = tf.bitcast(value, _INTEGERS[value.dtype.size])
    return tf.cast(value, tf.int32)


def _from_integers(bits: Any, dtype: Any, shape: Any) -> Any:
    """Return the tensor that ``_to_integers`` was given."""
    if dtype == tf.bool:
        return tf.cast(bits, tf.bool)
    return tf.reshape(tf.bitcast(tf.cast(bits, _INTEGERS[dtype.size]), dtype), shape)
