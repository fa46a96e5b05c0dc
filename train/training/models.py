"""The networks that can be selected by name, and the choice of variables for weight decay."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import tensorflow as tf

from .cluster import ConfigError
from .keyed import Dropout

layers = tf.keras.layers
#: The prefix of Keras networks, such as keras:MobileNetV2.
_KERAS = "keras:"
#: The minimum height and width of images; "linear" takes any shape.
_SMALLEST = {"digits-cnn": 2, "mnist-cnn": 4}
#: The channels of a residual network's stages.
STAGES = (16, 32, 64)


def check_model(name: str, shape: Sequence[int]) -> None:
    """Raise ConfigError unless the network accepts examples of ``shape``."""
    if name == "linear":
        return
    smallest = _SMALLEST.get(name, 1)
    if len(shape) != 3 or min(shape[:2]) < smallest:
        raise ConfigError(
            f"model {name} takes images [height, width, channels] of at least {smallest} x "
            f"{smallest} pixels, but the examples have the shape {list(shape)}; model "
            "linear takes any shape"
        )


def build(
    name: str,
    shape: Sequence[int],
    classes: int,
    seed: int,
    sync_batch_norm: bool = False,
    dropout: float = 0.0,
) -> Any:
    """Return a Keras model that maps [n, *shape] to logits [n, classes].

    The logits are float32 whatever the precision of the layers. The weights depend only on the
    arguments and are the same in every rank. ``dropout`` applies to the last layer's inputs. Raise
    ConfigError if the arguments do not fit the network.
    """
    if name.startswith(_KERAS):
        if dropout:
            raise ConfigError(
                f"--dropout is not supported for {name}, which has its own dropout: remove "
                "--dropout"
            )
        return application(name.removeprefix(_KERAS), shape, classes, seed, sync_batch_norm)
    if name.startswith("resnet"):
        depth = int(name.removeprefix("resnet"))
        return resnet(depth, shape, classes, seed, sync_batch_norm, dropout)
    return small(name, shape, classes, seed, dropout)


def decayed(model: Any) -> list[Any]:
    """Return the variables for weight decay: trained kernels, but not biases or BatchNorm's."""
    # Variable names look like conv1/kernel:0.
    return [
        variable
        for variable in model.trainable_variables
        if variable.name.partition(":")[0].endswith("kernel")
    ]


def _initializers(kind: Any, seed: int) -> Iterator[Any]:
    """Yield an initializer for each layer with random initial weights."""
    # Hashed, so that two runs with consecutive seeds share no kernel.
    for number in count():
        hashed = hashlib.sha256(f"layer {number} of seed {seed}".encode()).digest()
        yield kind(int.from_bytes(hashed[:4], "big") >> 1)


def _outputs(classes: int, initializer: Any, dropout: float) -> list[Any]:
    """Return the last layers of a network, from features [n, m] to logits [n, classes]."""
    return [
        *([Dropout(dropout, stream=0, name="dropout")] if dropout else []),
        layers.Dense(classes, kernel_initializer=initializer, name="outputs"),
        # Under mixed precision, the dense layer returns float16: too coarse for a loss.
        layers.Activation("linear", dtype="float32", name="logits"),
    ]


def small(name: str, shape: Sequence[int], classes: int, seed: int, dropout: float) -> Any:
    """Return one of the networks without BatchNorm; initial weights follow Glorot's rule.

    ``digits-cnn`` has 9,930 parameters for 8 x 8 x 1 pixels and 10 classes. ``mnist-cnn`` is from
    TensorFlow's tutorial "Distributed training with Keras" and has 347,146 parameters for 28 x 28 x
    1 pixels and 10 classes. ``linear`` is logistic or linear regression.
    """
    drawn = _initializers(tf.keras.initializers.GlorotUniform, seed)

    def conv(filters: int, name: str, **options: Any) -> Any:
        return layers.Conv2D(
            filters, 3, activation="relu", kernel_initializer=next(drawn), name=name, **options
        )

    hidden = []
    if name == "digits-cnn":
        hidden += [conv(16, "conv1", padding="same"), layers.MaxPooling2D()]
        hidden += [conv(32, "conv2", padding="same"), layers.Flatten()]
    elif name == "mnist-cnn":
        hidden += [conv(32, "conv"), layers.MaxPooling2D(), layers.Flatten()]
        dense = layers.Dense(64, activation="relu", kernel_initializer=next(drawn), name="hidden")
        hidden.append(dense)
    else:
        hidden.append(layers.Flatten())
    outputs = _outputs(classes, next(drawn), dropout)
    return tf.keras.Sequential([tf.keras.Input(tuple(shape)), *hidden, *outputs])


