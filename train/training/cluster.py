"""Reads the environment: TF_CONFIG, the ranks, and the launcher's variables.

This module uses only the standard library. TF_CONFIG is not changed, because TensorFlow reads it
again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from host.rank_environment import ENV_ATTEMPT, ENV_CHECKPOINT_COPY, ENV_JOB

#: The task types of TF_CONFIG's cluster, in the order in which TensorFlow counts their replicas.
JOBS = ("chief", "worker", "ps")
EVALUATOR = "evaluator"


class ConfigError(ValueError):
    """An option or the environment is invalid; the message is one line for the user."""


class TrainingError(RuntimeError):
    """The run has failed; the message is the reason, in one line."""


@dataclass(frozen=True)
class Cluster:
    """The gang as seen by this rank."""

    #: ``host:port`` of the tasks by type, in the order of JOBS and without unused types; empty for
    #: a single process.
    addresses: dict[str, list[str]]
    task_type: str
    task_index: int

    @property
    def task(self) -> str:
        """This rank's name, such as ``worker-0``."""
        return f"{self.task_type}-{self.task_index}"

    @property
    def jobs(self) -> dict[str, int]:
        """The number of tasks of each type that trains; with parameter servers, only the chief."""
        if not self.addresses:
            return {self.task_type: 1}
        kinds = ["chief"] if self.has_servers else JOBS[:2]
        return {job: len(self.addresses[job]) for job in kinds if job in self.addresses}

    @property
    def ranks(self) -> list[str]:
        """Names of the ranks that train (with ps, only the chief), in the order of replicas."""
        return [f"{job}-{index}" for job, count in self.jobs.items() for index in range(count)]

    @property
    def place(self) -> int:
        """This rank's index in ``ranks``, from 0."""
        return self.ranks.index(self.task)

    @property
    def chief(self) -> str:
        """The rank that writes the checkpoints and the model: the chief, or else worker 0."""
        return self.ranks[0]

    @property
    def is_chief(self) -> bool:
        """Whether this rank writes the checkpoints and the model."""
        return self.task == self.chief

    @property
    def is_evaluator(self) -> bool:
        """Whether this rank evaluates the gang's checkpoints instead of training."""
        return self.task_type == EVALUATOR

    @property
    def has_servers(self) -> bool:
        """Whether the gang has parameter servers."""
        return "ps" in self.addresses

    @property
    def is_server(self) -> bool:
        """Whether this rank only serves a chief, as a parameter server or one of its workers."""
        return self.has_servers and self.task_type in ("worker", "ps")


def read_tf_config(environ: Mapping[str, str]) -> Cluster:
    """Return the cluster in ``TF_CONFIG``, or a single worker if the variable is not set.

    Raise ConfigError if it is invalid.
    """
    try:
        config = json.loads(environ.get("TF_CONFIG", "").strip() or "{}")
    except ValueError as error:
        raise ConfigError(f"TF_CONFIG is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError("TF_CONFIG must be a JSON object with cluster and task")
    cluster = config.get("cluster", {})
    if not isinstance(cluster, dict):
        raise ConfigError("TF_CONFIG: cluster must be an object of lists of addresses")
    for job, listed in cluster.items():
        if not isinstance(listed, list) or not all(
            isinstance(address, str) and ":" in address for address in listed
        ):
            raise ConfigError(f"TF_CONFIG: cluster.{job} must be a list of host:port")
    addresses = {job: cluster[job] for job in JOBS if cluster.get(job)}
    if len(addresses.get("chief", [])) > 1:
        count = len(addresses["chief"])
        raise ConfigError(f"TF_CONFIG: cluster has {count} chiefs; the limit is 1")
    missing = [job for job in JOBS if job not in addresses]
    if "ps" in addresses and missing:
        why = f"no {missing[0]}: they need a chief and at least one worker"
        raise ConfigError(f"TF_CONFIG: cluster has parameter servers (ps), but {why}")
    task = config.get("task", {} if cluster else {"type": "worker", "index": 0})
    kind, index = (task.get("type"), task.get("index")) if isinstance(task, dict) else (None, None)
    if not isinstance(kind, str) or type(index) is not int or index < 0:
        raise ConfigError(
            'TF_CONFIG: task must be an object such as {"type": "worker", "index": 0}'
        )
    alone = not cluster and kind in JOBS[:2] and index == 0
    if kind != EVALUATOR and not alone and index >= len(addresses.get(kind, [])):
        ranks = [f"{job}-{i}" for job, listed in addresses.items() for i in range(len(listed))]
        there = ", ".join(ranks) or "no rank"
        raise ConfigError(
            f"TF_CONFIG: task {kind}-{index} is not in the cluster, which contains {there}"
        )
    return Cluster(addresses, kind, index)


@dataclass(frozen=True)
class Launch:
    """The job that this process belongs to."""

    #: The job's id; empty without the launcher.
    job: str
    #: The number of the current start of the gang, from 1. All attempts have the same options.
    attempt: int
    #: Whether this rank keeps a copy of the chief's checkpoints.
    copies: bool


def read_launch(environ: Mapping[str, str]) -> Launch:
    """Return the values of the launcher's environment variables, or their defaults.

    Raise ConfigError if a value is invalid.
    """
    attempt = environ.get(ENV_ATTEMPT) or "1"
    if not (attempt.isascii() and attempt.isdigit() and 1 <= int(attempt) <= 1_000_000):
        wanted = "a whole number from 1 to 1000000"
        raise ConfigError(f"environment variable {ENV_ATTEMPT}: {attempt!r} is not {wanted}")
    copies = environ.get(ENV_CHECKPOINT_COPY) or "0"
    if copies not in ("0", "1"):
        raise ConfigError(f"environment variable {ENV_CHECKPOINT_COPY}: {copies!r} is not 0 or 1")
    return Launch(environ.get(ENV_JOB, ""), int(attempt), copies == "1")
