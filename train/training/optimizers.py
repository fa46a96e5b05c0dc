"""Optimizers and learning rates; the rate is a function of the step alone."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from .models import decayed
from .settings import Settings
from .task import Task


class Schedule(tf.keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """A linear warm-up, then a constant rate, a fall at milestones or half a cosine to 0.

    Args:
        rate: after the warm-up.
        kind: ``constant``, ``cosine`` or ``steps``.
        warmup_steps: in the first of them the rate is ``rate / warmup_steps``.
        total_steps: where the cosine ends.
        milestones: steps before which the rate is as it was, and from which it has fallen.
        decay: the factor at each of them.
    """

    def __init__(
        self,
        rate: float,
        kind: str,
        warmup_steps: int,
        total_steps: int,
        milestones: tuple[int, ...],
        decay: float,
    ) -> None:
        super().__init__()
        self._kind = kind
        self._numbers: dict[str, Any] = {
            "rate": rate,
            "warmup_steps": warmup_steps,
            "total_steps": total_steps,
            "milestones": tuple(milestones),
            "decay": decay,
        }

    def __call__(self, step: Any) -> Any:
        """Return the rate of ``step``, which counts from 0: float32, a scalar."""
        step = tf.cast(step, tf.float32)
        numbers = self._numbers
        warmup = numbers["warmup_steps"]
        factor = tf.constant(1.0)
        if self._kind == "cosine":
            length = max(1, numbers["total_steps"] - warmup)
            part = tf.clip_by_value((step - warmup) / length, 0.0, 1.0)
            factor = 0.5 * (1.0 + tf.cos(math.pi * part))
        for milestone in numbers["milestones"]:
            factor = tf.where(step >= milestone, factor * numbers["decay"], factor)
        if warmup:
            factor = tf.where(step < warmup, (step + 1.0) / warmup, factor)
        return numbers["rate"] * factor

    def get_config(self) -> dict[str, Any]:
        """Return the arguments, for Keras to save."""
        return {"kind": self._kind, **self._numbers}


def make_optimizer(settings: Settings, task: Task, model: Any) -> tuple[Any, Schedule]:
    """Return the Keras optimizer, built for a model, that the options or the user's file ask for.

    And its learning rate.

    Raises:
        ConfigError: the user's file builds none.
    """
    rate = Schedule(
        settings.scaled_rate,
        settings.schedule,
        settings.warmup_steps,
        settings.epochs * task.steps_per_epoch,
        settings.milestones,
        settings.decay,
    )
    optimizer = task.build_optimizer(rate)
    if optimizer is not None:
        pass
    elif settings.optimizer == "adam":
        optimizer = tf.keras.optimizers.Adam(rate)
    elif settings.optimizer == "adamw":
        optimizer = tf.keras.optimizers.AdamW(rate, weight_decay=settings.weight_decay)
        kernels = {id(variable) for variable in decayed(model)}
        optimizer.exclude_from_weight_decay(
            [variable for variable in model.trainable_variables if id(variable) not in kernels]
        )
    else:
        optimizer = tf.keras.optimizers.SGD(rate, momentum=settings.momentum)
    if settings.ema:
        optimizer.use_ema, optimizer.ema_momentum = True, settings.ema
    if settings.precision == "float16" and not hasattr(optimizer, "inner_optimizer"):
        # The least float16 is too large for many gradients.
        optimizer = tf.keras.mixed_precision.LossScaleOptimizer(optimizer)
    optimizer.build(model.trainable_variables)
    return optimizer, rate
