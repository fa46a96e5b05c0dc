"""Enforces an order of operations in a graph that their inputs alone do not determine.

TensorFlow runs an operation as soon as its inputs are ready. ``tf.function`` keeps operations on
the same variable, and collectives, in the order of the program. The functions of this module
enforce any other order that a training step needs.
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
    """Return ``values`` as tensors that are not ready before all tensors in ``until`` are.

    Both arguments are tensors or nests of tensors. The bits of the values do not change. TensorFlow
    may remove a tensor in ``until`` that is used for nothing else. Nothing waits for it then.
    """
    with after(until):
        return tf.nest.map_structure(tf.identity, values)


def on_host(values: Sequence[Any]) -> Any:
    """Return a tensor on the host that is ready once all ``values`` have been computed.

    The values may be on any device. ``values`` must not be empty.
    """
    with after(values):
        one = tf.identity(tf.reshape(values[0], [-1])[:1])
    # A GPU starts operations when earlier work is queued, but a copy to the host waits for it.
    with tf.device("CPU:0"):
        return tf.identity(one)


@dataclass(frozen=True)
class Clock:
    """The host's clock, which a graph reads while it runs. Times are float64 scalars in seconds.

    TensorFlow has no clock in deterministic mode. A clock that is not ``running`` is for this mode:
    all its times are 0, and no operation of a training step waits for it.
    """

    running: bool

    def now(self) -> Any:
        """Return the time at which this operation runs; wrap it in ``after`` to order it."""
        return tf.timestamp() if self.running else tf.constant(0.0, tf.float64)

    def since(self, began: Any, values: Any) -> Any:
        """Return the seconds from the reading ``began`` until all tensors in ``values`` are ready.

        On a GPU, a tensor may count as ready when it is only queued; see ``when_computed``.
        """
        with after(values):
            return self.now() - began

    def when_computed(self, values: Sequence[Any]) -> Any:
        """Return the time at which all ``values`` have been computed on their devices.

        ``values`` must not be empty.
        """
        with after(on_host(values) if self.running else []):
            return self.now()

    def held(self, values: Any, until: Any) -> Any:
        """Return ``values`` as tensors that are ready after the clock was read into ``until``."""
        # Otherwise, a single thread may compute first and read the clock afterwards.
        return held(values, until) if self.running else values
