"""The training step: compute, exchange and apply a batch's gradients; many steps per call.

A custom loop is two to three times faster than ``Model.fit`` with several ranks. It needs one
exchange for everything that replicas agree on, and steps depend only on their number.

Between workers, gradients of a large network travel in packs, the last layers first, each as soon
as the backward pass has computed it. Those of a small one travel together after it: there is
nothing to gain, and undisturbed replicas wait less for each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import collective_ops

from . import keyed
from .models import decayed
from .task import Task

#: Maximum seconds of a call into TensorFlow. A rank that is asked to end must finish its call and
#: save a checkpoint within signals.SAVE_WITHIN_S.
CALL_S = 2.0
#: Bytes of a pack; TensorFlow's ring is slower with much smaller or larger packs.
PACK_BYTES = 8 * 2**20
#: First key of the collectives made here; TensorFlow counts its own from 1.
_KEYS = 1_000_000_000


@dataclass(frozen=True)
class Outcome:
    """The results of steps made together."""

    steps: int
    #: Sums over the steps of ``loss`` and the metrics by name. Each addend is the mean over a
    #: global batch. They are the same in all ranks.
    sums: dict[str, float]
    #: Number of ranks that were asked to end (with parameter servers, only the chief counts).
    asked: int = 0
    #: Whether a checkpoint is due by the chief's clock.
    due: bool = False
    #: Seconds that this rank waited for its examples; None if not measured.
    input_s: float | None = None
    #: Seconds between this rank's gradients and the sum of all: the exchange and the wait for
    #: slower ranks; None if not measured.
    exchange_s: float | None = None

    @property
    def loss(self) -> float:
        """The mean loss of these steps."""
        return self.sums["loss"] / self.steps

    @property
    def metrics(self) -> dict[str, float]:
        """The means of the metrics."""
        return {name: s / self.steps for name, s in self.sums.items() if name != "loss"}


@dataclass(frozen=True)
class TrainStep:
    """A training step: a model, built in a strategy, learns a task."""

    task: Task
    #: Maps features [n, ...] to outputs [n, ...].
    model: Any
    #: Built for the model.
    optimizer: Any
    #: Number of parts that a global batch is divided into.
    shares: int

    @property
    def names(self) -> list[str]:
        """Names of the sums that ``gradients`` returns: the loss, then the metrics."""
        return ["loss", *self.task.objective.metrics]

    @property
    def moving(self) -> list[Any]:
        """BatchNorm's variables, which differ between replicas and are replaced by their mean."""
        mean = tf.VariableAggregation.MEAN
        return [v for v in self.model.non_trainable_variables if v.aggregation == mean]

    def make_gradients(self) -> Callable[[Any, Any, Any], tuple[list[Any], Any]]:
        """Return a function from features, labels and keys to a replica's gradients and sums.

        The gradients are those of the sum of the examples' losses divided by the *global* batch
        size, so that adding up the replicas gives the gradient of the mean over the global batch.
        The same applies to the sums, float32 of shape [names].
        """
        settings, objective = self.task.settings, self.task.objective
        accumulate, shares = settings.accumulate, self.shares * settings.accumulate
        scales = hasattr(self.optimizer, "get_scaled_loss")

        def part(features: Any, labels: Any, keys: Any) -> tuple[list[Any], Any]:
            with tf.GradientTape() as tape, keyed.keys_for_layers(keys):
                outputs = self.model(self.task.prepare(features), training=True)
                losses = tf.cast(objective.loss(labels, outputs), tf.float32)
                loss = tf.reduce_sum(losses) / settings.batch_size
                # Losses of the model itself (regularizers, add_loss) count once, as in Keras' fit:
                # each replica and each part adds its share.
                for added in self.model.losses:
                    loss += tf.reduce_mean(tf.cast(added, tf.float32)) / shares
                target = self.optimizer.get_scaled_loss(loss) if scales else loss
            zero = tf.UnconnectedGradients.ZERO
            variables = self.model.trainable_variables
            gradients = tape.gradient(target, variables, unconnected_gradients=zero)
            if scales:
                gradients = self.optimizer.get_unscaled_gradients(gradients)
            metrics = [
                tf.reduce_sum(tf.cast(metric(labels, outputs), tf.float32)) / settings.batch_size
                for metric in objective.metrics.values()
            ]
            # Make all dense, also an embedding's, and of one type, because they travel together.
            dense = [tf.cast(tf.convert_to_tensor(g), tf.float32) for g in gradients]
            return dense, tf.stack([loss, *metrics])

        if settings.xla:
            part = tf.function(part, jit_compile=True)

        def gradients(features: Any, labels: Any, keys: Any) -> tuple[list[Any], Any]:
            if accumulate == 1:
                return part(features, labels, keys)
            size = features.shape[0] // accumulate
            batch = features, labels, keys
            parts = [tf.reshape(all_, [accumulate, size, *all_.shape[1:]]) for all_ in batch]
            # BatchNorm's moving statistics change once, by the mean over the parts, as they do over
            # replicas.
            before = [variable.read_value() for variable in self.moving]

            def add(number: Any, gradients: Any, sums: Any, moved: Any) -> tuple[Any, ...]:
                for variable, value in zip(self.moving, before, strict=True):
                    variable.assign(value)
                new, new_sums = part(*(all_[number] for all_ in parts))
                moves = [variable.read_value() for variable in self.moving]
                totals, more = (gradients, sums, moved), (new, new_sums, moves)
                return (number + 1, *tf.nest.map_structure(tf.add, totals, more))

            zeros = [tf.zeros(v.shape) for v in self.model.trainable_variables]
            unmoved = [tf.zeros_like(value) for value in before]
            start = tf.constant(0), zeros, tf.zeros(len(self.names)), unmoved
            # One after another, so that only one part needs memory.
            _, gradients, sums, moved = tf.while_loop(
                lambda number, *_: number < accumulate, add, start, parallel_iterations=1
            )
            for variable, total in zip(self.moving, moved, strict=True):
                variable.assign(total / accumulate)
            return gradients, sums

        return gradients

    def apply(self, gradients: Sequence[Any]) -> None:
        """Update the weights with the float32 gradients of the whole global batch."""
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


