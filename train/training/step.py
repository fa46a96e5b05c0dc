"""The training step: gradients of a batch, exchanged, applied; many steps in one call.

A loop of our own rather than ``Model.fit``: two to three times faster with several ranks, one
exchange for all that the replicas must agree on, and steps that depend on their number alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from . import keyed, order
from .data import scaled
from .exchange import Exchange
from .models import decayed
from .objective import Objective
from .reports import Outcome

#: Seconds that a call into TensorFlow may take: a rank that is asked to end must come to the end of
#: one, and save, within signals.SAVE_WITHIN_S.
CALL_S = 2.0


@dataclass(frozen=True)
class Learner:
    """What learns: a model in a strategy, and how.

    Attributes:
        model: a Keras model from features [n, ...] to outputs [n, ...].
        optimizer: a Keras optimizer, built for the model.
        objective: the loss and the metrics.
        batch_size: the global batch size.
        replicas: those that share a global batch.
        accumulate: parts into which a replica divides its share.
        weight_decay: factor of the L2 penalty.
        clip_norm: what the global norm of the gradients is cut down to; 0 for never.
        xla: whether loss and gradients are compiled.
        prepare: makes the model's inputs of features as they are read.
    """

    model: Any
    optimizer: Any
    objective: Objective
    batch_size: int
    replicas: int = 1
    accumulate: int = 1
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    xla: bool = False
    prepare: Callable[[Any], Any] = scaled

    @property
    def names(self) -> list[str]:
        """The names of the sums that ``gradients`` gives: loss first, then the metrics."""
        return ["loss", *self.objective.metrics]

    @property
    def moving(self) -> list[Any]:
        """The variables of which each replica has its own, and all the mean: BatchNorm's."""
        mean = tf.VariableAggregation.MEAN
        return [v for v in self.model.non_trainable_variables if v.aggregation == mean]

    def make_gradients(self) -> Callable[[Any, Any, Any], tuple[list[Any], Any]]:
        """Return the function from features, labels, keys to a replica's gradients and sums.

        The gradients are those of the sum of the examples' losses over the *global* batch size:
        added up over the replicas, they are the gradient of the mean over the global batch. So
        are the sums, float32 of shape [names]. What the model itself adds to the loss
        (regularizers, ``add_loss``) counts once, as in Keras' ``fit``: each replica and each part
        adds its share.

        The parts are computed one after another, so that the memory of one is enough. BatchNorm's
        moving statistics change once, by the mean over the parts, as they do over replicas.
        """
        shares = self.replicas * self.accumulate

        def part(features: Any, labels: Any, keys: Any) -> tuple[list[Any], Any]:
            with tf.GradientTape() as tape, keyed.keys_for_layers(keys):
                outputs = self.model(self.prepare(features), training=True)
                losses = tf.cast(self.objective.loss(labels, outputs), tf.float32)
                loss = tf.reduce_sum(losses) / self.batch_size
                for added in self.model.losses:
                    loss += tf.reduce_mean(tf.cast(added, tf.float32)) / shares
                target = loss
                if hasattr(self.optimizer, "get_scaled_loss"):
                    target = self.optimizer.get_scaled_loss(loss)
            variables = self.model.trainable_variables
            gradients = tape.gradient(
                target, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
            )
            if target is not loss:
                gradients = self.optimizer.get_unscaled_gradients(gradients)
            metrics = [
                tf.reduce_sum(tf.cast(metric(labels, outputs), tf.float32)) / self.batch_size
                for metric in self.objective.metrics.values()
            ]
            # Dense ones, also of an embedding, and of one type: they travel together.
            dense = [tf.cast(tf.convert_to_tensor(g), tf.float32) for g in gradients]
            return dense, tf.stack([loss, *metrics])

        if self.xla:
            part = tf.function(part, jit_compile=True)

        def gradients(features: Any, labels: Any, keys: Any) -> tuple[list[Any], Any]:
            if self.accumulate == 1:
                return part(features, labels, keys)
            size = features.shape[0] // self.accumulate
            batch = features, labels, keys
            parts = [tf.reshape(all_, [self.accumulate, size, *all_.shape[1:]]) for all_ in batch]
            before = [variable.read_value() for variable in self.moving]

            def add(number: Any, gradients: Any, sums: Any, moved: Any) -> tuple[Any, ...]:
                for variable, value in zip(self.moving, before, strict=True):
                    variable.assign(value)
                new, new_sums = part(*(all_[number] for all_ in parts))
                moves = [variable.read_value() for variable in self.moving]
                return (
                    number + 1,
                    [a + b for a, b in zip(gradients, new, strict=True)],
                    sums + new_sums,
                    [a + b for a, b in zip(moved, moves, strict=True)],
                )

            _, gradients, sums, moved = tf.while_loop(
                lambda number, *_: number < self.accumulate,
                add,
                (
                    tf.constant(0),
                    [tf.zeros(v.shape) for v in self.model.trainable_variables],
                    tf.zeros(len(self.names)),
                    [tf.zeros_like(value) for value in before],
                ),
                parallel_iterations=1,
            )
            for variable, total in zip(self.moving, moved, strict=True):
                variable.assign(total / self.accumulate)
            return gradients, sums

        return gradients

    def apply(self, gradients: Sequence[Any]) -> None:
        """Change the weights by the gradients of the whole global batch, float32."""
        variables = self.model.trainable_variables
        if self.clip_norm:
            gradients, _ = tf.clip_by_global_norm(gradients, self.clip_norm)
        if self.weight_decay:
            kernels = {id(variable) for variable in decayed(self.model)}
            gradients = [
                g + self.weight_decay * tf.cast(v, g.dtype) if id(v) in kernels else g
                for g, v in zip(gradients, variables, strict=True)
            ]
        own = [tf.cast(g, v.dtype) for g, v in zip(gradients, variables, strict=True)]
        self.optimizer.apply_gradients(
            zip(own, variables, strict=True), skip_gradients_aggregation=True
        )


