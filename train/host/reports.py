"""Tells how a training goes: to the launcher in progress records, to the reader line by line."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from .records import ProgressWriter


class Reporter:
    """Writes the progress records of one training run; see host/records.py for their fields.

    Args:
        progress: where they go; it limits how many.
        batch_size: the global batch size, for the rate.
        plan: the fields that stay the same, ``steps`` and ``epochs``.
        aloud: whether to print a line for each epoch, too.
    """

    def __init__(
        self, progress: ProgressWriter, batch_size: int, plan: Mapping[str, Any], aloud: bool
    ) -> None:
        """Begin with no record."""
        self._progress = progress
        self._batch_size = batch_size
        self._plan = plan
        self._aloud = aloud
        self._metrics: Mapping[str, float] = {}
        self._last: tuple[float, int] | None = None

    def training(self, step: int, epoch: int, loss: float, accuracy: float) -> None:
        """Write a record of the step just made, if it is time for one."""
        if not self._progress.due("training"):
            return
        now = time.monotonic()
        rate: dict[str, Any] = {}
        # The first step took most of its time to compile.
        if self._last is not None:
            seconds, steps = now - self._last[0], step - self._last[1]
            rate["examples_per_s"] = round(self._batch_size * steps / seconds, 1)
        self._last = now, step
        metrics = {"accuracy": accuracy, **self._metrics}
        self._progress.write(
            "training", **self._plan, step=step, epoch=epoch, loss=loss, metrics=metrics, **rate
        )

    def evaluating(self, step: int, epoch: int, loss: float) -> None:
        """Write a record of the evaluation to come, if it is time for one or it is the last."""
        if self._progress.due("training") or epoch == self._plan["epochs"]:
            self._progress.write("evaluating", **self._plan, step=step, epoch=epoch, loss=loss)

    def evaluated(self, epoch: int, loss: float, metrics: Mapping[str, float]) -> None:
        """Print the epoch's line, and keep its metrics for the records to come."""
        self._metrics = metrics
        if self._aloud:
            told = tell(metrics)
            print(f"epoch {epoch}/{self._plan['epochs']}: loss {loss:.4f}, {told}", flush=True)


def tell(metrics: Mapping[str, float]) -> str:
    """Return the metrics for a reader, such as ``test_accuracy 0.9861, test_loss 0.0437``."""
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
