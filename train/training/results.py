"""The results of a task that has completed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Results:
    """The results of a task. All ranks that train have the same ones.

    A field without a result is None. An evaluator has only the ``step`` and ``metrics`` of its last
    test. A worker or parameter server that serves the chief has no results.
    """

    #: The task of this process, such as ``worker-0``.
    task: str
    #: The last step that was made, and the steps of the whole plan.
    step: int | None = None
    steps: int | None = None
    #: The epoch of the last step, from 1, and the epochs of the whole plan.
    epoch: int | None = None
    epochs: int | None = None
    #: Mean training loss over the last epoch.
    loss: float | None = None
    #: The last test's metrics by name; with --patience, those of the best test.
    metrics: dict[str, float] | None = None
    #: SHA-256 in hex of the weights that are saved.
    weights_sha256: str | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """The results by name, without ``task`` and None, for the last progress record."""
        values = {name: value for name, value in asdict(self).items() if value is not None}
        del values["task"]
        return values
