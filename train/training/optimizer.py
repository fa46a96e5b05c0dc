"""The optimizer from the options or the user's file, and the schedule of its learning rate."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from . import models, user_module
from .settings import Settings
from .task import Task


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
    """Return an optimizer, built for ``model``, and the schedule of its learning rate.

    The optimizer is defined by the options or by the user's file. Raise ConfigError if the file
    cannot be used.
    """
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
