"""What the networks have in common."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ..keyed import Dropout


def outputs(classes: int, initializer: Any, dropout: float) -> list[Any]:
    """Return the last layers of a network, from features [n, m] to logits [n, classes].

    Args:
        classes: number of outputs.
        initializer: draws the dense layer's kernel.
        dropout: rate of the dropout before it; 0: no such layer.
    """
    return [
        *([Dropout(dropout, stream=0, name="dropout")] if dropout else []),
        tf.keras.layers.Dense(classes, kernel_initializer=initializer),
        # Under mixed precision the dense layer gives float16: too coarse for a loss.
        tf.keras.layers.Activation("linear", dtype="float32", name="logits"),
    ]
