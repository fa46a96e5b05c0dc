"""Every use of a private name of TensorFlow or Keras, with the reason.

Public API is used for everything else. ``tests/integration/local/test_training_internals.py`` tests
each function and fails when a new TensorFlow has changed what it relies on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from host.plain_text import note


def bound_start(
    leader: str, ranks: Mapping[str, int], *, start_timeout: float, heartbeat_s: float
) -> None:
    """Make TensorFlow give up on a missing rank after ``start_timeout`` seconds, not an hour.

    ``leader`` is the task type of the first rank, and ``ranks`` the number of ranks by task type. A
    rank without a heartbeat for ``heartbeat_s`` seconds counts as dead. Call this function before
    the strategy is made. If TensorFlow lacks the private names, it keeps its own limit, and a note
    is printed.
    """
    # The public API cannot do it: the strategy's constructor waits and holds the GIL.
    try:
        from tensorflow.python.distribute import collective_all_reduce_strategy as collective
        from tensorflow.python.eager import context as eager

        job_type = collective.coordination_config_pb2.CoordinatedJob
        context = eager.context()
        context.configure_coordination_service(
            "standalone",
            service_leader=f"/job:{leader}/replica:0/task:0",
            heartbeat_timeout_in_ms=int(heartbeat_s * 1000),
            cluster_register_timeout_in_ms=int(start_timeout * 1000),
            coordinated_jobs=[job_type(name=n, num_tasks=count) for n, count in ranks.items()],
        )
        # Otherwise the leader would ignore the limit.
        context._coordination_service_config.cluster_register_with_barrier = True
    except (ImportError, AttributeError, TypeError) as error:
        note(f"TensorFlow's own time limit applies to the start: {error}")


def moving_averages(optimizer: Any) -> list[Any]:
    """Return the optimizer's averages of the trainable variables, in order; empty if none."""
    # Its public variables cannot be distinguished from others of the same shapes.
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return list(inner._model_variables_moving_average) if inner.use_ema else []


def loss_scale_variables(optimizer: Any) -> list[Any]:
    """Return the step counter and the loss scale of a LossScaleOptimizer; empty for any other."""
    # Its public variables do not include them, and its public ``loss_scale`` cannot be assigned.
    if not getattr(optimizer, "dynamic", False):
        return []
    return [optimizer.dynamic_counter, optimizer._loss_scale.current_loss_scale]


def lost_workers(coordinator: Any) -> set[int]:
    """Return the indices of the workers that a ClusterCoordinator has lost and not taken back.

    If TensorFlow lacks the private names, return an empty set.
    """
    # It takes workers back only when all of them respond, and the public API cannot ask.
    workers = getattr(getattr(coordinator, "_cluster", None), "workers", [])
    return {
        int(worker.worker_index)
        for worker in workers
        if getattr(worker, "_is_dead_with_error", None)
    }


def write_event(writer: Any, event: bytes) -> None:
    """Append a serialized tf.compat.v1.Event to the file of a summary writer."""
    # Public functions write summaries, but no other events, such as the start of a session.
    tf.raw_ops.ImportEvent(writer=writer._resource, event=event)
