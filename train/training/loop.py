"""The training loop: from the first step, or from a checkpoint, to the trained model.

It writes progress records for the launcher, events for TensorBoard, and lines for the log.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import tensorflow as tf
from host.plain_text import note
from host.progress_records import ProgressWriter

from . import agreement, keyed, resume
from .checkpoints import digest, warn
from .cluster import Cluster, ConfigError, Launch, TrainingError
from .data import DataError
from .data.files import unreadable
from .gang import PEER_ERRORS
from .optimizer import make_optimizer
from .parameter_servers import ParameterServers
from .results import Results
from .settings import Settings
from .signals import Signals
from .state import TrainingState
from .step import TrainStep
from .step_runner import StepsOutcome
from .synchronous import Synchronous
from .task import Task, open_task
from .tensorflow_internals import write_event

#: Free bytes required to start a new file of TensorBoard events after a write error.
_EVENTS_ROOM = 2**20
#: Tests that take less than SHORT_TEST_S are reported only every REPORTED_S. The records would
#: otherwise be too many if an epoch takes a few milliseconds.
SHORT_TEST_S = 0.5
REPORTED_S = 1.0


class EndedError(Exception):
    """A rank was asked to end.

    The message reports whether it was this rank, and whether a checkpoint was written.
    """

    exit_code = 128 + signal.SIGTERM


@dataclass
class Position:
    """The position in a run. A checkpoint stores it as ``position``, next to the variables."""

    step: int = 0
    #: Sum over the steps of the current epoch.
    epoch_loss: float = 0.0
    #: Number of steps since the last TensorBoard event, and sums of ``loss`` and the metrics over
    #: these steps. They do not depend on the number of steps in a call.
    event_steps: int = 0
    event_sums: dict[str, float] = field(default_factory=dict)
    #: Mean training loss over the last completed epoch.
    loss: float = math.nan
    #: Results of the last test.
    metrics: dict[str, float] = field(default_factory=dict)
    #: The lowest test loss so far; None before the first.
    best: float | None = None
    #: The step of the saved best weights; None if none are saved.
    best_step: int | None = None
    best_metrics: dict[str, float] = field(default_factory=dict)
    #: Number of tests since the lowest test loss.
    waited: int = 0
    #: Whether the run has ended before its last epoch.
    early: bool = False


def _rhythm_of_checkpoints(settings: Settings) -> dict[str, Any]:
    """Return the field of a progress record that states how often checkpoints are written.

    Return {} if a checkpoint is written only at the end.
    """
    rhythms = []
    if settings.checkpoint_every:
        rhythms.append(f"{settings.checkpoint_every} steps")
    if settings.checkpoint_seconds:
        rhythms.append(f"{settings.checkpoint_seconds:g} s")
    return {"checkpoints": f"every {' or '.join(rhythms)}"} if rhythms else {}


class Loop:
    """The training loop of one rank. All ranks run the same loop.

    The constructor waits for all ranks, opens the data, builds the network and reads the newest
    checkpoint. It raises the errors of all these. ``run`` then trains.
    """

    def __init__(
        self, settings: Settings, cluster: Cluster, launch: Launch, progress: ProgressWriter
    ) -> None:
        self.settings, self.cluster, self.progress = settings, cluster, progress

        # Form the gang.
        progress.write("starting", **_rhythm_of_checkpoints(settings))
        mode = (ParameterServers if cluster.has_servers else Synchronous)(settings, cluster)
        self.gang, strategy, self.signals = mode.gang, mode.strategy, Signals()
        replicas = strategy.num_replicas_in_sync
        note(f"{cluster.task}: replicas {replicas}, TensorFlow {tf.__version__}", sys.stdout)

        # Define what is learned, and how.
        self.task = task = open_task(settings)
        self._agree()
        with strategy.scope():
            model = task.build_model()
            optimizer, self.schedule = make_optimizer(task, model)
        train_step = TrainStep(task, model, optimizer, mode.shares)
        self.state = TrainingState(strategy, model, optimizer, keeps_best=settings.patience > 0)
        self.evaluate = mode.evaluation(train_step, self.state)
        self.per_epoch = task.steps_per_epoch
        self.plan = {"steps": settings.epochs * self.per_epoch, "epochs": settings.epochs}

        # Begin the run, or resume it from the newest checkpoint.
        identity = {**settings.identity, "data_sha256": task.data.fingerprint}
        found, source, self.writer = resume.Search(
            settings, cluster, launch, self.gang, self.state, identity, self.per_epoch
        ).begin()
        self._saved_at, self._saved_step = time.monotonic(), -1
        self.position = Position() if found is None else self._resume(found, source)
        step, chief = self.position.step, cluster.is_chief
        self.summaries = Summaries(settings.tensorboard_dir, chief, step)
        self.runner = mode.runner(train_step, step)
        size, metrics = settings.batch_size, self.position.metrics
        self.reporter = Reporter(progress, size, self.plan, chief, metrics)

    def _agree(self) -> None:
        """Raise the same ConfigError in all ranks if a rank has other options or other data."""
        data = self.task.data
        own = agreement.terms(self.settings, data.train.size, data.fingerprint)
        rows = list(map(json.loads, self.gang.texts(json.dumps(own))))
        if difference := agreement.disagreement(self.cluster.ranks, rows):
            self.gang.part()
            raise ConfigError(difference)

    def _resume(self, found: dict[str, Any], source: str) -> Position:
        """Return the position in the checkpoint of the rank ``source``.

        ``found`` contains the fields of the position. They are adapted to the current options. The
        variables have already been restored.
        """
        position = Position(**found)
        if not self.settings.patience:
            # Best weights are no longer kept.
            position.best_step, position.best_metrics = None, {}
        elif position.best_step is None:
            # The checkpoint was made without --patience, so the weights of its best test are lost.
            position.best, position.waited = None, 0
        if not self.settings.summary_every:
            position.event_steps, position.event_sums = 0, {}
        self._saved_step = position.step
        other = f", from the checkpoint of {source}" if source != self.cluster.chief else ""
        note(f"{self.cluster.task}: resumed at step {position.step}{other}", sys.stdout)
        return position

    def run(self) -> Results:
        """Train to the end and return the results; for the errors see worker.run."""
        self.signals.saves = True
        try:
            while not self._over():
                outcome = self._steps()
                if self._at(self.settings.summary_every):
                    self.summaries.write(self.position.step, self._train_values())
                if self._at(self.per_epoch):
                    self._end_epoch()
                self._save(outcome)
                if outcome.asked and not self._over():
                    self._leave()
            return self._finish()
        except PEER_ERRORS as error:
            if not self.signals.asked:
                raise
            why = "no checkpoint could be written, because another rank was lost"
            raise EndedError(f"{self.cluster.task}: asked to end; {why}") from error
        except tf.errors.InvalidArgumentError as error:
            names = unreadable(error.message)
            if not names:
                raise
            raise DataError(
                f"{self.task.data.name}: examples could not be read or decoded: {names}: replace "
                "or remove them"
            ) from error

    def _steps(self) -> StepsOutcome:
        position = self.position
        count = self._count(self.runner.most_steps)
        seconds = self.settings.checkpoint_seconds
        due = bool(seconds) and time.monotonic() - self._saved_at >= seconds
        outcome = self.runner(position.step, count, asked=self.signals.asked, due=due)
        if not math.isfinite(outcome.loss):
            raise self._diverged(f"the loss is {outcome.loss}")
        position.step += count
        position.epoch_loss += outcome.sums["loss"]
        if self.settings.summary_every:
            position.event_steps += count
            for name, value in outcome.sums.items():
                position.event_sums[name] = position.event_sums.get(name, 0.0) + value
        self.reporter.training(position.step, self._epoch(), outcome)
        return outcome

    def _count(self, most: int) -> int:
        """Return how many steps, up to ``most``, to run at once.

        They do not pass the end of the epoch or the next checkpoint or event.
        """
        step = self.position.step
        if step == 0:
            return 1  # report the first step at once
        rhythms = (self.per_epoch, self.settings.checkpoint_every, self.settings.summary_every)
        return min([most, *(every - step % every for every in rhythms if every)])

    def _over(self) -> bool:
        return self.position.early or self.position.step >= self.plan["steps"]

    def _at(self, every: int) -> bool:
        return bool(every) and self.position.step % every == 0

    def _epoch(self) -> int:
        """Return the epoch of the last step, counted from 1."""
        return -(-self.position.step // self.per_epoch)

    def _end_epoch(self) -> None:
        position, settings, epoch = self.position, self.settings, self._epoch()
        position.loss, position.epoch_loss = position.epoch_loss / self.per_epoch, 0.0
        due = settings.evaluate_every and epoch % settings.evaluate_every == 0
        if not due and not self._over():
            return
        self.reporter.evaluating(position.step, epoch, position.loss)
        position.metrics = self.evaluate()
        self.reporter.evaluated(epoch, position.loss, position.metrics)
        tests = {f"test/{name[5:]}": value for name, value in position.metrics.items()}
        self.summaries.write(position.step, {**tests, "train/epoch_loss": position.loss})
        loss = position.metrics["test_loss"]
        self._check_test_loss()
        if position.best is None or loss < position.best - settings.min_delta:
            position.best, position.waited = loss, 0
            if settings.patience:
                position.best_step, position.best_metrics = position.step, position.metrics
                self.state.keep_best()
        else:
            position.waited += 1
        if settings.patience and position.waited >= settings.patience:
            position.early = True
            self.reporter.print_line(
                f"stopping early after epoch {epoch}: no test loss below "
                f"{position.best:.4f} in {position.waited} tests"
            )

    def _check_test_loss(self) -> None:
        """Raise TrainingError if the loss of the last test is not finite."""
        loss = self.position.metrics["test_loss"]
        if not math.isfinite(loss):
            raise self._diverged(f"the test loss is {loss}")

    def _train_values(self) -> dict[str, float]:
        """Return means over the steps since the last event, and the learning rate.

        Reset the sums for the next event.
        """
        position = self.position
        values = {name: s / position.event_steps for name, s in position.event_sums.items()}
        values["learning_rate"] = float(self.schedule(position.step - 1))
        position.event_steps, position.event_sums = 0, {}
        return {f"train/{name}": value for name, value in values.items()}

    def _save(self, outcome: StepsOutcome) -> None:
        """Write a checkpoint if one is due."""
        due = outcome.due or self._at(self.settings.checkpoint_every)
        if not (due or outcome.asked or self._over()) or self.position.step == self._saved_step:
            return
        step, arrays, sha256 = self.position.step, self.state.snapshot(), ""
        if len(self.cluster.ranks) > 1:
            own = digest(arrays.values())
            self.gang.compare(own, f"at step {step}")
            sha256 = own.hex()
        # The loss of a step is that before its update.
        if name := self.state.not_finite(arrays):
            raise self._diverged(f"values of {name} are not finite")
        self._saved_step, self._saved_at = step, time.monotonic()
        if self.writer is not None:
            self.writer.save(step, arrays, asdict(self.position), self._over(), sha256)

    def _diverged(self, what: str) -> TrainingError:
        """Return the error of a run that cannot go on, because numbers are not finite."""
        remedy = "lower --learning-rate"
        if self._saved_step >= 0:
            remedy += (
                f", and start again with --resume never: the checkpoint of step {self._saved_step} "
                f"may already be bad (or remove it from {self.settings.checkpoint_dir})"
            )
        return TrainingError(f"{what} after step {self.position.step}: {remedy}")

    def _leave(self) -> None:
        step = self.position.step
        self.summaries.close()
        self.progress.write("saving", force=True, **self.plan, step=step, epoch=self._epoch())
        self._finish_writing()
        self.gang.final_barrier()
        why = "asked to end" if self.signals.asked else "ends with another rank, asked to end"
        raise EndedError(f"{self.cluster.task}: {why}; the checkpoint of step {step} is written")

    def _finish(self) -> Results:
        """Check that all ranks have the same weights, save the model, and return the results."""
        position = self.position
        if not position.metrics:  # it resumed at its last step, before any test
            position.metrics = self.evaluate()
        self._check_test_loss()  # that of a checkpoint, if no step was left
        values, metrics = self.state.model_values(), position.metrics
        if self.settings.patience and position.best_step is not None:
            values, metrics = self.state.best_values(), position.best_metrics
            self.reporter.print_line(
                f"keeping the best weights, those of step {position.best_step}"
            )
        results = Results(
            task=self.cluster.task,
            step=position.step,
            steps=self.plan["steps"],
            epoch=self._epoch(),
            epochs=self.plan["epochs"],
            loss=position.loss,
            metrics=metrics,
        )
        self.progress.write("saving", **results.fields)
        weights = digest(values)
        self.gang.compare(weights, "at the end")
        self.summaries.close()
        try:
            if self.cluster.is_chief:
                export(self.task, values, self.settings.model_dir)
        finally:
            self._finish_writing()
        self.gang.final_barrier()
        if self.settings.data == "synthetic":
            self.reporter.print_line(
                "trained on synthetic data: the metrics say nothing about real data"
            )
        return replace(results, weights_sha256=weights.hex())

    def _finish_writing(self) -> None:
        """Wait until the checkpoints are written. Only the chief raises TrainingError on failure.

        In other ranks, a checkpoint that could not be written has already caused a warning.
        """
        if self.writer is not None:
            with suppress(*[] if self.cluster.is_chief else [TrainingError]):
                self.writer.finish()


@dataclass
class Reporter:
    """Writes the progress records and the log lines of one training run."""

    progress: ProgressWriter
    batch_size: int
    #: The fields that are the same in all records: numbers of steps and epochs.
    plan: Mapping[str, Any]
    #: Whether to print lines.
    verbose: bool
    #: Results of the last test.
    metrics: Mapping[str, float]
    _last: tuple[float, int] | None = None
    _tested_from: float = 0.0
    _test_s: float = 0.0
    _test_reported_at: float = -math.inf
    _input_s: float = 0.0
    _exchange_s: float = 0.0

    def training(self, step: int, epoch: int, outcome: StepsOutcome) -> None:
        """Write a record of the latest steps if one is due."""
        self._input_s += outcome.input_s or 0.0
        self._exchange_s += outcome.exchange_s or 0.0
        if not self.progress.due("training"):
            return
        now = time.monotonic()
        rate: dict[str, Any] = {}
        # The first step is mostly compilation.
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
        """Write a record that an evaluation begins.

        Short ones are not all reported, but the first one and that of the last epoch are.
        """
        self._tested_from = now = time.monotonic()
        is_recent = now - self._test_reported_at < REPORTED_S and self._test_s < SHORT_TEST_S
        if is_recent and epoch < self.plan["epochs"]:
            return
        self._test_reported_at = now
        fields = {**self.plan, "step": step, "epoch": epoch, "loss": loss}
        self.progress.write("evaluating", force=True, **fields)

    def evaluated(self, epoch: int, loss: float, metrics: Mapping[str, float]) -> None:
        """Print the epoch's line, and keep its metrics for later records."""
        self.metrics = metrics
        self._test_s = time.monotonic() - self._tested_from
        if self._last is not None:  # the time of a test does not count as time of steps
            self._last = self._last[0] + self._test_s, self._last[1]
        epochs = self.plan["epochs"]
        self.print_line(f"epoch {epoch}/{epochs}: loss {loss:.4f}, {metrics_line(metrics)}")

    def print_line(self, line: str) -> None:
        """Print a line if this is the chief."""
        if self.verbose:
            note(line, sys.stdout)


