"""What is learned, and how: the data, network, objective and optimizer that the options select."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from . import data, models, user_module
from .cluster import ConfigError
from .data import files, published, synthetic
from .data.arrays import ArraySplit, from_arrays, open_npz, scaled
from .settings import Settings
from .user_module import PerExample

#: Networks of ``--model auto`` by data set; for others, the features' shape decides.
FITTING = {"digits": "digits-cnn", "mnist": "mnist-cnn", "fashion-mnist": "mnist-cnn"}

#: Means and standard deviations of red, green and blue over ImageNet's training set.
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Objective:
    """The training and test losses of an example, and its metrics by name."""

    loss: PerExample
    test_loss: PerExample
    metrics: Mapping[str, PerExample]


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
        """Return the network, with initial weights from the seed; --precision is set in Keras."""
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
        """Raise ConfigError if the outputs or the loss of the user's module cannot be right."""
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
                    f"{path}: {name}(labels, outputs) gives {given}, not a float for each example: "
                    "take no mean over the batch"
                )
        if "loss" in [name for _, name, _ in self.own]:
            return
        if shape is not None and (len(shape) < 2 or math.prod(shape[1:]) != self.outputs):
            wanted = f"{self.outputs} classes" if self.data.classes else f"labels {labels}"
            raise ConfigError(
                f"{self.model_name}: build_model() gave a model with outputs {list(shape)}, and "
                f"the data have {wanted}"
            )


def open_data(settings: Settings) -> data.Data:
    """Return the data that the options select; raise ConfigError if that fails."""
    name, folder, download = settings.data, settings.data_dir, settings.download
    if name.endswith(".py"):
        pair = user_module.call(name, "build_dataset", seed=settings.seed, folder=folder)
        if not isinstance(pair, tuple) or len(pair) != 2:
            wanted = "a pair, what to train on and what to test on"
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
        name = name.removeprefix(files.TFDS)
        return files.open_tfds(name, folder, download=download, image_size=settings.image_size)
    if not folder.exists():
        raise data.DataError(f"{name}: there is no {folder.absolute()}, which --data-dir names")
    if name == "npz":
        return open_npz(folder)
    if name == "images":
        return files.open_images(folder, settings.image_size)
    return files.open_tfrecords(folder, settings.image_size)


def open_task(settings: Settings) -> Task:
    """Return the task of the options and the user's files; raise ConfigError if that fails."""
    found = open_data(settings)
    if settings.batch_size > found.train.size:
        raise ConfigError(
            f"--batch-size {settings.batch_size} is more than the {found.train.size} examples of "
            f"--data {settings.data}: that is the limit"
        )
    own = user_module.losses_and_metrics(settings.model, settings.data)
    functions, classes = {name: function for _, name, function in own}, found.classes
    for name in ("label_smoothing", "class_weights", "top_k"):
        if classes is None and getattr(settings, name):
            option, labels = name.replace("_", "-"), f"the labels of {found.name}"
            raise ConfigError(f"--{option} is for classes, and {labels} are numbers")
    if settings.label_smoothing and "loss" in functions:
        raise ConfigError(f"--label-smoothing is not for a loss of your own, that of {own[0][0]}")
    count = len(settings.class_weights)
    if count not in (0, classes):
        there = f"{found.name} {classes} classes"
        raise ConfigError(f"--class-weights has {count} numbers, and {there}")
    if classes is not None and settings.top_k >= classes:
        raise ConfigError(f"--top-k {settings.top_k}: there are {classes} classes, take fewer")
    objective = make_objective(settings, classes, functions)
    chosen = Task(settings, found, objective, own, _preparation(settings.normalize, found))
    if not chosen.model_name.endswith(".py"):
        models.check_model(chosen.model_name, found.shape)
    if settings.augment != "none" and len(found.shape) != 3:
        raise ConfigError(
            f"--augment {settings.augment} is for images [height, width, channels], and --data "
            f"{settings.data} has the shape {list(found.shape)}"
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
                f"--normalize imagenet is for images of three colours, and {found.name} has the "
                f"shape {list(found.shape)}"
            )
        mean, deviation = IMAGENET
    elif isinstance(found.train, ArraySplit):
        mean = found.train.mean()
    else:
        raise ConfigError(f"--normalize {normalize}: {found.name} is not read into memory")

    def prepare(features: Any) -> Any:
        centred = scaled(features) - tf.constant(mean, tf.float32)
        return centred if deviation is None else centred / tf.constant(deviation, tf.float32)

    return prepare


# ---------------------------------------------------------------------------------- objective


def make_objective(
    settings: Settings, classes: int | None, functions: Mapping[str, PerExample]
) -> Objective:
    """Return cross-entropy and accuracy for ``classes``; squared and absolute error for None.

    Labels are int64 [n] and outputs logits [n, classes], or both are numbers. ``functions`` are the
    user's: another ``loss``, and further metrics by name.
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


# ---------------------------------------------------------------------------------- optimizer


class Schedule(tf.keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """A linear warm-up, then a constant rate, drops at milestones, or half a cosine to 0."""

    def __init__(self, settings: Settings, total_steps: int) -> None:
        super().__init__()
        self._settings, self._total_steps = settings, total_steps

    def __call__(self, step: Any) -> Any:
        """Return the rate of ``step``, which counts from 0: a float32 scalar."""
        step, settings = tf.cast(step, tf.float32), self._settings
        warmup = settings.warmup_steps
        factor = tf.constant(1.0)
        if settings.schedule == "cosine":
            length = max(1, self._total_steps - warmup)
            part = tf.clip_by_value((step - warmup) / length, 0.0, 1.0)
            factor = 0.5 * (1.0 + tf.cos(math.pi * part))
        for milestone in settings.milestones:
            factor = tf.where(step >= milestone, factor * settings.decay, factor)
        if warmup:
            factor = tf.where(step < warmup, (step + 1.0) / warmup, factor)
        return settings.scaled_rate * factor

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments, which Keras needs to copy an optimizer."""
        return {"settings": self._settings, "total_steps": self._total_steps}


def make_optimizer(task: Task, model: Any) -> tuple[Any, Schedule]:
    """Return the optimizer of the options or the user's file, built for a model, and its rate."""
    settings = task.settings
    rate = Schedule(settings, settings.epochs * task.steps_per_epoch)
    path = user_module.which("build_optimizer", settings.model, settings.data)
    if path:
        wanted = tf.keras.optimizers.Optimizer, "tf.keras.optimizers.Optimizer"
        optimizer = user_module.make(path, "build_optimizer", *wanted, learning_rate=rate)
    elif settings.optimizer == "adam":
        optimizer = tf.keras.optimizers.Adam(rate)
    elif settings.optimizer == "adamw":
        optimizer = tf.keras.optimizers.AdamW(rate, weight_decay=settings.weight_decay)
        kernels = {id(variable) for variable in models.decayed(model)}
        others = [v for v in model.trainable_variables if id(v) not in kernels]
        optimizer.exclude_from_weight_decay(others)
    else:
        optimizer = tf.keras.optimizers.SGD(rate, momentum=settings.momentum)
    if settings.ema:
        optimizer.use_ema, optimizer.ema_momentum = True, settings.ema
    if settings.precision == "float16" and not hasattr(optimizer, "inner_optimizer"):
        # Many gradients are too small for float16.
        optimizer = tf.keras.mixed_precision.LossScaleOptimizer(optimizer)
    optimizer.build(model.trainable_variables)
    return optimizer, rate