class Execution:
    """Makes steps of a learner on the replicas of a synchronous strategy.

    Args:
        strategy: the strategy in whose scope the learner's model and optimizer were made.
        learner: what learns.
        source: of the replicas' shares of the global batches.
        exchange: adds up the replicas' gradients.
        limit: how many steps are made at once at most.
        is_chief: whether this rank's clock counts.
        timed: whether the parts of a step's time are taken; TensorFlow has no clock for that where
            its operations must be deterministic.
    """

    def __init__(
        self,
        strategy: Any,
        learner: Learner,
        source: order.Stream | order.Fetch,
        exchange: Exchange,
        limit: int,
        is_chief: bool,
        timed: bool,
    ) -> None:
        self._limit, self._is_chief = limit, is_chief
        self._traced = False  # the first call takes most of its time to compile
        self._step_s = self._agreed_s = 0.0
        self._timed = timed
        self._names = learner.names
        self._source, self._exchange = source, exchange
        self._iterator = source.iterator if isinstance(source, order.Stream) else None
        self._strategy = strategy
        # Nothing here needs AutoGraph, which takes most of the time until the first step.
        self._compiled = tf.function(self._steps(learner), autograph=False)

    @property
    def most_steps(self) -> int:
        """How many steps to make at once at most: the same in all ranks, see CALL_S."""
        return steps_within(CALL_S, self._agreed_s, self._limit)

    def __call__(self, step: int, count: int, *, asked: bool, due: bool) -> Outcome:
        """Make ``count`` steps after ``step``; all ranks must call it with the same numbers.

        Args:
            asked: whether this rank was asked to end.
            due: whether this rank, if it is the chief, wants a checkpoint.

        Raises:
            tf.errors.OpError: another rank has ended.
        """
        began, own_s = time.perf_counter(), self._step_s if self._is_chief else 0.0
        # As tensors: a Python number would be compiled anew for each value.
        totals, times = self._compiled(
            self._iterator,
            tf.constant(step, tf.int64),
            tf.constant(count, tf.int64),
            tf.constant([float(asked), float(due), own_s], tf.float64),
        )
        *sums, told_to_end, wants_checkpoint, self._agreed_s = totals.numpy().tolist()
        if self._traced:
            self._step_s = (time.perf_counter() - began) / count
        self._traced = True
        input_s, exchange_s = times.numpy().tolist() if self._timed else (None, None)
        return Outcome(
            count,
            dict(zip(self._names, sums, strict=True)),
            asked=round(told_to_end),
            due=wants_checkpoint > 0,
            input_s=input_s,
            exchange_s=exchange_s,
        )

    def _steps(self, learner: Learner) -> Callable[[Any, Any, Any, Any], Any]:
        strategy, source, exchange = self._strategy, self._source, self._exchange
        width = len(learner.names)
        local = len(strategy.extended.worker_devices)  # replicas in this process
        timed = self._timed

        def now() -> Any:
            return tf.timestamp() if timed else tf.constant(0.0, tf.float64)

        gradients_of, moving = learner.make_gradients(), learner.moving
        with strategy.scope():
            # Each replica has its own sums, so that they are exchanged once in a call. A float64
            # adds float32 with next to no rounding: how many steps a call has does not matter.
            sums, times = (
                tf.Variable(
                    tf.zeros(size, tf.float64),
                    trainable=False,
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation.SUM,
                )
                for size in (width, 2)
            )

        def step(batch: Any, began: Any, waited: Any, number: Any) -> None:
            context = tf.distribute.get_replica_context()
            if isinstance(source, order.Fetch):
                batch = source.fetch(number, context.replica_id_in_sync_group)
                with after(batch):
                    waited = now() - began
            gradients, values = gradients_of(*batch)
            with after(on_host(gradients) if timed else []):
                ready = now()
            # BatchNorm's moving statistics travel along: they are the same everywhere after every
            # step, as the weights are.
            own = [variable.read_value() / strategy.num_replicas_in_sync for variable in moving]
            shared = exchange(gradients, own)
            with after(on_host(shared) if timed else []):
                exchanged = now()
            learner.apply(shared[: len(gradients)])
            for variable, value in zip(moving, shared[len(gradients) :], strict=True):
                variable.assign(value)
            sums.assign_add(tf.cast(values, tf.float64))
            times.assign_add([waited, exchanged - ready])

        def take(flags: Any) -> tuple[Any, Any]:
            values, spent = sums.read_value(), times.read_value()
            with tf.control_dependencies([values, spent]):
                sums.assign(tf.zeros_like(values))
                times.assign(tf.zeros_like(spent))
            # The first replica of a rank speaks for it.
            context = tf.distribute.get_replica_context()
            speaks = tf.equal(context.replica_id_in_sync_group % local, 0)
            flags = flags * tf.cast(speaks, tf.float64)
            total = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.concat([values, flags], 0))
            return total, tf.identity(spent)

        def steps(iterator: Any, first: Any, count: Any, flags: Any) -> tuple[Any, Any]:
            def one(number: Any) -> tuple[Any]:
                began = now()
                batch, waited = None, None
                if iterator is not None:
                    with tf.control_dependencies([began]):
                        batch = next(iterator)
                    with after(batch):
                        waited = now() - began
                strategy.run(step, args=(batch, began, waited, number))
                return (number + 1,)

            tf.while_loop(lambda number: number < first + count, one, (first,))
            totals, times = strategy.run(take, args=(flags,))
            own = strategy.experimental_local_results
            return own(totals)[0], own(times)[0]

        return steps


def on_host(values: Sequence[Any]) -> Any:
    """Return a tensor of the host that is there once all values are, on whatever device.

    A GPU lets operations begin when the work before them is queued; a copy to the host waits.
    """
    with after(values):
        one = tf.identity(tf.reshape(values[0], [-1])[:1])
    with tf.device("CPU:0"):
        return tf.identity(one)


def steps_within(seconds: float, step_s: float, limit: int) -> int:
    """Return how many steps of ``step_s`` fit into some seconds, 1 to ``limit``; 1 of unknown."""
    return min(limit, max(1, int(seconds / step_s))) if step_s else 1


@contextmanager
def after(values: Any) -> Iterator[None]:
    """Have the operations made within wait for all tensors in ``values``, of any replica."""
    tensors = tf.nest.flatten(values, expand_composites=True)
    with tf.control_dependencies(tensors):
        yield