def metrics_line(metrics: Mapping[str, float]) -> str:
    """Format metrics for a reader, such as ``test_accuracy 0.9861, test_loss 0.0437``."""
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def _memory_mb() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20


class Summaries:
    """Writes TensorBoard scalars into a folder if it is ``on``, which it is only in the chief.

    Scalars that cannot be written, for example on a full disk, are lost. Only the first such error
    is reported, as a warning. The constructor raises TrainingError if it cannot create the file for
    any reason other than a full disk.
    """

    def __init__(self, folder: Path, on: bool, step: int) -> None:
        self._folder, self._has_warned = folder, False
        self._writer = tf.summary.create_noop_writer()  # None: continue in a new file
        if not on:
            return
        # An interrupted run may have written later steps. At a session start, TensorBoard drops the
        # data of this step and later ones, except when it sees the first start.
        start = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
        event = tf.compat.v1.Event(wall_time=time.time(), step=step + 1, session_log=start)
        content = event.SerializeToString()
        try:
            self._writer = tf.summary.create_file_writer(str(folder))
            with self._writer.as_default(step=step):
                write_event(self._writer, content)
        except tf.errors.ResourceExhaustedError as error:
            self._give_up(error)
        except tf.errors.OpError as error:
            raise TrainingError(
                f"TensorBoard events cannot be written to {folder}: {error.message.splitlines()[0]}"
            ) from error

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write the ``values`` of a step. Their keys are tags, such as ``train/loss``."""
        try:
            if self._writer is None:
                if shutil.disk_usage(self._folder).free < _EVENTS_ROOM:
                    return
                self._writer = tf.summary.create_file_writer(str(self._folder))
            with self._writer.as_default(step=step):
                for tag, value in values.items():
                    tf.summary.scalar(tag, value)
        except (OSError, tf.errors.OpError) as error:
            self._give_up(error)

    def close(self) -> None:
        """Write all buffered values."""
        try:
            if self._writer is not None:
                self._writer.flush()
        except tf.errors.OpError as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Abandon the file: its end may be damaged, and TensorBoard does not read beyond that."""
        self._writer = None
        if not self._has_warned:
            self._has_warned = True
            reason = str(getattr(error, "message", error)).partition("\n")[0]
            warn(f"TensorBoard events are lost, the training continues: {reason}")


