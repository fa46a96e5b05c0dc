"""The learning task: the data, network and objective that the options select."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from . import data, keyed, models, user_module
from .cluster import ConfigError
from .data import images, published, synthetic, tf_examples, tfds
from .data.arrays import ArraySplit, from_arrays, open_npz, scaled
from .objective import Objective, make_objective
from .settings import Settings
from .user_module import PerExample

#: Networks of ``--model auto`` by data set; for others, the features' shape decides.
FITTING = {"digits": "digits-cnn", "mnist": "mnist-cnn", "fashion-mnist": "mnist-cnn"}

#: Means and standard deviations of red, green and blue over ImageNet's training set.
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Task:
    """The data, network and objective of a run."""

    settings: Settings
    data: data.Data
    objective: Objective
    #: File, name and function of the user's loss and metrics.
    own: Sequence[tuple[str, str, PerExample]]
    #: Turns features into model inputs: scales, normalizes.
    prepare: Callable[[Any], Any]

    @property
    def model_name(self) -> str:
        """The network's name or the user's file."""
        if self.settings.model != "auto":
            return self.settings.model
        by_shape = "resnet20" if self.data.shape == (32, 32, 3) else "linear"
        return FITTING.get(self.settings.data, by_shape)

    @property
    def outputs(self) -> int:
        """Number of network outputs for an example: one per class, or per value of the label."""
        return self.data.classes or math.prod(self.data.label_shape)

    @property
    def steps_per_epoch(self) -> int:
        """Number of full global batches in the training set."""
        return self.data.train.size // self.settings.batch_size

    def build_model(self) -> Any:
        """Return the network with initial weights from the seed.

        --precision is set in Keras first. Raise ConfigError if the network cannot be built.
        """
        settings, found = self.settings, self.data
        # So that a copy's layers have the same names as the model's: Keras numbers them.
        tf.keras.backend.reset_uids()
        if settings.precision != "float32":
            tf.keras.mixed_precision.set_global_policy(f"mixed_{settings.precision}")
        if self.model_name.endswith(".py"):
            tf.keras.utils.set_random_seed(settings.seed)
            offered: dict[str, Any] = {"shape": found.shape, "classes": found.classes}
            offered |= {"seed": settings.seed, "folder": settings.data_dir}
            wanted = tf.keras.Model, "tf.keras.Model"
            model = user_module.make(self.model_name, "build_model", *wanted, **offered)
            if not model.built:
                model.build((None, *found.shape))
        else:
            options = settings.seed, settings.sync_batch_norm, settings.dropout
            model = models.build(self.model_name, found.shape, self.outputs, *options)
        self._check(model)
        return model

    def _check(self, model: Any) -> None:
        """Raise ConfigError if the model's outputs, or the user's loss or metrics, cannot be right.

        Only their shapes are checked. Raise it also if the model could not be exported at the end.
        """
        if self.settings.export != "none":
            try:
                keyed.check_exportable(model)
            except ValueError as error:
                raise ConfigError(
                    f"{self.model_name}: {error}: change it, or use --export none"
                ) from error
        # Both errors would go unnoticed: TensorFlow broadcasts outputs, and averages a loss.
        # A subclassed model does not know the shape of its outputs.
        shape = getattr(model, "output_shape", None)
        if shape is None and self.own:
            inputs = tf.TensorSpec([None, *self.data.shape], tf.float32)
            shape = tf.function(model).get_concrete_function(inputs).output_shapes
        labels = [None, *self.data.label_shape]
        kind = tf.int64 if self.data.classes else tf.float32
        specs = tf.TensorSpec(labels, kind), tf.TensorSpec(shape, tf.float32)
        for path, name, function in self.own:
            given = tf.function(function).get_concrete_function(*specs).output_shapes
            if given.rank not in (None, 1):
                raise ConfigError(
                    f"{path}: {name}(labels, outputs) returns {given}, expected a float for "
                    "each example: do not average over the batch"
                )
        if "loss" in [name for _, name, _ in self.own]:
            return
        if shape is not None and (len(shape) < 2 or math.prod(shape[1:]) != self.outputs):
            wanted = f"{self.outputs} classes" if self.data.classes else f"labels {labels}"
            raise ConfigError(
                f"{self.model_name}: build_model() returned a model with outputs "
                f"{list(shape)}, but the data has {wanted}"
            )


def open_data(settings: Settings) -> data.Data:
    """Return the data that the options select; raise ConfigError if that fails."""
    name, folder, download = settings.data, settings.data_dir, settings.download
    if name.endswith(".py"):
        pair = user_module.call(name, "build_dataset", seed=settings.seed, folder=folder)
        if not isinstance(pair, tuple) or len(pair) != 2:
            wanted = "a pair: training data and test data"
            raise ConfigError(f"{name}: build_dataset() must return {wanted}")
        return from_arrays(name, *pair)
    if name == "digits":
        return published.open_digits()
    if name == "synthetic":
        return synthetic.open_synthetic(settings.examples, settings.seed)
    if name in ("mnist", "fashion-mnist"):
        return published.open_idx(name, folder, download=download)
    if name == "cifar10":
        return published.open_cifar10(folder, download=download)
    if name not in data.NAMES:
        name = name.removeprefix(tfds.TFDS)
        return tfds.open_tfds(name, folder, download=download, image_size=settings.image_size)
    if not folder.exists():
        raise data.DataError(f"{name}: {folder.absolute()} (--data-dir) does not exist")
    if name == "npz":
        return open_npz(folder)
    if name == "images":
        return images.open_images(folder, settings.image_size)
    return tf_examples.open_tfrecords(folder, settings.image_size)


def open_task(settings: Settings) -> Task:
    """Return the task that the options and the user's files define.

    Raise ConfigError if they cannot be used.
    """
    data = open_data(settings)
    if settings.batch_size > data.train.size:
        raise ConfigError(
            f"--batch-size {settings.batch_size} is too large: --data {settings.data} has only "
            f"{data.train.size} training examples"
        )
    custom = user_module.losses_and_metrics(settings.model, settings.data)
    functions, classes = {name: function for _, name, function in custom}, data.classes
    for name in ("label_smoothing", "class_weights", "top_k"):
        if classes is None and getattr(settings, name):
            option, labels = name.replace("_", "-"), f"the labels of {data.name}"
            raise ConfigError(f"--{option} requires classes, but {labels} are numbers")
    if settings.label_smoothing and "loss" in functions:
        raise ConfigError(
            f"--label-smoothing is not supported with the custom loss of {custom[0][0]}"
        )
    count = len(settings.class_weights)
    if count not in (0, classes):
        there = f"{data.name} has {classes} classes"
        raise ConfigError(f"--class-weights has {count} numbers, but {there}")
    if classes is not None and settings.top_k >= classes:
        raise ConfigError(
            f"--top-k {settings.top_k}: must be less than the number of classes, {classes}"
        )
    objective = make_objective(settings, classes, functions)
    chosen = Task(settings, data, objective, custom, _preparation(settings.normalize, data))
    if not chosen.model_name.endswith(".py"):
        models.check_model(chosen.model_name, data.shape)
    if settings.augment != "none" and len(data.shape) != 3:
        raise ConfigError(
            f"--augment {settings.augment} requires images [height, width, channels], but --data "
            f"{settings.data} has the shape {list(data.shape)}"
        )
    return chosen


def _preparation(normalize: str, found: data.Data) -> Callable[[Any], Any]:
    """Return the function that turns features into model inputs."""
    if normalize == "none":
        return scaled
    deviation = None
    if normalize == "imagenet":
        if len(found.shape) != 3 or found.shape[2] != 3:
            raise ConfigError(
                "--normalize imagenet requires images with three color channels, but "
                f"{found.name} has the shape {list(found.shape)}"
            )
        mean, deviation = IMAGENET
    elif isinstance(found.train, ArraySplit):
        mean = found.train.mean()
    else:
        raise ConfigError(
            f"--normalize {normalize} requires data in memory, but {found.name} is read from "
            "files during training"
        )

    def prepare(features: Any) -> Any:
        centred = scaled(features) - tf.constant(mean, tf.float32)
        return centred if deviation is None else centred / tf.constant(deviation, tf.float32)

    return prepare
