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
from typing import Any

import tensorflow as tf
from host.records import ProgressWriter

from . import keyed, resume
from .checkpoints import Writer, digest
from .cluster import Cluster, Launch, TrainingError
from .evaluation import Evaluate
from .gang import PEER_ERRORS, Gang
from .parameter_servers import WorkerStepRunner
from .settings import Settings
from .signals import Signals
from .state import State
from .step import Outcome, StepRunner
from .task import Schedule, Task

Runner = StepRunner | WorkerStepRunner


class EndedError(Exception):
    """A rank was asked to end; the message has whether it was this one, and what was saved."""

    exit_code = 128 + signal.SIGTERM


@dataclass
class Position:
    """Where in the run it is: what a checkpoint holds as ``position``, in addition to variables.

    Attributes:
        epoch_loss: sum over the steps of the epoch at work.
        event_steps: steps since the last event of TensorBoard.
        event_sums: over these, of ``loss`` and the metrics: how many steps a call has is no matter.
        loss: the mean over the epoch before.
        metrics: of the last test.
        best: the least test loss so far; None before the first.
        best_step: the step of the weights that are kept for it; None where none are.
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
    """One run of a rank that trains: ``resume``, then ``run``."""

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
        """Resume from the newest checkpoint that any rank holds; return its step, or 0."""
        found, source, self.writer = resume.Search(
            self.settings, self.cluster, self.launch, self.gang, self.state, self.identity
        ).begin()
        if found is not None:
            self.position = Position(**found)
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
            if source != self.cluster.chief:
                line += f", from the checkpoint of {source}"
            print(line, flush=True)
        return self.position.step

    def run(self, runner: Runner, summaries: Summaries) -> dict[str, Any]:
        """Train to the end; see worker.run for what it returns.

        Raises:
            EndedError: a rank was asked to end.
            TrainingError: the loss is no number any more, or the ranks' weights differ.
            tf.errors.OpError: another rank was lost.
        """
        size, position = self.settings.batch_size, self.position
        aloud = self.cluster.is_chief
        reporter = Reporter(self.progress, size, self.plan, aloud, position.metrics)
        self.signals.saves = True
        try:
            while not self._over():
                outcome = self._steps(runner, reporter)
                if self._at(self.settings.summary_every):
                    summaries.write(position.step, self._train_values())
                if self._at(self.per_epoch):
                    self._end_epoch(reporter, summaries)
                self._save(outcome)
                if outcome.asked and not self._over():
                    self._leave(summaries)
            return self._finish(summaries)
        except PEER_ERRORS as error:
            if not self.signals.asked:
                raise
            raise EndedError(
                f"{self.cluster.task}: asked to end; no checkpoint could be made, another rank is "
                "lost"
            ) from error

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

    def _end_epoch(self, reporter: Reporter, summaries: Summaries) -> None:
        position, settings, epoch = self.position, self.settings, self._epoch()
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

    def _save(self, outcome: Outcome) -> None:
        """Write a checkpoint, if it is time for one."""
        due = outcome.due or self._at(self.settings.checkpoint_every)
        if not (due or outcome.asked or self._over()) or self.position.step == self._saved_step:
            return
        self._saved_step, self._saved_at = self.position.step, time.monotonic()
        step, arrays, sha256 = self.position.step, self.state.snapshot(), ""
        if len(self.cluster.ranks) > 1:
            own = digest(arrays.values())
            self.gang.compare(own, f"at step {step}")
            sha256 = own.hex()
        if self.writer is not None:
            self.writer.save(step, arrays, asdict(self.position), self._over(), sha256)

    def _leave(self, summaries: Summaries) -> None:
        step = self.position.step
        summaries.close()
        self.progress.write("saving", force=True, **self.plan, step=step, epoch=self._epoch())
        self._finish_writing()
        self.gang.final_barrier()
        why = "asked to end" if self.signals.asked else "ends with another rank, asked to end"
        raise EndedError(f"{self.cluster.task}: {why}; the checkpoint of step {step} is written")

    def _finish(self, summaries: Summaries) -> dict[str, Any]:
        """Agree on one result, leave its files, and meet for the last time."""
        position = self.position
        values, metrics = self.state.model_values(), position.metrics
        if self.settings.patience and position.best_step is not None:
            values, metrics = self.state.best_values(), position.best_metrics
            if self.cluster.is_chief:
                print(f"the weights of step {position.best_step} are left, the best", flush=True)
        results: dict[str, Any] = {
            **self.plan,
            "step": position.step,
            "epoch": self._epoch(),
            "loss": position.loss,
            "metrics": metrics,
        }
        self.progress.write("saving", **results)
        weights = digest(values)
        self.gang.compare(weights, "at the end")
        summaries.close()
        try:
            if self.cluster.is_chief:
                export(self.task, values, self.settings.model_dir)
        finally:
            self._finish_writing()
        self.gang.final_barrier()
        results["weights_sha256"] = weights.hex()
        self.progress.write("done", force=True, **results)
        print(f"{self.cluster.task}: done, SHA-256 of the weights {weights.hex()}", flush=True)
        return results

    def _finish_writing(self) -> None:
        """Wait until the checkpoints are written; for a copy, a warning is enough."""
        if self.writer is None:
            return
        with suppress(*[] if self.cluster.is_chief else [TrainingError]):
            self.writer.finish()


@dataclass
class Reporter:
    """Writes the progress records of one training run; see host/records.py for their fields.

    ``plan`` has those that stay the same; if ``aloud``, each test prints a line, too. ``metrics``
    are those of the last test.
    """

    progress: ProgressWriter
    batch_size: int
    plan: Mapping[str, Any]
    aloud: bool
    metrics: Mapping[str, float]
    _last: tuple[float, int] | None = None
    _tested_from: float = 0.0
    _input_s: float = 0.0
    _exchange_s: float = 0.0

    def training(self, step: int, epoch: int, outcome: Outcome) -> None:
        """Write a record of the steps just made, if it is time for one."""
        self._input_s += outcome.input_s or 0.0
        self._exchange_s += outcome.exchange_s or 0.0
        if not self.progress.due("training"):
            return
        now = time.monotonic()
        rate: dict[str, Any] = {}
        # The first step took most of its time to compile.
        if self._last is not None:
            seconds, steps = now - self._last[0], step - self._last[1]
            rate["examples_per_s"] = round(self.batch_size * steps / seconds, 1)
            if outcome.input_s is not None:
                parts = {"input_ms": self._input_s, "exchange_ms": self._exchange_s}
                parts = {name: 1000 * part / steps for name, part in parts.items()}
                parts["compute_ms"] = max(0.0, 1000 * seconds / steps - sum(parts.values()))
                rate["step_time"] = {name: round(part, 3) for name, part in parts.items()}
        self._last = now, step
        self._input_s = self._exchange_s = 0.0
        self.progress.write(
            "training",
            **self.plan,
            step=step,
            epoch=epoch,
            loss=outcome.loss,
            metrics={**outcome.metrics, **self.metrics},
            memory_mb=_memory_mb(),
            **rate,
        )

    def evaluating(self, step: int, epoch: int, loss: float) -> None:
        """Write a record of the evaluation to come, if it is time for one or it is the last."""
        self._tested_from = time.monotonic()
        if self.progress.due("training") or epoch == self.plan["epochs"]:
            self.progress.write("evaluating", **self.plan, step=step, epoch=epoch, loss=loss)

    def evaluated(self, epoch: int, loss: float, metrics: Mapping[str, float]) -> None:
        """Print the epoch's line, and keep its metrics for the records to come."""
        self.metrics = metrics
        if self._last is not None:  # a test is no part of the steps' time
            self._last = self._last[0] + time.monotonic() - self._tested_from, self._last[1]
        if self.aloud:
            line = f"epoch {epoch}/{self.plan['epochs']}: loss {loss:.4f}"
            print(f"{line}, {metrics_line(metrics)}", flush=True)


