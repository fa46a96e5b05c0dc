"""The evaluator: tests the gang's checkpoints in order, as they appear during the training.

Checkpoints that --checkpoints-kept removes before their turn are not tested.

It needs access to the chief's checkpoint folder on a shared file system. Otherwise it never finds a
checkpoint and waits, without importing TensorFlow, until it is asked to end.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from host.plain_text import note
from host.progress_records import ProgressWriter

from .results import Results
from .settings import Settings

#: Number of examples to test at once.
AT_ONCE = 250
#: Seconds between two listings of the checkpoint folder.
POLL_S = 0.5


def evaluate_checkpoints(task_name: str, settings: Settings, progress: ProgressWriter) -> Results:
    """Test each new checkpoint; return the results of the final checkpoint of a run.

    Every test writes a progress record with the phase ``evaluating``. When the first checkpoint is
    found, a record with this phase but without ``step`` is written. On SIGTERM or SIGINT, the
    process ends with exit code 0, after a record of phase ``done`` with the results of the last
    test, if there was one.
    """
    newest = Results(task_name)

    def end(*_: object) -> NoReturn:
        try:
            progress.write("done", force=True, **newest.fields)
        finally:
            os._exit(0)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    progress.write("waiting", force=True)
    while not _has_checkpoint(settings.checkpoint_dir):
        time.sleep(POLL_S)
    progress.write("evaluating", force=True)

    # The GPUs are for the other tasks.
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    import tensorflow as tf

    from . import checkpoints
    from .evaluation import make_evaluation
    from .loop import metrics_line
    from .state import assign, weights_of
    from .task import open_task

    task = open_task(settings)
    model = task.build_model()
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    test = make_evaluation(strategy, model, task, AT_ONCE)
    done = -1
    while True:
        paths: list[Path] = []
        with suppress(OSError):  # a shared file system may recover soon
            paths = checkpoints.found(settings.checkpoint_dir)
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
            for variable, array in zip(model.variables, weights_of(checkpoint.arrays), strict=True):
                assign(variable, array)
            metrics = test()
            newest = Results(task_name, step=checkpoint.step, metrics=metrics)
            progress.write("evaluating", force=True, **newest.fields)
            line = metrics_line(metrics)
            note(f"checkpoint of step {checkpoint.step}: {line}", sys.stdout)
            if checkpoint.final and path == paths[0]:  # newer ones are from a resumed run
                return newest
        time.sleep(POLL_S)


def _has_checkpoint(folder: Path) -> bool:
    with suppress(OSError):  # a shared file system may recover soon
        return any(folder.glob("ckpt-*.npz"))
    return False
