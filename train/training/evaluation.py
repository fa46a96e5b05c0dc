"""Tests a model on the whole test set, shared among the replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from . import order
from .replica_sums import ReplicaSums
from .task import Task

Evaluate = Callable[[], dict[str, float]]


def make_evaluation(strategy: Any, model: Any, task: Task, at_once: int) -> Evaluate:
    """Return a function that computes ``test_loss`` and other metrics on the task's test set.

    Every example counts once. All ranks must call the function, and they get the same results. The
    strategy must be synchronous, and the model must have been built in its scope. A replica tests
    up to ``at_once`` examples at a time.
    """
    objective, split = task.objective, task.data.test
    names = ["loss", *objective.metrics]
    replicas = strategy.num_replicas_in_sync
    share = min(at_once, -(-split.size // replicas))
    steps = -(-split.size // (share * replicas))

    def part(number: Any, replica: Any) -> tuple[Any, Any, Any]:
        places = (number % steps * replicas + replica) * share + tf.range(share, dtype=tf.int64)
        features, labels = split.fetch(tf.minimum(places, split.size - 1))
        return features, labels, tf.cast(places < split.size, tf.float64)

    sums = ReplicaSums(strategy, len(names))

    def step(features: Any, labels: Any, counted: Any) -> None:
        outputs = model(task.prepare(features), training=False)
        values = [
            tf.reduce_sum(tf.cast(measure(labels, outputs), tf.float64) * counted)
            for measure in (objective.test_loss, *objective.metrics.values())
        ]
        sums.add(tf.stack(values))

    def total() -> Any:
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, sums.take())

    def test(iterator: Any) -> Any:
        def one(number: Any) -> tuple[Any]:
            strategy.run(step, args=next(iterator))
            return (number + 1,)

        tf.while_loop(lambda number: number < steps, one, (tf.constant(0),))
        return strategy.experimental_local_results(strategy.run(total))[0]

    compiled = tf.function(test, autograph=False)
    iterator: Any = None  # until the first test, so that the first step need not wait for it

    def evaluate() -> dict[str, float]:
        nonlocal iterator
        if iterator is None:
            iterator = order.feed(strategy, part, 0, ahead=1)
        means = (compiled(iterator) / split.size).numpy().tolist()
        return {f"test_{name}": mean for name, mean in zip(names, means, strict=True)}

    return evaluate
