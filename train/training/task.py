"""What is learnt: the data, the network and the objective that the options name."""

from __future__ import annotations

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
    def steps_per_epoch(self) -> int:
        """The number of full global batches in the training set."""
        return self.data.train.size // self.settings.batch_size

    def build_model(self) -> Any:
        """Return the network, its first weights drawn by the seed.

        Raises:
            ConfigError: the user's module does not build a Keras 2 model.
        """
        settings, found = self.settings, self.data
        if not self.model_name.endswith(".py"):
            return models.build(
                self.model_name,
                found.shape,
                found.classes or 1,
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
        return model


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
        loss = getattr(user_module.load(settings.model), "loss", None)
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
