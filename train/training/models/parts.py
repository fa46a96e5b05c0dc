"""What the networks have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import count
from typing import Any

import tensorflow as tf

from ..keyed import Dropout


def layer_seeds(seed: int) -> Iterator[int]:
    """Yield a seed for each layer that draws its first weights: 31 bits, hashed.

    So two runs with seeds next to each other share no kernel.
    """
    for number in count():
        hashed = hashlib.sha256(f"layer {number} of seed {seed}".encode()).digest()
        yield int.from_bytes(hashed[:4], "big") >> 1


def outputs(classes: int, initializer: Any, dropout: float) -> list[Any]:
    """Return the last layers of a network, from features [n, m] to logits [n, classes].

    Args:
        classes: number of outputs.
        initializer: draws the dense layer's kernel.
        dropout: rate of the dropout before it; 0: no such layer.
    """
    return [
        *([Dropout(dropout, stream=0, name="dropout")] if dropout else []),
        tf.keras.layers.Dense(classes, kernel_initializer=initializer, name="outputs"),
        # Under mixed precision the dense layer gives float16: too coarse for a loss.
        tf.keras.layers.Activation("linear", dtype="float32", name="logits"),
    ]
