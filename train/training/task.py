"""What is learnt: the data, the network and the objective that the options name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from . import data, models, user_module
from .cluster import ConfigError
from .data import scaled
from .objective import Objective, make_objective
from .settings import Settings
from .user_module import PerExample

#: The network that ``--model auto`` takes for a data set; for others, by the features' shape.
FITTING = {"digits": "digits-cnn", "mnist": "mnist-cnn", "fashion-mnist": "mnist-cnn"}

#: Means and standard deviations of red, green and blue over ImageNet's training set.
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Task:
    """What a run learns.

    Attributes:
        settings: the options.
        data: the examples.
        objective: the losses and the metrics.
        loss_file: the user's file that has the loss; empty where none has.
        metrics_file: the one that has metrics.
        prepare: makes the model's inputs of features as they are read: scales, normalises.
    """

    settings: Settings
    data: data.Data
    objective: Objective
    loss_file: str = ""
    metrics_file: str = ""
    prepare: Callable[[Any], Any] = scaled

    @property
    def model_name(self) -> str:
        """The network's name, or the user's file."""
        if self.settings.model != "auto":
            return self.settings.model
        if self.settings.data in FITTING:
            return FITTING[self.settings.data]
        return "resnet20" if self.data.shape == (32, 32, 3) else "linear"

    @property
    def outputs(self) -> int:
        """How many numbers the network gives for an example: for each class, or for the label."""
        return self.data.classes or math.prod(self.data.label_shape)

    @property
    def steps_per_epoch(self) -> int:
        """The number of full global batches in the training set."""
        return self.data.train.size // self.settings.batch_size

    def build_model(self) -> Any:
        """Return the network, its first weights drawn by the seed.

        Raises:
            ConfigError: the user's module does not build a Keras 2 model, or one that does not fit
                the data or the module's loss.
        """
        settings, found = self.settings, self.data
        # So that a twin's layers have the names of the model's: Keras numbers them.
        tf.keras.backend.reset_uids()
        if not self.model_name.endswith(".py"):
            model = models.build(
                self.model_name,
                found.shape,
                self.outputs,
                settings.seed,
                sync_batch_norm=settings.sync_batch_norm,
                dropout=settings.dropout,
            )
            self._check(model)
            return model
        tf.keras.utils.set_random_seed(settings.seed)
        model = user_module.call(
            self.model_name,
            "build_model",
            shape=found.shape,
            classes=found.classes,
            seed=settings.seed,
            folder=settings.data_dir,
        )
        if not isinstance(model, tf.keras.Model):
            raise ConfigError(
                f"{self.model_name}: build_model() gave {type(model).__module__}."
                f"{type(model).__name__}, not a tf.keras.Model of Keras 2"
            )
        if not model.built:
            model.build((None, *found.shape))
        self._check(model)
        return model

    def build_optimizer(self, rate: Any) -> Any:
        """Return the user's own optimizer; None where --optimizer holds.

        Args:
            rate: a Keras learning rate schedule.

        Raises:
            ConfigError: the user's module builds no Keras 2 optimizer.
        """
        path = user_module.which("build_optimizer", self.settings.model, self.settings.data)
        if not path:
            return None
        optimizer = user_module.call(path, "build_optimizer", learning_rate=rate)
        if not isinstance(optimizer, tf.keras.optimizers.Optimizer):
            raise ConfigError(
                f"{path}: build_optimizer() gave {type(optimizer).__module__}."
                f"{type(optimizer).__name__}, not a tf.keras.optimizers.Optimizer of Keras 2"
            )
        return optimizer

    def _of_user(self) -> Iterator[tuple[str, str, PerExample]]:
        """Yield the user's own loss and metrics, each with its file and name."""
        if self.loss_file:
            yield self.loss_file, "loss", user_module.loss(self.loss_file)
        if self.metrics_file:
            for name, metric in user_module.metrics(self.metrics_file).items():
                yield self.metrics_file, name, metric

    def _check(self, model: Any) -> None:
        """Raise ConfigError where the outputs or the loss of the user's module cannot be right.

        Both would train: TensorFlow broadcasts, and takes a mean for each of its examples.
        """
        # A model of a class of its own does not know its outputs' shape.
        shape = getattr(model, "output_shape", None)
        if shape is None and (self.loss_file or self.metrics_file):
            inputs = tf.TensorSpec([None, *self.data.shape], tf.float32)
            shape = tf.function(model).get_concrete_function(inputs).output_shapes
        labels = [None, *self.data.label_shape]
        for path, name, function in self._of_user():
            of_labels = tf.int64 if self.data.classes else tf.float32
            given = tf.function(function).get_concrete_function(
                tf.TensorSpec(labels, of_labels), tf.TensorSpec(shape, tf.float32)
            )
            rank = given.output_shapes.rank
            if rank not in (None, 1):
                raise ConfigError(
                    f"{path}: {name}(labels, outputs) gives {given.output_shapes}, not a "
                    "float for each example: take no mean over the batch"
                )
        if self.loss_file:
            return
        if shape is not None and (len(shape) < 2 or math.prod(shape[1:]) != self.outputs):
            wanted = f"{self.outputs} classes" if self.data.classes else f"labels {labels}"
            raise ConfigError(
                f"{self.model_name}: build_model() gave a model with outputs {list(shape)}, and "
                f"the data have {wanted}"
            )


