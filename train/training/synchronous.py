"""Training in which all replicas make every step together: one device, several, several workers."""

from __future__ import annotations

from . import order
from .cluster import Cluster
from .data import ArraySplit
from .evaluation import LEAST, Evaluate, make_evaluation
from .exchange import Exchange
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
        shares: the replicas, among which a global batch is divided.
        gang: the other ranks.

    Raises:
        ConfigError: the options do not fit the devices.
        TrainingError: a rank did not come in time, or the port of this one is taken.
    """

    def __init__(self, settings: Settings, cluster: Cluster) -> None:
        self._settings, self._cluster = settings, cluster
        self.strategy = make_strategy(settings, cluster)
        self.shares = self.strategy.num_replicas_in_sync
        check_batch_size(settings, self.shares)
        self.gang = Gang(self.strategy, cluster)

    def evaluation(self, task: Task, learner: Learner, state: State) -> Evaluate:
        """Return the test of the learner's model."""
        # Without gradients, an example needs less than half of its memory in training.
        trained = self._settings.batch_size // (self.shares * self._settings.accumulate)
        at_once = max(LEAST, 2 * trained)
        test = make_evaluation(
            self.strategy, learner.model, task.objective, task.data.test, at_once, task.prepare
        )

        def evaluate() -> dict[str, float]:
            with state.averaged():
                return test()

        return evaluate

    def execution(self, task: Task, learner: Learner, step: int) -> Execution:
        """Return what makes the steps after ``step``."""
        settings, split = self._settings, task.data.train
        order_of = split, settings.seed, settings.batch_size, settings.augment
        # One worker that is left of several goes on alone.
        precision = settings.exchange_precision if len(self._cluster.ranks) > 1 else "float32"
        source: order.Fetch | order.Stream
        if isinstance(split, ArraySplit) and not self._on_gpus():
            source = order.Fetch(*order_of, self.shares)
        else:
            source = order.Stream(self.strategy, *order_of, step)
        return Execution(
            self.strategy,
            learner,
            source,
            Exchange(self.strategy, len(self._cluster.ranks), precision),
            settings.steps_per_execution,
            self._cluster.is_chief,
            timed=not settings.deterministic,
        )

    def _on_gpus(self) -> bool:
        return any("GPU" in device for device in self.strategy.extended.worker_devices)
