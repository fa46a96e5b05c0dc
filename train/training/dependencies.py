"""The order of operations in a graph, where data alone do not give it.

TensorFlow runs an operation as soon as its inputs are ready. ``tf.function`` keeps operations on
the same variable, and collectives, in the order of the program. All other orders that a training
step needs are made here, by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf


@contextmanager
def after(values: Any) -> Iterator[None]:
    """Make operations created in this context wait for all tensors in ``values``.

    The tensors may be of any replica.
    """
    with tf.control_dependencies(tf.nest.flatten(values, expand_composites=True)):
        yield


def held(values: Any, until: Any) -> Any:
    """Return ``values``, which no operation can use before all tensors in ``until`` are ready.

    Both are tensors or nests of them. The bits of the values do not change. Nothing waits for a
    tensor of ``until`` that the graph's optimizer removes because it is used for nothing else.
    """
    with after(until):
        return tf.nest.map_structure(tf.identity, values)


def on_host(values: Sequence[Any]) -> Any:
    """Return a tensor on the host that is ready once all values are, on any device."""
    with after(values):
        one = tf.identity(tf.reshape(values[0], [-1])[:1])
    # A GPU starts operations when earlier work is queued, but a copy to the host waits for it.
    with tf.device("CPU:0"):
        return tf.identity(one)


@dataclass(frozen=True)
class Clock:
    """The host's clock, read while a graph runs: float64 scalars in seconds.

    A reading is taken after the tensors that it names, and not before. A clock that is not
    ``running`` always gives 0, and then no operation waits because of it: TensorFlow has no clock
    in deterministic mode.
    """

    running: bool

    def now(self) -> Any:
        """Return the time at which this operation runs; wrap it in ``after`` to order it."""
        return tf.timestamp() if self.running else tf.constant(0.0, tf.float64)

    def since(self, began: Any, values: Any) -> Any:
        """Return the seconds from the reading ``began`` until all tensors in ``values`` are ready.

        On a GPU they may only be queued; see ``when_computed``.
        """
        with after(values):
            return self.now() - began

    def when_computed(self, values: Sequence[Any]) -> Any:
        """Return the time at which all values, at least one, are computed on their devices."""
        with after(on_host(values) if self.running else []):
            return self.now()

    def held(self, values: Any, until: Any) -> Any:
        """Return ``values``, which no operation can use before the clock has been read."""
        # Otherwise, a single thread may compute first and read the clock afterwards.
        return held(values, until) if self.running else values