def export(task: Task, values: list[Any], folder: Path) -> None:
    """Save the model in the formats of ``--export``, each of them completely or not at all.

    ``values`` are the model's weights in Keras' order. Raise TrainingError if the model cannot be
    written.
    """
    form = task.settings.export
    if form == "none":
        return
    try:
        # Built outside of the strategy, because all ranks would have to save the model itself.
        exportable = keyed.exportable(task.build_model())
        if keyed.is_subclassed(exportable):
            # Keras learns its inputs from a call, and does not export it before.
            exportable(tf.zeros([1, *task.data.shape]), training=False)
        exportable.set_weights(values)
        folder.mkdir(parents=True, exist_ok=True)
        if form in ("keras", "both"):
            unfinished = folder / "unfinished-model.keras"
            exportable.save(str(unfinished))
            unfinished.replace(folder / "model.keras")
        if form in ("saved-model", "both"):
            unfinished = folder / "unfinished-saved_model"
            shutil.rmtree(unfinished, ignore_errors=True)
            exportable.export(str(unfinished))
            shutil.rmtree(folder / "saved_model", ignore_errors=True)
            unfinished.rename(folder / "saved_model")
    except (OSError, tf.errors.OpError, ValueError, TypeError, NotImplementedError) as error:
        # Keras raises the last three for a model that it cannot save.
        reason = getattr(error, "strerror", None) or str(error).strip().partition("\n")[0]
        raise TrainingError(f"the model could not be written to {folder}: {reason}") from error
