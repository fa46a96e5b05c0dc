"""The evaluator: tests the gang's checkpoints in order, as they appear during the training.

Checkpoints that --checkpoints-kept removes before their turn are not tested, nor those of other
options or data, nor those that a new run (--resume never) is to replace.

It needs access to the chief's checkpoint folder on a shared file system. Otherwise it never finds a
checkpoint and waits, without importing TensorFlow, until it is asked to end.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from host.plain_text import note
from host.progress_records import ProgressWriter

from . import checkpoints
from .cluster import Launch
from .results import Results
from .resumption import Resumption, choose_resumption
from .settings import Settings

#: Number of examples to test at once.
AT_ONCE = 250
#: Seconds between two listings of the checkpoint folder.
POLL_S = 0.5


@dataclass(frozen=True)
class _Folder:
    """The checkpoint folder. ``replaced`` are the stamps of files that a new run is to replace."""

    path: Path
    replaced: frozenset[tuple[int, int]] = frozenset()

    def listed(self) -> list[Path]:
        """Return the other checkpoints, highest step first; [] if the folder cannot be read now."""
        with suppress(OSError):  # a shared file system may recover soon
            found = checkpoints.found(self.path)
            return [
                path for path in found if not self.replaced or _stamp(path) not in self.replaced
            ]
        return []


#: What must be the same for a checkpoint to be tested.
_MATTERS = ("data", "model", "data_sha256", "normalize", "precision", "ema")


def _stamp(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_ino, about.st_mtime_ns


def evaluate_checkpoints(
    task_name: str, settings: Settings, launch: Launch, progress: ProgressWriter
) -> Results:
    """Test each new checkpoint; return the results of the final checkpoint of the run.

    Every test writes a progress record with the phase ``evaluating``. When the first checkpoint is
    found, a record with this phase but without ``step`` is written. On SIGTERM or SIGINT, the
    process ends with exit code 0, after a record of phase ``done`` with the results of the last
    test, if there was one.
    """
    newest, folder = Results(task_name), _Folder(settings.checkpoint_dir)
    before = frozenset(map(_stamp, folder.listed()))
    resumption = choose_resumption(settings.resume, launch.attempt)
    if resumption is Resumption.NONE:
        folder = _Folder(folder.path, before)

    def end(*_: object) -> NoReturn:
        try:
            progress.write("done", force=True, **newest.fields)
        finally:
            os._exit(0)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    progress.write("waiting", force=True)
    while not folder.listed():
        time.sleep(POLL_S)
    progress.write("evaluating", force=True)

    # The GPUs are for the other tasks.
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    import tensorflow as tf

    from .evaluation import make_evaluation
    from .loop import metrics_line
    from .state import assign, weights_of
    from .task import open_task

    task = open_task(settings)
    model = task.build_model()
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    test = make_evaluation(strategy, model, task, AT_ONCE)
    known = {**settings.identity, "data_sha256": task.data.fingerprint}
    identity = {name: known[name] for name in _MATTERS}
    last_step, done = settings.epochs * task.steps_per_epoch, -1
    while True:
        paths = folder.listed()
        if paths and checkpoints.step_of(paths[0]) < done:
            done = -1  # the checkpoints are from a run that started over
        for path in reversed(paths):
            if checkpoints.step_of(path) <= done:
                continue
            done = checkpoints.step_of(path)
            try:
                checkpoint = checkpoints.patiently(partial(checkpoints.read, path))
            except FileNotFoundError:
                continue  # a newer one has replaced it
            except (checkpoints.DamagedError, *checkpoints.UNREADABLE) as error:
                checkpoints.warn(f"ignoring {path}: {error}")
                continue
            if resumption is Resumption.SAME_JOB and not checkpoint.run.is_new_of(launch.job):
                continue  # the run replaces it
            weights = weights_of(checkpoint.arrays)
            mismatch = checkpoint.mismatch(identity)
            if not mismatch and list(map(_shape, weights)) != list(map(_shape, model.variables)):
                mismatch = "it is from a different network"  # in a file of the same name
            if mismatch:
                checkpoints.warn(f"ignoring {path}: {mismatch}")
                continue
            for variable, array in zip(model.variables, weights, strict=True):
                assign(variable, array)
            metrics = test()
            newest = Results(task_name, step=checkpoint.step, metrics=metrics)
            progress.write("evaluating", force=True, **newest.fields)
            line = metrics_line(metrics)
            note(f"checkpoint of step {checkpoint.step}: {line}", sys.stdout)
            # An earlier run may have ended with this checkpoint, and be continued by this one.
            is_new = _stamp(path) not in before
            over = is_new or checkpoint.step >= last_step or checkpoint.position.get("early")
            if checkpoint.final and over and path == paths[0]:
                return newest
        time.sleep(POLL_S)


def _shape(array: Any) -> tuple[int, ...]:
    return tuple(array.shape)
