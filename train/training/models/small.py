"""Small networks: for handwritten digits, for MNIST and its likes, and a linear one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from .parts import layer_seeds, outputs

layers = tf.keras.layers
Glorot = tf.keras.initializers.GlorotUniform


def digits_cnn(shape: Sequence[int], classes: int, seed: int, *, dropout: float) -> Any:
    """Return two convolutions and a dense layer: 9,930 parameters for 8 x 8 x 1 pixels, 10 classes.

    It has no BatchNorm, whose statistics would depend on the number of replicas.
    """
    seeds = layer_seeds(seed)
    return tf.keras.Sequential(
        [
            tf.keras.Input(tuple(shape)),
            layers.Conv2D(
                16,
                3,
                padding="same",
                activation="relu",
                kernel_initializer=Glorot(next(seeds)),
                name="conv1",
            ),
            layers.MaxPooling2D(),
            layers.Conv2D(
                32,
                3,
                padding="same",
                activation="relu",
                kernel_initializer=Glorot(next(seeds)),
                name="conv2",
            ),
            layers.Flatten(),
            *outputs(classes, Glorot(next(seeds)), dropout),
        ]
    )


def mnist_cnn(shape: Sequence[int], classes: int, seed: int, *, dropout: float) -> Any:
    """Return the network of TensorFlow's tutorial "Distributed training with Keras".

    It has 347,146 parameters for 28 x 28 x 1 pixels and 10 classes.
    """
    seeds = layer_seeds(seed)
    return tf.keras.Sequential(
        [
            tf.keras.Input(tuple(shape)),
            layers.Conv2D(
                32, 3, activation="relu", kernel_initializer=Glorot(next(seeds)), name="conv"
            ),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(
                64, activation="relu", kernel_initializer=Glorot(next(seeds)), name="hidden"
            ),
            *outputs(classes, Glorot(next(seeds)), dropout),
        ]
    )


def linear(shape: Sequence[int], classes: int, seed: int, *, dropout: float) -> Any:
    """Return a single dense layer, without a bend: logistic or linear regression."""
    return tf.keras.Sequential(
        [
            tf.keras.Input(tuple(shape)),
            layers.Flatten(),
            *outputs(classes, Glorot(next(layer_seeds(seed))), dropout),
        ]
    )
