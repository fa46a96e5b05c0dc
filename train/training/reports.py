"""Tells how a training goes: to the launcher in progress records, to the reader line by line."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from host.records import ProgressWriter

_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Outcome:
    """What some steps made at once have given.

    Attributes:
        steps: how many there were.
        sums: over the steps, of ``loss`` and the metrics by name, each the mean over a global
            batch; the same in all ranks.
        asked: how many ranks were asked to end (with parameter servers, the chief alone counts).
        due: whether the chief's clock wants a checkpoint.
        input_s: seconds that this rank waited for its examples; None where no time is taken.
        exchange_s: seconds between its own gradients and those of all: the exchange itself, and
            the wait for slower ranks; None as for ``input_s``.
    """

    steps: int
    sums: dict[str, float]
    asked: int = 0
    due: bool = False
    input_s: float | None = None
    exchange_s: float | None = None

    @property
    def loss(self) -> float:
        """The mean loss of these steps."""
        return self.sums["loss"] / self.steps

    @property
    def metrics(self) -> dict[str, float]:
        """The means of the metrics."""
        return {name: s / self.steps for name, s in self.sums.items() if name != "loss"}


class Reporter:
    """Writes the progress records of one training run; see host/records.py for their fields.

    Args:
        progress: where they go; it limits how many.
        batch_size: the global batch size, for the rate.
        plan: the fields that stay the same, ``steps`` and ``epochs``.
        aloud: whether to print a line for each test, too.
        metrics: the last test's, of a run that is resumed.
    """

    def __init__(
        self,
        progress: ProgressWriter,
        batch_size: int,
        plan: Mapping[str, Any],
        aloud: bool,
        metrics: Mapping[str, float],
    ) -> None:
        """Begin with no record."""
        self._progress = progress
        self._batch_size = batch_size
        self._plan = plan
        self._aloud = aloud
        self._metrics = metrics
        self._last: tuple[float, int] | None = None
        self._tested_from = 0.0
        self._input_s = self._exchange_s = 0.0

    def training(self, step: int, epoch: int, outcome: Outcome) -> None:
        """Write a record of the steps just made, if it is time for one."""
        self._input_s += outcome.input_s or 0.0
        self._exchange_s += outcome.exchange_s or 0.0
        if not self._progress.due("training"):
            return
        now = time.monotonic()
        rate: dict[str, Any] = {}
        # The first step took most of its time to compile.
        if self._last is not None:
            seconds, steps = now - self._last[0], step - self._last[1]
            rate["examples_per_s"] = round(self._batch_size * steps / seconds, 1)
            if outcome.input_s is not None:
                parts = {"input_ms": self._input_s, "exchange_ms": self._exchange_s}
                parts = {name: 1000 * part / steps for name, part in parts.items()}
                parts["compute_ms"] = max(0.0, 1000 * seconds / steps - sum(parts.values()))
                rate["step_time"] = {name: round(part, 3) for name, part in parts.items()}
        self._last = now, step
        self._input_s = self._exchange_s = 0.0
        self._progress.write(
            "training",
            **self._plan,
            step=step,
            epoch=epoch,
            loss=outcome.loss,
            metrics={**outcome.metrics, **self._metrics},
            memory_mb=memory_mb(),
            **rate,
        )

    def evaluating(self, step: int, epoch: int, loss: float) -> None:
        """Write a record of the evaluation to come, if it is time for one or it is the last."""
        self._tested_from = time.monotonic()
        if self._progress.due("training") or epoch == self._plan["epochs"]:
            self._progress.write("evaluating", **self._plan, step=step, epoch=epoch, loss=loss)

    def evaluated(self, epoch: int, loss: float, metrics: Mapping[str, float]) -> None:
        """Print the epoch's line, and keep its metrics for the records to come."""
        self._metrics = metrics
        if self._last is not None:  # a test is no part of the steps' time
            self._last = self._last[0] + time.monotonic() - self._tested_from, self._last[1]
        if self._aloud:
            told = tell(metrics)
            print(f"epoch {epoch}/{self._plan['epochs']}: loss {loss:.4f}, {told}", flush=True)


def tell(metrics: Mapping[str, float]) -> str:
    """Return the metrics for a reader, such as ``test_accuracy 0.9861, test_loss 0.0437``."""
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def memory_mb() -> int:
    """Return the main memory that this process holds, in MiB."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE // 2**20
