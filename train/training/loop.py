"""The training loop: from the first step, or that of a checkpoint, to the model.

It reports to the launcher in progress records, to TensorBoard in events, to the reader in lines.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from host.records import ProgressWriter

from . import keyed, resume
from .checkpoints import Writer, digest
from .cluster import Cluster, Launch, TrainingError
from .evaluation import Evaluate
from .gang import PEER_ERRORS, Gang
from .settings import Settings
from .signals import Signals
from .state import State
from .step import Outcome, StepRunner
from .task import Schedule, Task

if TYPE_CHECKING:
    from .parameter_servers import WorkerStepRunner

    Runner = StepRunner | WorkerStepRunner


class EndedError(Exception):
    """A rank was asked to end; the message has whether it was this one, and what was saved."""

    exit_code = 128 + signal.SIGTERM


@dataclass
class Position:
    """Where in the run it is: what a checkpoint holds as ``position``, in addition to variables.

    Attributes:
        step: optimizer steps made.
        epoch_loss: sum over the steps of the epoch at work.
        event_steps: steps since the last event of TensorBoard.
        event_sums: over these, of ``loss`` and the metrics: how many steps a call has is no matter.
        loss: the mean over the epoch before.
        metrics: of the last test.
        best: the least test loss so far; None before the first.
        best_step: the step of the weights that are kept for it; None where none are.
        best_metrics: of that test.
        waited: tests since then.
        early: whether the run has come to its end before its last epoch.
    """

    step: int = 0
    epoch_loss: float = 0.0
    event_steps: int = 0
    event_sums: dict[str, float] = field(default_factory=dict)
    loss: float = math.nan
    metrics: dict[str, float] = field(default_factory=dict)
    best: float | None = None
    best_step: int | None = None
    best_metrics: dict[str, float] = field(default_factory=dict)
    waited: int = 0
    early: bool = False


@dataclass
class Loop:
    """One run of a rank that trains; ``run`` does it all.

    Attributes:
        settings, cluster, launch, task: what is to be done.
        gang: the other ranks.
        state: the variables.
        evaluate: the test.
        schedule: the learning rate.
        progress: where the progress records go.
        signals: whether this rank was asked to end.
    """

    settings: Settings
    cluster: Cluster
    launch: Launch
    task: Task
    gang: Gang
    state: State
    evaluate: Evaluate
    schedule: Schedule
    progress: ProgressWriter
    signals: Signals

    def __post_init__(self) -> None:
        """Plan the steps."""
        self.per_epoch = self.task.steps_per_epoch
        self.plan = {"steps": self.settings.epochs * self.per_epoch, "epochs": self.settings.epochs}
        self.identity = {**self.settings.identity, "data_sha256": self.task.data.fingerprint}
        self.position = Position()
        self.writer: Writer | None = None
        self._saved_at = time.monotonic()
        self._saved_step = -1

    def resume(self) -> int:
        """Resume from the newest checkpoint that any rank holds; return its step, or 0.

        Raises:
            ConfigError: it was made with other options, or there is none and must be.
        """
        begun = resume.Search(
            self.settings, self.cluster, self.launch, self.gang, self.state, self.identity
        ).begin()
        self.writer = begun.writer
        if begun.position is not None:
            self.position = Position(**begun.position)
            if not self.settings.patience:
                # No best weights are kept from here on.
                self.position.best_step, self.position.best_metrics = None, {}
            elif self.position.best_step is None:
                # It was made without --patience: the weights of its best test are gone.
                self.position.best, self.position.waited = None, 0
            if not self.settings.summary_every:
                self.position.event_steps, self.position.event_sums = 0, {}
            self._saved_step = self.position.step
            line = f"{self.cluster.task}: resumed at step {self.position.step}"
            if begun.source != self.cluster.chief:
                line += f", from the checkpoint of {begun.source}"
            print(line, flush=True)
        return self.position.step

    def run(self, runner: Runner, summaries: Summaries) -> dict[str, Any]:
        """Train to the end; see worker.run for what it returns.

        Raises:
            EndedError: a rank was asked to end.
            TrainingError: the loss is no number any more, or the ranks' weights differ.
            tf.errors.OpError: another rank was lost.
        """
        try:
            return self._train(runner, summaries)
        except PEER_ERRORS as error:
            if not self.signals.asked:
                raise
            raise EndedError(
                f"{self.cluster.task}: told to end; no checkpoint could be made, another rank is "
                "lost"
            ) from error

    def _train(self, runner: Runner, summaries: Summaries) -> dict[str, Any]:
        size, position = self.settings.batch_size, self.position
        aloud = self.cluster.is_chief
        reporter = Reporter(self.progress, size, self.plan, aloud, position.metrics)
        self.signals.saves = True
        while not self._over():
            outcome = self._steps(runner, reporter)
            epoch = self._epoch()
            if self._at(self.settings.summary_every):
                summaries.write(position.step, self._train_values())
            if position.step % self.per_epoch == 0:
                self._end_epoch(epoch, reporter, summaries)
            self._save(outcome)
            if outcome.asked and not self._over():
                self._leave(summaries)
        return self._finish(summaries)

    def _steps(self, runner: Runner, reporter: Reporter) -> Outcome:
        position = self.position
        count = self._count(runner.most_steps)
        seconds = self.settings.checkpoint_seconds
        due = bool(seconds) and time.monotonic() - self._saved_at >= seconds
        outcome = runner(position.step, count, asked=self.signals.asked, due=due)
        if not math.isfinite(outcome.loss):
            raise TrainingError(
                f"the loss is {outcome.loss} after step {position.step}: lower --learning-rate"
            )
        position.step += count
        position.epoch_loss += outcome.sums["loss"]
        if self.settings.summary_every:
            position.event_steps += count
            for name, value in outcome.sums.items():
                position.event_sums[name] = position.event_sums.get(name, 0.0) + value
        reporter.training(position.step, self._epoch(), outcome)
        return outcome

    def _count(self, most: int) -> int:
        """Return how many steps to make at once: not past an epoch, a checkpoint or an event."""
        step = self.position.step
        if step == 0:
            return 1  # so that the first one is reported at once
        rhythms = (self.per_epoch, self.settings.checkpoint_every, self.settings.summary_every)
        return min([most, *(every - step % every for every in rhythms if every)])

    def _over(self) -> bool:
        return self.position.early or self.position.step >= self.plan["steps"]

    def _at(self, every: int) -> bool:
        return bool(every) and self.position.step % every == 0

    def _epoch(self) -> int:
        """Return the epoch that the last step belongs to, from 1."""
        return -(-self.position.step // self.per_epoch)

    def _end_epoch(self, epoch: int, reporter: Reporter, summaries: Summaries) -> None:
        position, settings = self.position, self.settings
        position.loss, position.epoch_loss = position.epoch_loss / self.per_epoch, 0.0
        due = settings.evaluate_every and epoch % settings.evaluate_every == 0
        if not due and not self._over():
            return
        reporter.evaluating(position.step, epoch, position.loss)
        position.metrics = self.evaluate()
        reporter.evaluated(epoch, position.loss, position.metrics)
        summaries.write(
            position.step,
            {f"test/{name[5:]}": value for name, value in position.metrics.items()}
            | {"train/epoch_loss": position.loss},
        )
        loss = position.metrics["test_loss"]
        if position.best is None or loss < position.best - settings.min_delta:
            position.best, position.waited = loss, 0
            if settings.patience:
                position.best_step, position.best_metrics = position.step, position.metrics
                self.state.keep_best()
        else:
            position.waited += 1
        if settings.patience and position.waited >= settings.patience:
            position.early = True
            if self.cluster.is_chief:
                print(
                    f"ends early after epoch {epoch}: no lower test loss than {position.best:.4f} "
                    f"in {position.waited} tests",
                    flush=True,
                )

    def _train_values(self) -> dict[str, float]:
        """Return means over the steps since the last event, and the rate; start them again."""
        position = self.position
        values = {name: s / position.event_steps for name, s in position.event_sums.items()}
        values["learning_rate"] = float(self.schedule(position.step - 1))
        position.event_steps, position.event_sums = 0, {}
        return {f"train/{name}": value for name, value in values.items()}
