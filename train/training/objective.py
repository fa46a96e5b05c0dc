"""The objective: the loss that a training minimizes, and the metrics that it reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from .settings import Settings
from .user_module import PerExample


@dataclass(frozen=True)
class Objective:
    """The training and test losses of an example, and its metrics by name."""

    loss: PerExample
    test_loss: PerExample
    metrics: Mapping[str, PerExample]


def make_objective(
    settings: Settings, classes: int | None, functions: Mapping[str, PerExample]
) -> Objective:
    """Return the objective for labels that are classes, or numbers if ``classes`` is None.

    With classes, the loss is the cross-entropy and the metric is the accuracy, for labels int64 [n]
    and logits [n, classes]. With numbers, they are the squared and the absolute error.
    ``functions`` are the user's: a ``loss`` that replaces the default, and further metrics by name.
    """
    # The user's functions may need AutoGraph.
    own = {name: tf.function(function) for name, function in functions.items()}
    loss = own.pop("loss", None)
    if classes is None:
        error = loss or _squared_error
        return Objective(error, error, {"mean_absolute_error": _absolute_error, **own})
    plain = loss or _cross_entropy
    smoothing, weights, top_k = settings.label_smoothing, settings.class_weights, settings.top_k

    def training(labels: Any, logits: Any) -> Any:
        losses = plain(labels, logits)
        if smoothing:
            spread = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
            losses = (1 - smoothing) * losses + smoothing * spread
        if weights:
            factors = tf.gather(tf.constant(weights, tf.float32), labels)
            losses = tf.cast(losses, tf.float32) * factors
        return losses

    def among(labels: Any, logits: Any) -> Any:
        return tf.cast(tf.math.in_top_k(labels, tf.cast(logits, tf.float32), top_k), tf.float32)

    named: dict[str, PerExample] = {"accuracy": _right}
    if top_k:
        named[f"top{top_k}_accuracy"] = among
    return Objective(training, plain, {**named, **own})


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
