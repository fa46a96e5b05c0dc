"""The networks that can be chosen by name.

TensorFlow is imported only where a network is built: options are checked without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .cluster import ConfigError

#: A line for each name.
MODELS = {
    "digits-cnn": "two convolutions, for images of about 8 x 8 pixels",
    "mnist-cnn": "the convolutional network of TensorFlow's tutorial on distributed training",
    "resnet20": "residual network of 20 layers for CIFAR-10 (He et al. 2015)",
    "resnet32": "residual network of 32 layers for CIFAR-10",
    "resnet44": "residual network of 44 layers for CIFAR-10",
    "resnet56": "residual network of 56 layers for CIFAR-10",
    "resnet110": "residual network of 110 layers for CIFAR-10",
    "linear": "a single dense layer, for examples of any shape",
}
#: How the names of Keras' own begin, such as keras:MobileNetV2.
_KERAS = "keras:"
#: The smallest height and width of images; "linear" takes any shape.
_SMALLEST = {"digits-cnn": 2, "mnist-cnn": 4}


def is_known(name: str) -> bool:
    """Return whether there is a network of a name, as far as can be known without Keras."""
    return name in MODELS or (name.startswith(_KERAS) and name[len(_KERAS) :].isalnum())


def check_model(name: str, shape: Sequence[int]) -> None:
    """Raise ConfigError unless the network takes examples of ``shape``."""
    if name == "linear":
        return
    smallest = _SMALLEST.get(name, 1)
    if len(shape) != 3 or min(shape[:2]) < smallest:
        raise ConfigError(
            f"model {name} takes images [height, width, channels] of at least "
            f"{smallest} x {smallest} pixels, and the examples' shape is {list(shape)}; "
            "model linear takes any shape"
        )


def build(
    name: str,
    shape: Sequence[int],
    classes: int,
    seed: int,
    sync_batch_norm: bool = False,
    dropout: float = 0.0,
) -> Any:
    """Return a network: a Keras model, of standard layers but for ``keyed.Dropout``.

    Its weights are a function of the arguments alone: the same in every rank, and but for Keras'
    own networks with both generations of Keras, whatever was built or drawn before. Each layer's
    seed is a hash of ``seed`` and the layer's number; Keras' own draw from ``seed``. With a
    ``dropout``, of the last layer's inputs, the model trains inside ``keyed.keys_for_layers``, and
    ``keyed.exportable`` makes the model to save.

    Returns:
        Model from [n, *shape] to logits [n, classes], float32 also under mixed precision.
    """
    from . import networks

    if name.startswith(_KERAS):
        if dropout:
            raise ConfigError(f"--dropout is not for {name}, which has its own: leave it out")
        return networks.application(name[len(_KERAS) :], shape, classes, seed, sync_batch_norm)
    if name.startswith("resnet"):
        depth = int(name.removeprefix("resnet"))
        return networks.resnet(depth, shape, classes, seed, sync_batch_norm, dropout)
    return networks.small(name, shape, classes, seed, dropout)


def decayed(model: Any) -> list[Any]:
    """Return the variables that weight decay is for: trained kernels, of convolutions and others.

    Biases and BatchNorm's scales and offsets are not among them.
    """
    # Keras 2 names a variable conv1/kernel:0, Keras 3 kernel.
    return [
        variable
        for variable in model.trainable_variables
        if variable.name.rpartition("/")[2].partition(":")[0].endswith("kernel")
    ]
