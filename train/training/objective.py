"""What is made small, and what is reported with it, for classes and for numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from .user_module import PerExample


@dataclass(frozen=True)
class Objective:
    """The losses of an example in training and in the test, and its metrics by name.

    All are averaged over examples.
    """

    loss: PerExample
    test_loss: PerExample
    metrics: Mapping[str, PerExample]


def make_objective(
    classes: int | None,
    loss: PerExample | None = None,
    metrics: Mapping[str, PerExample] | None = None,
    *,
    smoothing: float = 0.0,
    weights: tuple[float, ...] = (),
    top_k: int = 0,
) -> Objective:
    """Return cross-entropy and accuracy for ``classes``; squared and absolute error for None.

    Args:
        classes: the number of classes, of which the labels are int64 numbers [n] and the outputs
            logits [n, classes]; None for labels that are numbers of the outputs' shape.
        loss: another loss than these.
        metrics: more metrics.
        smoothing: the part of a label that is spread over all classes, in training alone.
        weights: factors of the losses by class, in training alone; none for 1 each.
        top_k: adds the metric ``top<k>_accuracy``; 0 for none.
    """
    if loss is not None:
        loss = tf.function(loss)  # a user's own may need AutoGraph
    own = {name: tf.function(metric) for name, metric in (metrics or {}).items()}
    if classes is None:
        error = loss or _squared_error
        return Objective(error, error, {"mean_absolute_error": _absolute_error, **own})
    plain = training = loss or _cross_entropy
    if smoothing:
        training = _smoothed(smoothing)
    named: dict[str, PerExample] = {"accuracy": _right}
    if top_k:
        named[f"top{top_k}_accuracy"] = _among(top_k)
    return Objective(_weighted(training, weights), plain, {**named, **own})


def _cross_entropy(labels: Any, logits: Any) -> Any:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def _smoothed(smoothing: float) -> PerExample:
    def smoothed(labels: Any, logits: Any) -> Any:
        spread = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
        return (1 - smoothing) * _cross_entropy(labels, logits) + smoothing * spread

    return smoothed


def _weighted(loss: PerExample, weights: tuple[float, ...]) -> PerExample:
    if not weights:
        return loss

    def weighted(labels: Any, logits: Any) -> Any:
        losses = tf.cast(loss(labels, logits), tf.float32)
        return losses * tf.gather(tf.constant(weights, tf.float32), labels)

    return weighted


def _right(labels: Any, logits: Any) -> Any:
    return tf.cast(tf.equal(tf.argmax(logits, axis=-1), labels), tf.float32)


def _among(k: int) -> PerExample:
    def among(labels: Any, logits: Any) -> Any:
        return tf.cast(tf.math.in_top_k(labels, tf.cast(logits, tf.float32), k), tf.float32)

    return among


def _error(labels: Any, outputs: Any) -> Any:
    return tf.reshape(outputs, [tf.shape(outputs)[0], -1]) - tf.reshape(
        tf.cast(labels, outputs.dtype), [tf.shape(labels)[0], -1]
    )


def _squared_error(labels: Any, outputs: Any) -> Any:
    return tf.reduce_mean(tf.square(_error(labels, outputs)), axis=1)


def _absolute_error(labels: Any, outputs: Any) -> Any:
    return tf.reduce_mean(tf.abs(_error(labels, outputs)), axis=1)
