"""What is made small, and what is told beside it, for classes and for numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

#: From labels and outputs of a batch to one float32 for each example: [n].
PerExample = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Objective:
    """The loss of an example, and its metrics by name; all are averaged over examples."""

    loss: PerExample
    metrics: dict[str, PerExample]


def make_objective(classes: int | None, loss: PerExample | None = None) -> Objective:
    """Return cross-entropy and accuracy for ``classes``; squared and absolute error for None.

    Args:
        classes: the number of classes, of which the labels are int64 numbers [n] and the outputs
            logits [n, classes]; None for labels that are numbers of the outputs' shape.
        loss: another loss than these.
    """
    if loss is not None:
        loss = tf.function(loss)  # a user's own may need AutoGraph
    if classes is None:
        return Objective(loss or _squared_error, {"mean_absolute_error": _absolute_error})
    return Objective(loss or _cross_entropy, {"accuracy": _right})


def _cross_entropy(labels: Any, logits: Any) -> Any:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def _right(labels: Any, logits: Any) -> Any:
    return tf.cast(tf.equal(tf.argmax(logits, axis=-1), labels), tf.float32)


def _error(labels: Any, outputs: Any) -> Any:
    return tf.reshape(outputs, [tf.shape(outputs)[0], -1]) - tf.reshape(
        tf.cast(labels, outputs.dtype), [tf.shape(labels)[0], -1]
    )


def _squared_error(labels: Any, outputs: Any) -> Any:
    return tf.reduce_mean(tf.square(_error(labels, outputs)), axis=1)


def _absolute_error(labels: Any, outputs: Any) -> Any:
    return tf.reduce_mean(tf.abs(_error(labels, outputs)), axis=1)
