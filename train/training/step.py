"""The training step: the computation of one replica, and the update of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from . import keyed
from .models import decayed
from .task import Task


class TrainStep:
    """A training step of a task's model, which was built in the scope of a strategy.

    ``model`` maps features [n, ...] to outputs [n, ...]. ``optimizer`` was built for the model. A
    global batch is divided into ``shares`` equal parts, one for each replica.
    """

    def __init__(self, task: Task, model: Any, optimizer: Any, shares: int) -> None:
        self.task, self.model, self.optimizer = task, model, optimizer
        self._accumulate = task.settings.accumulate
        #: Number of calls that compute one global batch.
        self._calls = shares * self._accumulate
        self._scales_loss = hasattr(optimizer, "get_scaled_loss")
        self._compute = self._compute_part
        if task.settings.xla:
            self._compute = tf.function(self._compute_part, jit_compile=True)

    @property
    def names(self) -> list[str]:
        """Names of the sums that ``gradients`` returns: the loss, then the metrics."""
        return ["loss", *self.task.objective.metrics]

    @property
    def batch_norm_stats(self) -> list[Any]:
        """BatchNorm's variables, which differ between replicas and are replaced by their mean."""
        mean = tf.VariableAggregation.MEAN
        return [v for v in self.model.non_trainable_variables if v.aggregation == mean]

    def gradients(self, features: Any, labels: Any, keys: Any) -> tuple[list[Any], Any]:
        """Return a replica's gradients, float32 in the layers' order, and sums, float32 [names].

        Features and labels are [n, ...], keys uint32 [n, 2]. The gradients are those of the sum of
        the examples' losses divided by the *global* batch size. Therefore, the sum of all replicas'
        gradients is the gradient of the mean loss over the global batch. The sums of the loss and
        the metrics are divided in the same way. The results do not depend on whether the replica
        computes its share at once or in parts (--accumulate).
        """
        if self._accumulate == 1:
            return self._compute(features, labels, keys)
        return self._compute_in_parts(features, labels, keys)

    def apply(self, gradients: Sequence[Any]) -> None:
        """Update the weights with the float32 gradients of the whole global batch.

        The update depends only on the gradients and the state, so that equal replicas stay equal.
        """
        variables, settings = self.model.trainable_variables, self.task.settings
        if settings.clip_norm:
            gradients, _ = tf.clip_by_global_norm(gradients, settings.clip_norm)
        if settings.l2_penalty:
            kernels = {id(variable) for variable in decayed(self.model)}
            gradients = [
                g + settings.l2_penalty * tf.cast(v, g.dtype) if id(v) in kernels else g
                for g, v in zip(gradients, variables, strict=True)
            ]
        own = [tf.cast(g, v.dtype) for g, v in zip(gradients, variables, strict=True)]
        self.optimizer.apply_gradients(
            zip(own, variables, strict=True), skip_gradients_aggregation=True
        )

    def set_batch_norm_stats(self, values: Sequence[Any]) -> None:
        """Set the variables of ``batch_norm_stats``, in their order."""
        for variable, value in zip(self.batch_norm_stats, values, strict=True):
            variable.assign(value)

    def _compute_part(self, features: Any, labels: Any, keys: Any) -> tuple[list[Any], Any]:
        """Compute one part of a global batch, see ``gradients``."""
        objective, batch_size = self.task.objective, self.task.settings.batch_size
        with tf.GradientTape() as tape, keyed.keys_for_layers(keys):
            outputs = self.model(self.task.prepare(features), training=True)
            losses = tf.cast(objective.loss(labels, outputs), tf.float32)
            loss = self._with_own_losses(tf.reduce_sum(losses) / batch_size)
            target = self.optimizer.get_scaled_loss(loss) if self._scales_loss else loss
        metrics = [
            tf.reduce_sum(tf.cast(metric(labels, outputs), tf.float32)) / batch_size
            for metric in objective.metrics.values()
        ]
        return self._derive(tape, target), tf.stack([loss, *metrics])

    def _with_own_losses(self, loss: Any) -> Any:
        """Return ``loss`` plus this call's share of the model's own losses.

        These are from regularizers and add_loss. Each counts once per step, as in Keras' ``fit``.
        """
        for added in self.model.losses:
            loss += tf.reduce_mean(tf.cast(added, tf.float32)) / self._calls
        return loss

    def _derive(self, tape: Any, target: Any) -> list[Any]:
        """Return the gradients of a loss as float32, dense even for an embedding.

        Replicas exchange the gradients of all variables together. Therefore, the gradient of a
        variable that the loss does not depend on is zero, not None.
        """
        zero = tf.UnconnectedGradients.ZERO
        variables = self.model.trainable_variables
        gradients = tape.gradient(target, variables, unconnected_gradients=zero)
        if self._scales_loss:
            gradients = self.optimizer.get_unscaled_gradients(gradients)
        return [tf.cast(tf.convert_to_tensor(g), tf.float32) for g in gradients]

    def _compute_in_parts(self, features: Any, labels: Any, keys: Any) -> tuple[list[Any], Any]:
        """Compute equal parts of a batch one after another, so that only one part needs memory.

        BatchNorm's moving statistics are updated once. They become the mean over the parts, just as
        over replicas.
        """
        accumulate, size = self._accumulate, features.shape[0] // self._accumulate
        batch = features, labels, keys
        parts = [tf.reshape(all_, [accumulate, size, *all_.shape[1:]]) for all_ in batch]
        before = self._read_stats()

        def add_part(number: Any, *totals: Any) -> tuple[Any, ...]:
            self.set_batch_norm_stats(before)
            computed = self._compute(*(all_[number] for all_ in parts))
            new = *computed, self._read_stats()
            return (number + 1, *tf.nest.map_structure(tf.add, totals, new))

        zeros = [tf.zeros(v.shape) for v in self.model.trainable_variables]
        start = zeros, tf.zeros(len(self.names)), [tf.zeros_like(value) for value in before]
        _, gradients, sums, stats = tf.while_loop(
            lambda number, *_: number < accumulate,
            add_part,
            (tf.constant(0), *start),
            parallel_iterations=1,
        )
        self.set_batch_norm_stats([total / accumulate for total in stats])
        return gradients, sums

    def _read_stats(self) -> list[Any]:
        return [variable.read_value() for variable in self.batch_norm_stats]
