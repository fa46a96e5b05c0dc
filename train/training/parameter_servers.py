"""Training with parameter servers: workers make steps independently, as fast as each can.

The chief hands out a few steps at a time. If a worker is lost, another one makes its steps.
Gradients reach the servers in no fixed order, so two runs differ numerically.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from . import order
from .cluster import Cluster
from .data.arrays import ArraySplit
from .evaluation import Evaluate, make_evaluation
from .gang import Collective
from .servers import Watch, await_servers, inter_op_threads
from .settings import Settings
from .state import TrainingState
from .step import TrainStep
from .step_runner import CALL_S, StepsOutcome, steps_within

_CHIEF = "/job:chief/replica:0/task:0/device:CPU:0"
#: Number of calls queued for a worker at a time. Several calls hide the latency to the chief.
CALLS = 4
#: Number of examples that the chief tests at once.
EVALUATED = 250


class ParameterServers:
    """The parts of a training that are specific to parameter servers.

    The constructor waits for all servers, and raises TrainingError if one does not respond in time.
    """

    shares = 1  # a worker makes steps with whole global batches

    def __init__(self, settings: Settings, cluster: Cluster) -> None:
        threads = settings.inter_op_threads or inter_op_threads()
        tf.config.threading.set_inter_op_parallelism_threads(threads)
        watch = Watch(await_servers(cluster, settings.start_timeout))
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        self.strategy = tf.distribute.ParameterServerStrategy(resolver)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)
        self._workers = len(cluster.addresses["worker"])
        self.gang = Collective(self.strategy, cluster, watch.shutdown)
        watch.follow(self._coordinator)

    def evaluation(self, train_step: TrainStep, state: TrainingState) -> Evaluate:
        """Return the function that tests the model, with a copy of the model on the chief."""
        with tf.device(_CHIEF):
            eval_model = train_step.task.build_model()
            own = tf.distribute.OneDeviceStrategy(_CHIEF)
            test = make_evaluation(own, eval_model, train_step.task, EVALUATED)

        def evaluate() -> dict[str, float]:
            values = state.model_values()
            with tf.device(_CHIEF):
                eval_model.set_weights(values)
                return test()

        # No new graph can be made while a worker is frozen, see servers.Watch.
        evaluate()
        return evaluate

    def runner(self, train_step: TrainStep, step: int) -> WorkerStepRunner:
        """Return the function that makes steps; it does not depend on ``step``."""
        split = train_step.task.data.train
        if isinstance(split, ArraySplit):
            split.embed()
        return WorkerStepRunner(self._coordinator, train_step, self._workers)


class WorkerStepRunner:
    """Makes steps on the workers, as step_runner.StepRunner does on replicas."""

    def __init__(self, coordinator: Any, train_step: TrainStep, workers: int) -> None:
        self._limit, self._workers = train_step.task.settings.steps_per_execution, workers
        self._traced = False  # the first calls are mostly compilation
        self._step_s = 0.0
        self._names = train_step.names
        self._coordinator = coordinator
        signature = [tf.TensorSpec([], tf.int64)] * 2
        steps = self._steps(train_step)
        self._compiled = tf.function(steps, input_signature=signature, autograph=False)

    @property
    def _each(self) -> int:
        """Number of steps in a call."""
        return steps_within(CALL_S / CALLS, self._step_s, self._limit)

    @property
    def most_steps(self) -> int:
        """Maximum number of steps to make at once."""
        return self._each * self._workers * CALLS

    def __call__(self, step: int, count: int, *, asked: bool, due: bool) -> StepsOutcome:
        """Make ``count`` steps after ``step``, in calls that are distributed among the workers.

        ``asked`` and ``due`` are returned in the outcome.
        """
        calls, each, began = [], self._each, time.perf_counter()
        for first in range(step, step + count, each):
            size = min(each, step + count - first)
            args = (tf.constant(first, tf.int64), tf.constant(size, tf.int64))
            calls.append(self._coordinator.schedule(self._compiled, args=args))
        self._coordinator.join()
        sums = sum(call.fetch() for call in calls)
        rounds = -(-len(calls) // self._workers)
        if self._traced:
            self._step_s = (time.perf_counter() - began) / (rounds * min(each, count))
        self._traced = len(calls) >= self._workers or self._traced
        named = dict(zip(self._names, sums.tolist(), strict=True))
        return StepsOutcome(count, named, asked=int(asked), due=due)

    def _steps(self, train_step: TrainStep) -> Callable[[Any, Any], Any]:
        strategy = self._coordinator.strategy
        settings, split = train_step.task.settings, train_step.task.data.train
        size = settings.batch_size

        def one(*batch: Any) -> Any:
            gradients, sums = train_step.gradients(*batch)
            train_step.apply(gradients)
            return sums

        def steps(first: Any, count: Any) -> Any:
            sums, start = tf.zeros(len(train_step.names)), tf.constant(0, tf.int64)

            def next_one(step: Any, sums: Any) -> tuple[Any, Any]:
                batch = order.batch(split, settings.seed, size, settings.augment, step, start, size)
                new = strategy.run(one, args=batch)
                return step + 1, sums + strategy.reduce(tf.distribute.ReduceOp.SUM, new, axis=None)

            return tf.while_loop(
                lambda step, _: step < first + count, next_one, (first, sums), parallel_iterations=1
            )[1]

        return steps
