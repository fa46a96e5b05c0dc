"""Reads TF_CONFIG: which ranks train, and which of them this process is.

Standard library only. No other module of the training program looks at TF_CONFIG; TensorFlow
itself reads it again, so the variable is left as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: The task types that train, in the order in which TensorFlow counts their replicas.
TRAINING_TYPES = ("chief", "worker")
EVALUATOR = "evaluator"


class ConfigError(ValueError):
    """An option or the environment is wrong: one line for the user, before anything starts."""


class TrainingError(RuntimeError):
    """The run has failed, for a reason that one line tells."""


@dataclass(frozen=True)
class Cluster:
    """The gang as this rank sees it.

    Attributes:
        jobs: number of tasks of each training task type that has any, chief before worker.
        task_type: this rank's task type.
        task_index: its index among the tasks of that type.
    """

    jobs: dict[str, int]
    task_type: str
    task_index: int

    @property
    def task(self) -> str:
        """This rank's name, such as ``worker-0``."""
        return f"{self.task_type}-{self.task_index}"

    @property
    def ranks(self) -> list[str]:
        """The names of the training ranks, in the order of their replicas."""
        return [f"{job}-{index}" for job, count in self.jobs.items() for index in range(count)]

    @property
    def chief(self) -> str:
        """The rank that writes the checkpoints and the model: the chief, or else worker 0."""
        return self.ranks[0]

    @property
    def is_chief(self) -> bool:
        """Tell whether this rank is the one that writes."""
        return self.task == self.chief

    @property
    def is_evaluator(self) -> bool:
        """Tell whether this rank evaluates checkpoints beside the gang, and does not train."""
        return self.task_type == EVALUATOR


def read_tf_config(environ: Mapping[str, str]) -> Cluster:
    """Return the cluster that ``TF_CONFIG`` in ``environ`` describes; one worker where it is unset.

    Raises:
        ConfigError: TF_CONFIG is malformed, names a rank that its cluster lacks, or has ``ps``.
    """
    config = _parse(environ.get("TF_CONFIG", ""))
    cluster = config.get("cluster", {})
    if not isinstance(cluster, dict):
        raise ConfigError("TF_CONFIG: cluster must be an object of lists of addresses")
    for job, addresses in cluster.items():
        if not isinstance(addresses, list) or not all(
            isinstance(address, str) and ":" in address for address in addresses
        ):
            raise ConfigError(f"TF_CONFIG: cluster.{job} must be a list of host:port")
    jobs = {job: len(cluster[job]) for job in TRAINING_TYPES if cluster.get(job)}
    if jobs.get("chief", 0) > 1:
        raise ConfigError(f"TF_CONFIG: cluster has {jobs['chief']} chiefs, 1 is the limit")

    default_task = {} if cluster else {"type": "worker", "index": 0}
    task = config.get("task", default_task)
    kind, index = (task.get("type"), task.get("index")) if isinstance(task, dict) else (None, None)
    if not isinstance(kind, str) or type(index) is not int or index < 0:
        raise ConfigError('TF_CONFIG: task must be like {"type": "worker", "index": 0}')
    if kind == "ps" or cluster.get("ps"):
        raise ConfigError(
            "TF_CONFIG: cluster has parameter servers (ps), which worker.py does not offer; "
            "leave the group ps empty, or launch a script of your own"
        )
    if not cluster and kind in TRAINING_TYPES:
        jobs = {kind: 1}
    if kind != EVALUATOR and index >= jobs.get(kind, 0):
        raise ConfigError(
            f"TF_CONFIG: task {kind}-{index} is not in the cluster, "
            f"which trains on {', '.join(Cluster(jobs, kind, index).ranks) or 'no rank'}"
        )
    return Cluster(jobs, kind, index)


def _parse(text: str) -> dict[str, Any]:
    """Return TF_CONFIG's object; an empty one for empty text."""
    if not text.strip():
        return {}
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"TF_CONFIG is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError("TF_CONFIG must be a JSON object with cluster and task")
    return config
