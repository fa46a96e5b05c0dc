"""Keras' own networks, tf.keras.applications, with fresh weights."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from itertools import count
from typing import Any

import tensorflow as tf

from ..cluster import ConfigError
from ..keyed import Dropout

layers = tf.keras.layers


def application(
    name: str, shape: Sequence[int], classes: int, seed: int, *, synchronized: bool
) -> Any:
    """Return a network of tf.keras.applications, from images [n, *shape] to logits [n, classes].

    Its Dropouts are those of keyed.py, so that a run resumes bit for bit. Images are numbers from
    0 to 1; those networks that scale by themselves are built without that, or get 0 to 255.

    Args:
        name: such as ``MobileNetV2``.
        shape: of an image: height, width, channels.
        classes: number of outputs.
        seed: of the weights.
        synchronized: BatchNorm takes means over the batch of all replicas.

    Raises:
        ConfigError: there is no such network, or it does not take images of that shape.
    """
    make = getattr(tf.keras.applications, name, None)
    if not inspect.isfunction(make):
        known = [n for n, f in vars(tf.keras.applications).items() if inspect.isfunction(f)]
        raise ConfigError(f"model keras:{name} is not known; there are {', '.join(sorted(known))}")
    tf.keras.utils.set_random_seed(seed)
    scales = "include_preprocessing" in inspect.signature(make).parameters
    options = {"include_preprocessing": False} if scales else {}
    try:
        found = make(
            weights=None,
            input_shape=tuple(shape),
            classes=classes,
            classifier_activation=None,
            **options,
        )
    except ValueError as error:
        raise ConfigError(f"model keras:{name}: {error}") from error
    streams = count()

    def own(layer: Any) -> Any:
        config = layer.get_config()
        if isinstance(layer, layers.Dropout):
            del config["seed"]
            return Dropout(**config, stream=next(streams))
        if isinstance(layer, layers.BatchNormalization):
            config["synchronized"] = synchronized
        return type(layer).from_config(config)

    inner = tf.keras.models.clone_model(found, clone_function=own)
    images = tf.keras.Input(tuple(shape), name="images")
    # EfficientNet's first generation alone cannot do without its own scaling.
    pixels = layers.Rescaling(255.0, name="pixels")(images) if "EfficientNetB" in name else images
    # Under mixed precision the dense layer gives float16: too coarse for a loss.
    logits = layers.Activation("linear", dtype="float32", name="logits")(inner(pixels))
    return tf.keras.Model(images, logits, name=name.lower())