class Exchange:
    """Adds up the replicas' values; must be called within a replica."""

    def __init__(self, strategy: Any, workers: int, precision: str) -> None:
        self._workers, self._precision = workers, tf.as_dtype(precision)
        # On GPUs, or if a rank has several replicas, use TensorFlow's collectives, which add in the
        # type that is sent.
        devices = strategy.extended.worker_devices
        self._plain = len(devices) > 1 or "GPU" in devices[0]

    def __call__(self, gradients: Sequence[Any], others: Sequence[Any]) -> list[Any]:
        """Return the sums of gradients, float32 in the layers' order, and of others of any type."""
        if self._precision == tf.float32:
            return _all_reduce([*gradients, *others])
        if self._plain:
            sent = _all_reduce([tf.cast(value, self._precision) for value in gradients])
            return [*(tf.cast(value, tf.float32) for value in sent), *_all_reduce(others)]
        return [*self._in_packs(gradients), *_all_reduce(others)]

    def _in_packs(self, gradients: Sequence[Any]) -> list[Any]:
        sums: list[Any] = []
        for number, pack in enumerate(_packs(gradients, self._precision.size)):
            flat = tf.concat([tf.reshape(value, [-1]) for value in pack], axis=0)
            total = self._sum(flat, _KEYS + 2 * number)
            parts = tf.split(total, [value.shape.num_elements() for value in pack])
            shaped = [tf.reshape(part, v.shape) for part, v in zip(parts, pack, strict=True)]
            sums = [*shaped, *sums]
        return sums

    def _sum(self, flat: Any, key: int) -> Any:
        """Return the sum of a vector over the ranks: added in float32, sent with fewer bits."""
        # Each rank adds up its share of all ranks' gradients and sends the sum to all. The traffic
        # is that of a ring with half of the bytes. Every sum is rounded once, and all ranks get the
        # same one.
        size, workers = flat.shape[0], self._workers
        group = {"group_size": workers, "group_key": _KEYS, "communication_hint": "ring"}
        shares = tf.reshape(tf.pad(flat, [[0, -size % workers]]), [workers, -1])
        sent = tf.cast(shares, self._precision)
        own = collective_ops.all_to_all_v2(sent, instance_key=key, **group)
        total = tf.cast(tf.reduce_sum(tf.cast(own, tf.float32), axis=0), self._precision)
        # Each rank sends to every other one, because TensorFlow cannot gather bfloat16.
        copies = tf.tile(total[tf.newaxis], [workers, 1])
        sums = collective_ops.all_to_all_v2(copies, instance_key=key + 1, **group)
        return tf.cast(tf.reshape(sums, [-1])[:size], tf.float32)


def _all_reduce(values: Sequence[Any]) -> list[Any]:
    if not values:
        return []
    context = tf.distribute.get_replica_context()
    options = None
    if sum(value.dtype.size * value.shape.num_elements() for value in values) > PACK_BYTES:
        options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=PACK_BYTES)
    else:
        with tf.control_dependencies(values):
            values = [tf.identity(value) for value in values]
    return list(context.all_reduce(tf.distribute.ReduceOp.SUM, list(values), options))


def _packs(values: Sequence[Any], item_bytes: int) -> list[list[Any]]:
    """Return packs of at least PACK_BYTES each, except for one; the last values come first."""
    packs: list[list[Any]] = [[]]
    size = 0
    for value in reversed(values):
        if size > PACK_BYTES:
            packs.append([])
            size = 0
        packs[-1].insert(0, value)
        size += value.shape.num_elements() * item_bytes
    return packs


