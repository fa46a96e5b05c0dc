"""Training in which all replicas make each step together, on one or more devices or workers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from . import order
from .cluster import Cluster, ConfigError, TrainingError
from .data.arrays import ArraySplit
from .evaluation import Evaluate, make_evaluation
from .exchange import make_exchange
from .gang import Collective, tasks_named
from .settings import Settings, check_batch_size, choose_strategy
from .state import TrainingState
from .step import TrainStep
from .step_runner import StepRunner
from .tensorflow_internals import bound_start

#: Seconds without a heartbeat after which TensorFlow considers a rank dead (its default).
HEARTBEAT_S = 10
#: Number of examples that any replica can test at once.
LEAST = 32


class Synchronous:
    """The parts of a training that are specific to synchronous strategies.

    The constructor waits for all ranks. It raises ConfigError if the options do not fit the
    devices, and TrainingError if a rank does not arrive in time or this rank's port is in use.
    """

    def __init__(self, settings: Settings, cluster: Cluster) -> None:
        self._cluster = cluster
        self.strategy = make_strategy(settings, cluster)
        #: Number of parts that a global batch is divided into.
        self.shares = self.strategy.num_replicas_in_sync
        check_batch_size(settings, self.shares)
        self.gang = Collective(self.strategy, cluster)

    def evaluation(self, train_step: TrainStep, state: TrainingState) -> Evaluate:
        """Return the function that tests the model."""
        task = train_step.task
        # Without gradients, an example needs less than half of its memory in training.
        trained = task.settings.batch_size // (self.shares * task.settings.accumulate)
        at_once = max(LEAST, 2 * trained)
        test = make_evaluation(self.strategy, train_step.model, task, at_once)

        def evaluate() -> dict[str, float]:
            with state.averaged():
                return test()

        return evaluate

    def runner(self, train_step: TrainStep, step: int) -> StepRunner:
        """Return the function that makes the steps after ``step``."""
        settings, split = train_step.task.settings, train_step.task.data.train
        # The last remaining worker trains alone.
        precision = settings.exchange_precision if len(self._cluster.ranks) > 1 else "float32"
        options = settings.seed, settings.batch_size, settings.augment
        source: Any = order.share(split, *options, self.shares)
        # On CPUs, fetch examples in memory within the step: a stream would compete with the
        # training for the same cores and gain nothing.
        if not isinstance(split, ArraySplit) or "GPU" in self.strategy.extended.worker_devices[0]:
            source = order.feed(self.strategy, source, step, ahead=2)
        exchange = make_exchange(self.strategy, len(self._cluster.ranks), precision)
        return StepRunner(self.strategy, train_step, source, exchange, self._cluster.is_chief)


def prepare_devices(settings: Settings) -> list[str]:
    """Set up the devices; return the names of those to train on, such as ``gpu:0``.

    Call it before any TensorFlow operation. Raise ConfigError if a device of --devices is missing.
    """
    if settings.intra_op_threads:
        tf.config.threading.set_intra_op_parallelism_threads(settings.intra_op_threads)
    if settings.inter_op_threads:
        tf.config.threading.set_inter_op_parallelism_threads(settings.inter_op_threads)
    if settings.deterministic:
        tf.config.experimental.enable_op_determinism()
    gpus = tf.config.list_physical_devices("GPU")
    names = [f"gpu:{number}" for number in range(len(gpus))] or ["cpu:0"]
    asked = list(settings.devices) or names
    if asked[0].startswith("cpu"):
        # GPUs are left to other processes. TensorFlow can split a CPU into several devices.
        tf.config.set_visible_devices([], "GPU")
        count = 1 + max(int(name.partition(":")[2]) for name in asked)
        if count > 1:
            cpu = tf.config.list_physical_devices("CPU")[0]
            parts = [tf.config.LogicalDeviceConfiguration()] * count
            tf.config.set_logical_device_configuration(cpu, parts)
        return asked
    missing = [name for name in asked if name not in names]
    if missing:
        there = ", ".join(names) if gpus else "none"
        raise ConfigError(f"--devices {','.join(missing)}: this process has {there} of this kind")
    # Each process allocates only what it uses, because others may share the machine.
    chosen = [gpus[names.index(name)] for name in asked]
    tf.config.set_visible_devices(chosen, "GPU")
    for gpu in chosen:
        tf.config.experimental.set_memory_growth(gpu, settings.memory_growth)
    # The visible devices are numbered from 0 again.
    return [f"gpu:{number}" for number in range(len(chosen))]


def make_strategy(settings: Settings, cluster: Cluster) -> Any:
    """Return the synchronous strategy of this rank; if several ranks train, wait for all of them.

    Raise the errors that are listed for ``Synchronous``.
    """
    devices = prepare_devices(settings)
    name = choose_strategy(settings, cluster)
    if name == "auto":
        name = "mirrored" if len(devices) > 1 else "one-device"
    if name == "one-device":
        return tf.distribute.OneDeviceStrategy(f"/{devices[0]}")
    on_gpus = devices[0].startswith("gpu")
    if settings.communication == "nccl" and not on_gpus:
        raise ConfigError("--communication nccl needs GPUs: use ring or auto")
    if name == "mirrored":
        across = None  # TensorFlow's choice
        if settings.communication == "nccl":
            across = tf.distribute.NcclAllReduce()
        elif settings.communication == "ring" or not on_gpus:
            across = tf.distribute.HierarchicalCopyAllReduce()
        names = [f"/{device}" for device in devices]
        return tf.distribute.MirroredStrategy(names, cross_device_ops=across)
    leader = cluster.chief.rpartition("-")[0]
    timeout = settings.start_timeout
    bound_start(leader, cluster.jobs, start_timeout=timeout, heartbeat_s=HEARTBEAT_S)
    # On CPUs there is no alternative.
    chosen = settings.communication if on_gpus else "ring"
    kind = tf.distribute.experimental.CommunicationImplementation[chosen.upper()]
    options = tf.distribute.experimental.CommunicationOptions(implementation=kind)
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    except tf.errors.OpError as error:
        raise TrainingError(_start_failure(cluster, str(error))) from error


def _start_failure(cluster: Cluster, message: str) -> str:
    """Return in one line why the gang could not form, based on TensorFlow's message."""
    late = tasks_named(message.partition("timed out task names")[2].partition("Additional")[0])
    if not late and "Deadline Exceeded" in message:
        late = cluster.chief  # no response from the rank that leads the gang
    if late:
        return f"did not join within the start timeout: {late}"
    reason = message.splitlines()[0]
    remedy = (
        "; check whether another process uses its port"
        if "Could not start gRPC server" in reason
        else ""
    )
    return f"cannot join the gang as {cluster.task}: {reason}{remedy}"