def resnet(
    depth: int, shape: Sequence[int], classes: int, seed: int, sync_batch_norm: bool, dropout: float
) -> Any:
    """Return a residual network for CIFAR-10 with ``depth`` layers, a number of the form 6n + 2.

    See He et al. 2015, "Deep Residual Learning for Image Recognition", arXiv:1512.03385, section
    4.2; shortcuts are option A. Kernels are initialized as in He et al. 2015, "Delving Deep into
    Rectifiers". Pixels need no centering, because BatchNorm follows the first convolution. For
    32 x 32 x 3 pixels and 10 classes, 20 layers have 269,722 trained parameters, 56 have 853,018.
    """
    drawn = _initializers(tf.keras.initializers.HeNormal, seed)

    def conv(x: Any, channels: int, stride: int, name: str) -> Any:
        options = {"padding": "same", "use_bias": False, "kernel_initializer": next(drawn)}
        x = layers.Conv2D(channels, 3, strides=stride, name=name, **options)(x)
        # Momentum and epsilon are those of the authors' networks. Keras' 0.99 would leave the
        # moving averages far behind in a short run.
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
    for layer in _outputs(classes, next(drawn), dropout):
        x = layer(x)
    return tf.keras.Model(images, x, name=f"resnet{depth}")


def _narrow(x: Any, channels: int, stride: int, name: str) -> Any:
    """Return every ``stride``-th pixel of each row and column, with zeros as further channels."""
    x = layers.AveragePooling2D(1, strides=stride, name=f"{name}_pick")(x)
    missing = channels - x.shape[-1]
    padding = ((0, 0), (missing // 2, missing - missing // 2))
    # A layer for channels-first images pads the last two dimensions, which are the width here (by
    # nothing) and the channels.
    return layers.ZeroPadding2D(padding, data_format="channels_first", name=f"{name}_pad")(x)


def application(
    name: str, shape: Sequence[int], classes: int, seed: int, sync_batch_norm: bool
) -> Any:
    """Return a network of tf.keras.applications, such as ``MobileNetV2``, with initial weights.

    Its Dropout layers are replaced by those of keyed.py, so that a run resumes bit for bit. Images
    are numbers from 0 to 1. A network that scales its inputs is built without this scaling or, if
    that is impossible, gets numbers from 0 to 255. Raise ConfigError if the network is unknown or
    does not accept ``shape``.
    """
    make = getattr(tf.keras.applications, name, None)
    if not inspect.isfunction(make):
        known = [n for n, f in vars(tf.keras.applications).items() if inspect.isfunction(f)]
        raise ConfigError(f"unknown model keras:{name}; choose one of {', '.join(sorted(known))}")
    tf.keras.utils.set_random_seed(seed)
    scales = "include_preprocessing" in inspect.signature(make).parameters
    options: dict[str, Any] = {"include_preprocessing": False} if scales else {}
    options |= {"weights": None, "classes": classes, "classifier_activation": None}
    try:
        found = make(input_shape=tuple(shape), **options)
    except ValueError as error:
        raise ConfigError(f"model keras:{name}: {error}") from error
    streams = count()

    def own(layer: Any) -> Any:
        config = layer.get_config()
        if isinstance(layer, layers.Dropout):
            return Dropout(**config, stream=next(streams))
        if isinstance(layer, layers.BatchNormalization):
            config["synchronized"] = sync_batch_norm
        return type(layer).from_config(config)

    inner = tf.keras.models.clone_model(found, clone_function=own)
    images = tf.keras.Input(tuple(shape), name="images")
    # Only EfficientNet's first generation cannot be built without its scaling.
    pixels = layers.Rescaling(255.0, name="pixels")(images) if "EfficientNetB" in name else images
    # Under mixed precision, the dense layer returns float16: too coarse for a loss.
    logits = layers.Activation("linear", dtype="float32", name="logits")(inner(pixels))
    return tf.keras.Model(images, logits, name=name.lower())