class StepRunner:
    """Makes steps on the replicas of a synchronous strategy.

    ``source`` is an iterator of ``order.feed`` or a function of ``order.share``. ``is_chief`` is
    whether this rank's clock counts.
    """

    def __init__(
        self, strategy: Any, train_step: TrainStep, source: Any, exchange: Exchange, is_chief: bool
    ) -> None:
        settings = train_step.task.settings
        self._limit, self._is_chief = settings.steps_per_execution, is_chief
        self._traced = False  # the first call is mostly compilation
        self._step_s = self._agreed_s = 0.0
        # TensorFlow has no clock in deterministic mode.
        self._timed = not settings.deterministic
        self._names = train_step.names
        self._fetch = source if callable(source) else None
        self._iterator = None if callable(source) else source
        self._strategy, self._exchange = strategy, exchange
        # Nothing here needs AutoGraph, which would take most of the time before the first step.
        self._compiled = tf.function(self._steps(train_step), autograph=False)

    @property
    def most_steps(self) -> int:
        """Maximum number of steps to make at once, the same in all ranks; see CALL_S."""
        return steps_within(CALL_S, self._agreed_s, self._limit)

    def __call__(self, step: int, count: int, *, asked: bool, due: bool) -> Outcome:
        """Make ``count`` steps after ``step``; all ranks must pass the same numbers.

        ``asked`` and ``due`` are this rank's. Raise tf.errors.OpError if another rank has ended.
        """
        began, own_s = time.perf_counter(), self._step_s if self._is_chief else 0.0
        # As tensors, because every new Python number would be compiled again.
        first, steps = tf.constant(step, tf.int64), tf.constant(count, tf.int64)
        flags = tf.constant([float(asked), float(due), own_s], tf.float64)
        totals, times = self._compiled(self._iterator, first, steps, flags)
        *sums, asked_to_end, wants_checkpoint, self._agreed_s = totals.numpy().tolist()
        if self._traced:
            self._step_s = (time.perf_counter() - began) / count
        self._traced = True
        input_s, exchange_s = times.numpy().tolist() if self._timed else (None, None)
        named = dict(zip(self._names, sums, strict=True))
        due = wants_checkpoint > 0
        return Outcome(count, named, round(asked_to_end), due, input_s, exchange_s)

    def _steps(self, train_step: TrainStep) -> Callable[[Any, Any, Any, Any], Any]:
        strategy, fetch, exchange = self._strategy, self._fetch, self._exchange
        local = len(strategy.extended.worker_devices)  # replicas in this process
        timed = self._timed

        def now() -> Any:
            return tf.timestamp() if timed else tf.constant(0.0, tf.float64)

        gradients_of, moving = train_step.make_gradients(), train_step.moving
        with strategy.scope():
            sums, times = replica_sums(len(train_step.names)), replica_sums(2)

        def step(batch: Any, began: Any, waited: Any, number: Any) -> None:
            context = tf.distribute.get_replica_context()
            if fetch is not None:
                batch = fetch(number, context.replica_id_in_sync_group)
                with after(batch):
                    waited = now() - began
            if timed:  # otherwise, a single thread may read the clock after computing
                with after(waited):
                    batch = tf.nest.map_structure(tf.identity, batch)
            gradients, values = gradients_of(*batch)
            with after(on_host(gradients) if timed else []):
                ready = now()
            # BatchNorm's moving statistics travel along. Like the weights, they are the same in all
            # ranks after every step.
            own = [variable.read_value() / strategy.num_replicas_in_sync for variable in moving]
            shared = exchange(gradients, own)
            with after(on_host(shared) if timed else []):
                exchanged = now()
            train_step.apply(shared[: len(gradients)])
            for variable, value in zip(moving, shared[len(gradients) :], strict=True):
                variable.assign(value)
            sums.assign_add(tf.cast(values, tf.float64))
            times.assign_add([waited, exchanged - ready])

        def take(flags: Any) -> tuple[Any, Any]:
            values, spent = sums.read_value(), times.read_value()
            with tf.control_dependencies([values, spent]):
                sums.assign(tf.zeros_like(values))
                times.assign(tf.zeros_like(spent))
            # The first replica of a rank sends the rank's flags.
            context = tf.distribute.get_replica_context()
            sends = tf.equal(context.replica_id_in_sync_group % local, 0)
            flags = flags * tf.cast(sends, tf.float64)
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


def replica_sums(size: int) -> Any:
    """Return float64 zeros [size], one per replica, that are exchanged once a call."""
    # float64 sums of float32 hardly round, so that the number of steps in a call does not matter.
    return tf.Variable(
        tf.zeros(size, tf.float64),
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
    )


def on_host(values: Sequence[Any]) -> Any:
    """Return a tensor on the host that is ready once all values are, on any device."""
    with after(values):
        one = tf.identity(tf.reshape(values[0], [-1])[:1])
    # A GPU starts operations when earlier work is queued, but a copy to the host waits for it.
    with tf.device("CPU:0"):
        return tf.identity(one)


def steps_within(seconds: float, step_s: float, limit: int) -> int:
    """Return how many steps of ``step_s`` fit into ``seconds``, 1 to ``limit``; 1 if unknown."""
    return min(limit, max(1, int(seconds / step_s))) if step_s else 1


@contextmanager
def after(values: Any) -> Iterator[None]:
    """Make operations created within wait for all tensors in ``values``, of any replica."""
    with tf.control_dependencies(tf.nest.flatten(values, expand_composites=True)):
        yield
