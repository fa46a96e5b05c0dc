"""What is learnt: the data, the network and the objective that the options name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from . import data, models, user_module
from .cluster import ConfigError
from .objective import Objective, make_objective
from .settings import Settings

#: The network that ``--model auto`` takes for a data set; for others, by the features' shape.
FITTING = {"digits": "digits-cnn", "mnist": "mnist-cnn", "fashion-mnist": "mnist-cnn"}


@dataclass(frozen=True)
class Task:
    """What a run learns.

    Attributes:
        settings: the options.
        data: the examples.
        objective: the loss and the metrics.
    """

    settings: Settings
    data: data.Data
    objective: Objective

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
        if not self.model_name.endswith(".py"):
            return models.build(
                self.model_name,
                found.shape,
                self.outputs,
                settings.seed,
                sync_batch_norm=settings.sync_batch_norm,
                dropout=settings.dropout,
            )
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

    def _check(self, model: Any) -> None:
        """Raise ConfigError where the outputs or the loss of the user's module cannot be right.

        Both would train: TensorFlow broadcasts, and takes a mean for each of its examples.
        """
        # A model of a class of its own does not know its outputs' shape.
        shape = getattr(model, "output_shape", None)
        loss = user_module.loss(self.model_name)
        labels = [None, *self.data.label_shape]
        if loss is not None:
            of_labels = tf.int64 if self.data.classes else tf.float32
            given = tf.function(loss).get_concrete_function(
                tf.TensorSpec(labels, of_labels), tf.TensorSpec(shape, tf.float32)
            )
            rank = given.output_shapes.rank
            if rank not in (None, 1):
                raise ConfigError(
                    f"{self.model_name}: loss(labels, outputs) gives {given.output_shapes}, not a "
                    "float for each example: take no mean over the batch"
                )
        elif shape is not None and (len(shape) < 2 or math.prod(shape[1:]) != self.outputs):
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
    chosen = Task(settings, found, make_objective(found.classes))
    if not chosen.model_name.endswith(".py"):
        models.check_model(chosen.model_name, found.shape)
    if settings.augment != "none" and len(found.shape) != 3:
        raise ConfigError(
            f"--augment {settings.augment} is for images [height, width, channels], and --data "
            f"{settings.data} has the shape {list(found.shape)}"
        )
    loss = None
    if settings.model.endswith(".py"):
        loss = user_module.loss(settings.model)
    return Task(settings, found, make_objective(found.classes, loss))


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
