"""Training in which all replicas make every step together: one device, several, several workers."""

from __future__ import annotations

from . import order
from .cluster import Cluster
from .data import ArraySplit
from .evaluation import Evaluate, make_evaluation
from .gang import Gang
from .settings import Settings, check_batch_size
from .state import State
from .step import Execution, Learner
from .strategies import make_strategy
from .task import Task


class Synchronous:
    """What the program needs for such a training; making it waits for all ranks.

    Attributes:
        strategy: of tf.distribute.
        gang: the other ranks.

    Raises:
        ConfigError: the options do not fit the devices.
        TrainingError: a rank did not come in time, or the port of this one is taken.
    """

    def __init__(self, settings: Settings, cluster: Cluster) -> None:
        self._settings = settings
        self.strategy = make_strategy(settings, cluster)
        check_batch_size(settings, self.strategy.num_replicas_in_sync)
        self.gang = Gang(self.strategy, cluster)

    def evaluation(self, task: Task, learner: Learner, state: State) -> Evaluate:
        """Return the test of the learner's model."""
        return make_evaluation(self.strategy, learner.model, task.objective, task.data.test)

    def execution(self, task: Task, learner: Learner, step: int) -> Execution:
        """Return what makes the steps after ``step``."""
        settings, split = self._settings, task.data.train
        replicas = self.strategy.num_replicas_in_sync
        order_of = split, settings.seed, settings.batch_size, settings.augment
        source: order.Fetch | order.Stream
        if isinstance(split, ArraySplit) and not self._on_gpus():
            source = order.Fetch(*order_of, replicas)
        else:
            source = order.Stream(self.strategy, *order_of, step)
        return Execution(
            self.strategy,
            learner,
            source,
            settings.steps_per_execution,
            timed=not settings.deterministic,
        )

    def _on_gpus(self) -> bool:
        return any("GPU" in device for device in self.strategy.extended.worker_devices)
