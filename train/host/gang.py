"""What a rank shares with its gang: the strategy, the end of the start, the proof of one result.

Imports TensorFlow. Nothing here depends on the model or the data.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from .cluster import Cluster, TrainingError

#: Seconds without a heartbeat after which TensorFlow takes a rank for dead (its own default).
HEARTBEAT_S = 10


def make_strategy(cluster: Cluster, start_timeout: float) -> Any:
    """Return the strategy for ``cluster``; for several ranks, wait for all of them first.

    Must come before any other TensorFlow operation of the process.

    Args:
        start_timeout: seconds to wait for the other ranks.

    Raises:
        TrainingError: a rank did not come in time, or the port of this one is taken.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        # On a CPU this costs nothing; on a GPU it would choose slower kernels.
        tf.config.experimental.enable_op_determinism()
    if len(cluster.ranks) > 1:
        _bound_start(cluster, start_timeout)
        implementation = tf.distribute.experimental.CommunicationImplementation
        options = tf.distribute.experimental.CommunicationOptions(
            implementation=implementation.AUTO if gpus else implementation.RING
        )
        try:
            return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
        except tf.errors.OpError as error:
            raise TrainingError(_start_failure(cluster, str(error))) from error
    if len(gpus) > 1:
        return tf.distribute.MirroredStrategy()
    return tf.distribute.OneDeviceStrategy("/gpu:0" if gpus else "/cpu:0")


def _bound_start(cluster: Cluster, seconds: float) -> None:
    """Make TensorFlow give up on a missing rank after ``seconds``, instead of after an hour.

    There is no public way: the wait takes place inside the strategy's constructor and holds the
    GIL. A TensorFlow without this private one keeps its own limit.
    """
    try:
        from tensorflow.python.distribute import collective_all_reduce_strategy as collective
        from tensorflow.python.eager import context as eager

        context = eager.context()
        context.configure_coordination_service(
            "standalone",
            service_leader=f"/job:{cluster.chief.rpartition('-')[0]}/replica:0/task:0",
            heartbeat_timeout_in_ms=HEARTBEAT_S * 1000,
            cluster_register_timeout_in_ms=int(seconds * 1000),
            coordinated_jobs=[
                collective.coordination_config_pb2.CoordinatedJob(name=job, num_tasks=count)
                for job, count in cluster.jobs.items()
            ],
        )
        # Without it the leader would ignore the limit.
        context._coordination_service_config.cluster_register_with_barrier = True
    except (ImportError, AttributeError, TypeError) as error:
        print(f"the start has TensorFlow's own time limit: {error}", file=sys.stderr, flush=True)


@contextmanager
def losses_named(cluster: Cluster) -> Iterator[None]:
    """Turn TensorFlow's errors about a lost rank into a TrainingError of one line."""
    try:
        yield
    except (
        tf.errors.AbortedError,
        tf.errors.CancelledError,
        tf.errors.DeadlineExceededError,
        tf.errors.UnavailableError,
    ) as error:
        cause = error.message.rpartition("aborted by: ")[2]
        told = next(iter(cause.splitlines()), "").rstrip(":")
        names = _tasks(cause) or "another rank"
        kind = type(error).__name__
        raise TrainingError(f"lost contact with {names}: {kind}: {told}") from error


def _start_failure(cluster: Cluster, message: str) -> str:
    """Return what kept the gang from forming, in one line, from TensorFlow's message."""
    late = _tasks(message.partition("timed out task names")[2].partition("Additional")[0])
    if not late and "Deadline Exceeded" in message:
        late = cluster.chief  # no answer from the rank that leads the gang
    if late:
        return f"not there within the start timeout: {late}"
    reason = message.splitlines()[0]
    remedy = "; is its port taken?" if "Could not start gRPC server" in reason else ""
    return f"cannot join the gang as {cluster.task}: {reason}{remedy}"


def _tasks(message: str) -> str:
    """Return the names of the ranks that TensorFlow's message mentions, joined by commas."""
    found = re.findall(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)", message)
    return ", ".join(dict.fromkeys(map("-".join, found)))


def end_on_signals() -> None:
    """Let SIGTERM and SIGINT end this process at once, with 128 + the signal as exit code.

    Call it in the main thread, after the strategy was made: making it replaces the handler of
    SIGTERM by one that only takes note of a preemption. Python runs handlers between two
    instructions of the main thread, thus never while that waits in a collective; so a thread
    reads the signals' numbers from a pipe and ends the process.
    """
    receiver, sender = os.pipe()
    os.set_blocking(sender, False)
    signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))

    def watch() -> None:
        while True:
            number = os.read(receiver, 1)[0]
            if number in (signal.SIGTERM, signal.SIGINT):
                os._exit(128 + number)

    threading.Thread(target=watch, name="signals", daemon=True).start()


def digest(variables: Iterable[Any]) -> bytes:
    """Return the SHA-256 of the variables' shapes, types and values, in the order given."""
    total = hashlib.sha256()
    for variable in variables:
        value = np.ascontiguousarray(variable.numpy())
        total.update(f"{value.dtype.str}{value.shape}".encode())
        total.update(value.tobytes())
    return total.digest()


def compare(strategy: Any, cluster: Cluster, own: bytes) -> None:
    """Make sure that all ranks hold the same digest; all of them must call it.

    Raises:
        TrainingError: they differ; it names the ranks that differ from the chief.
        tf.errors.OpError: another rank has ended.
    """
    # Integers of 32 bits are what collectives on every device can carry.
    rows = _all_gather(strategy, tf.constant([list(own)], dtype=tf.int32))
    local = len(rows) // len(cluster.ranks)
    first_rows = zip(cluster.ranks, rows[::local], strict=True)
    differing = [rank for rank, row in first_rows if (row != rows[0]).any()]
    if differing:
        raise TrainingError(
            f"the final weights differ from those of {cluster.chief}: {', '.join(differing)}"
        )


def barrier(strategy: Any) -> None:
    """Wait until all ranks are here.

    Raises:
        tf.errors.OpError: another rank has ended.
    """
    _all_gather(strategy, tf.zeros([1, 1], dtype=tf.int32))


def _all_gather(strategy: Any, value: Any) -> Any:
    """Return the replicas' values, joined along their first axis in the replicas' order."""

    def gather() -> Any:
        # Only a tensor made in a replica has a device that the collective knows.
        return tf.distribute.get_replica_context().all_gather(tf.identity(value), axis=0)

    gathered = tf.function(lambda: strategy.run(gather))()
    return strategy.experimental_local_results(gathered)[0].numpy()
