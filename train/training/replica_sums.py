"""Sums over the steps of a call, separate in each replica."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class ReplicaSums:
    """Float64 numbers [size] in each replica of a strategy, 0 until something is added.

    Replicas exchange them once per call instead of once per step. Adding float32 numbers in float64
    causes hardly any rounding, so the number of steps in a call does not matter.
    """

    def __init__(self, strategy: Any, size: int) -> None:
        with strategy.scope():
            self._variable = tf.Variable(
                tf.zeros(size, tf.float64),
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )

    def add(self, values: Any) -> None:
        """Add a tensor [size] of any type; call it within a replica."""
        self._variable.assign_add(tf.cast(values, tf.float64))

    def take(self) -> Any:
        """Return this replica's sums, float64 [size], and reset them; call it within a replica."""
        taken = self._variable.read_value()
        self._variable.assign(tf.zeros_like(taken))
        return tf.identity(taken)