def metrics_line(metrics: Mapping[str, float]) -> str:
    """Return the metrics for a reader, such as ``test_accuracy 0.9861, test_loss 0.0437``."""
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def _memory_mb() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20


class Summaries:
    """Writes scalars into a folder, where it is ``on``: in the chief.

    A resumed run begins after ``step`` and adds a file. What an interrupted run has written of
    later steps is left out by TensorBoard.
    """

    def __init__(self, folder: Path, on: bool, step: int) -> None:
        self._writer: Any = None
        if not on:
            return
        # TensorBoard drops what it has seen of this step and later ones, but for the first time
        # that it sees a start.
        start = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
        event = tf.compat.v1.Event(wall_time=time.time(), step=step + 1, session_log=start)
        content = event.SerializeToString()
        try:
            self._writer = tf.summary.create_file_writer(str(folder))
            with self._writer.as_default(step=step):
                tf.raw_ops.ImportEvent(writer=self._writer._resource, event=content)
        except tf.errors.OpError as error:
            raise TrainingError(
                f"TensorBoard events cannot be written in {folder}: {error.message.splitlines()[0]}"
            ) from error

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values, by tag such as ``train/loss``, of ``step``."""
        if self._writer is None:
            return
        with self._writer.as_default(step=step):
            for tag, value in values.items():
                tf.summary.scalar(tag, value)

    def close(self) -> None:
        """Write what is still held back."""
        if self._writer is not None:
            self._writer.flush()


def export(task: Task, values: list[Any], folder: Path) -> None:
    """Save the model as ``--export`` asks, whole or not at all; an earlier one is replaced last.

    A twin of the model is saved, made outside of the strategy: saving the model itself would need
    all ranks. ``model.keras`` is for ``tf.keras.models.load_model`` of Keras 2, ``saved_model/``
    for anything that loads a SavedModel. ``values`` are numpy arrays in Keras' order.
    """
    form = task.settings.export
    if form == "none":
        return
    try:
        twin = task.build_model()
        twin.set_weights(values)
        twin = keyed.exportable(twin)
        folder.mkdir(parents=True, exist_ok=True)
        if form in ("keras", "both"):
            unfinished = folder / "unfinished-model.keras"
            twin.save(str(unfinished))
            unfinished.replace(folder / "model.keras")
        if form in ("saved-model", "both"):
            unfinished = folder / "unfinished-saved_model"
            shutil.rmtree(unfinished, ignore_errors=True)
            twin.export(str(unfinished))
            shutil.rmtree(folder / "saved_model", ignore_errors=True)
            unfinished.rename(folder / "saved_model")
    except (OSError, tf.errors.OpError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise TrainingError(f"the model could not be written in {folder}: {reason}") from error
