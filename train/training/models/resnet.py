"""The residual networks for CIFAR-10 of He et al. 2015.

"Deep Residual Learning for Image Recognition", arXiv:1512.03385, section 4.2: a convolution, three
stages of n blocks of two convolutions each, with 16, 32 and 64 channels, the mean over the pixels
and a dense layer: 6n + 2 layers. Shortcuts are of its option A: where a stage halves the image and
doubles the channels, every second pixel is taken and channels of zeros are added, without
parameters. Kernels are drawn as in He et al. 2015, "Delving Deep into Rectifiers".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from .parts import layer_seeds, outputs

layers = tf.keras.layers

STAGES = (16, 32, 64)


def resnet(
    depth: int,
    shape: Sequence[int],
    classes: int,
    seed: int,
    *,
    sync_batch_norm: bool,
    dropout: float,
) -> Any:
    """Return a residual network of ``depth`` layers.

    For 32 x 32 x 3 pixels and 10 classes, 20 layers have 269,722 trained parameters, 56 have
    853,018. Pixels need no centring: BatchNorm follows the first convolution.

    Args:
        depth: 6n + 2.
        shape: of an image: height, width, channels.
        classes: number of outputs.
        seed: of the weights.
        sync_batch_norm: BatchNorm takes means over the batch of all replicas.
        dropout: rate before the dense layer.
    """
    seeds = layer_seeds(seed)

    def he_normal() -> Any:
        return tf.keras.initializers.HeNormal(next(seeds))

    def conv(x: Any, channels: int, stride: int, name: str) -> Any:
        x = layers.Conv2D(
            channels,
            3,
            strides=stride,
            padding="same",
            use_bias=False,
            kernel_initializer=he_normal(),
            name=name,
        )(x)
        # The averages and the small number are those of the authors' own networks. Keras' 0.99
        # would leave the moving averages far behind in a short run.
        return layers.BatchNormalization(
            momentum=0.9, epsilon=1e-5, synchronized=sync_batch_norm, name=f"{name}_norm"
        )(x)

    def block(x: Any, channels: int, stride: int, name: str) -> Any:
        y = layers.ReLU(name=f"{name}_relu1")(conv(x, channels, stride, f"{name}_conv1"))
        y = conv(y, channels, 1, f"{name}_conv2")
        if stride > 1:
            x = _narrow(x, channels, stride, name)
        return layers.ReLU(name=f"{name}_relu2")(layers.Add(name=f"{name}_add")([x, y]))

    images = tf.keras.Input(tuple(shape), name="images")
    x = layers.ReLU(name="relu")(conv(images, STAGES[0], 1, "conv"))
    for stage, channels in enumerate(STAGES, 1):
        for number in range(1, (depth - 2) // 6 + 1):
            stride = 2 if stage > 1 and number == 1 else 1
            x = block(x, channels, stride, f"stage{stage}_block{number}")
    x = layers.GlobalAveragePooling2D(name="mean")(x)
    for layer in outputs(classes, he_normal(), dropout):
        x = layer(x)
    return tf.keras.Model(images, x, name=f"resnet{depth}")


def _narrow(x: Any, channels: int, stride: int, name: str) -> Any:
    """Return every ``stride``-th pixel of each row and column, with zeros as further channels."""
    x = layers.AveragePooling2D(1, strides=stride, name=f"{name}_pick")(x)
    missing = channels - x.shape[-1]
    padding = ((0, 0), (missing // 2, missing - missing // 2))
    # A layer for images with the channels first pads the last two dimensions: here those are the
    # width, by nothing, and the channels.
    return layers.ZeroPadding2D(padding, data_format="channels_first", name=f"{name}_pad")(x)