def open_task(settings: Settings) -> Task:
    """Return what the options name, its data looked up.

    Raises:
        ConfigError: the data are missing or damaged, the batch is larger than the training set, or
            the data do not fit the options.
    """
    if settings.data.endswith(".py"):
        train, test = _pair(settings)
        found = data.from_arrays(settings.data, train, test)
    else:
        found = data.open_data(
            settings.data,
            settings.data_dir,
            download=settings.download,
            image_size=settings.image_size,
            seed=settings.seed,
            examples=settings.examples,
        )
    if settings.batch_size > found.train.size:
        raise ConfigError(
            f"--batch-size {settings.batch_size} is more than the {found.train.size} examples of "
            f"--data {settings.data}: that is the limit"
        )
    chosen = _task(settings, found)
    if not chosen.model_name.endswith(".py"):
        models.check_model(chosen.model_name, found.shape)
    if settings.augment != "none" and len(found.shape) != 3:
        raise ConfigError(
            f"--augment {settings.augment} is for images [height, width, channels], and --data "
            f"{settings.data} has the shape {list(found.shape)}"
        )
    return chosen


def _task(settings: Settings, found: data.Data) -> Task:
    """Return the task of some data, with the objective that options and user's files name.

    Raises:
        ConfigError: they do not fit each other.
    """
    files = settings.model, settings.data
    loss_file, metrics_file = (user_module.which(name, *files) for name in ("loss", "metrics"))
    loss = user_module.loss(loss_file) if loss_file else None
    metrics = user_module.metrics(metrics_file) if metrics_file else None
    classes = found.classes
    of_classes = {
        "--label-smoothing": settings.label_smoothing,
        "--class-weights": settings.class_weights,
        "--top-k": settings.top_k,
    }
    for option, value in of_classes.items():
        if value and classes is None:
            raise ConfigError(
                f"{option} is for classes, and the labels of {found.name} are numbers"
            )
    if settings.label_smoothing and loss is not None:
        raise ConfigError(f"--label-smoothing is not for a loss of your own, that of {loss_file}")
    if settings.class_weights and len(settings.class_weights) != classes:
        raise ConfigError(
            f"--class-weights has {len(settings.class_weights)} numbers, and {found.name} "
            f"{classes} classes"
        )
    if classes is not None and settings.top_k >= classes:
        raise ConfigError(f"--top-k {settings.top_k}: there are {classes} classes, take fewer")
    objective = make_objective(
        classes,
        loss,
        metrics,
        smoothing=settings.label_smoothing,
        weights=settings.class_weights,
        top_k=settings.top_k,
    )
    prepare = _preparation(settings.normalize, found)
    return Task(settings, found, objective, loss_file, metrics_file, prepare)


def _preparation(normalize: str, found: data.Data) -> Callable[[Any], Any]:
    """Return what makes the model's inputs of features as they are read.

    Raises:
        ConfigError: the data cannot be normalised so.
    """
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
    elif isinstance(found.train, data.ArraySplit):
        mean = found.train.mean()
    else:
        raise ConfigError(f"--normalize {normalize}: {found.name} is not read into memory")

    def prepare(features: Any) -> Any:
        centred = scaled(features) - tf.constant(mean, tf.float32)
        return centred if deviation is None else centred / tf.constant(deviation, tf.float32)

    return prepare


def _pair(settings: Settings) -> tuple[Any, Any]:
    result = user_module.call(
        settings.data, "build_dataset", seed=settings.seed, folder=settings.data_dir
    )
    if not isinstance(result, tuple) or len(result) != 2:
        raise ConfigError(
            f"{settings.data}: build_dataset() must return a pair, what to train on and what to "
            "test on"
        )
    return result
