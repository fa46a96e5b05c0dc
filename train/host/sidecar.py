"""The evaluator: tests every checkpoint of the gang as it appears, beside the training.

It needs the chief's checkpoint folder, by a shared file system. Without one it never sees a
checkpoint and waits, without having imported TensorFlow, until it is told to end.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, NoReturn

from . import digits
from .records import ProgressWriter
from .reports import tell

#: Seconds between two looks into the checkpoint folder.
POLL_S = 0.5


def evaluate_checkpoints(folder: Path, seed: int, progress: ProgressWriter) -> NoReturn:
    """Test each new checkpoint in ``folder``, until SIGTERM or SIGINT ends the process with 0.

    Every test is a progress record of phase ``evaluating`` with ``step`` and ``metrics``; the
    last one, of phase ``done``, repeats the newest.
    """
    newest: dict[str, Any] = {}

    def end(number: int, frame: object) -> NoReturn:
        try:
            progress.write("done", force=True, **newest)
        finally:
            os._exit(0)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    progress.write("waiting", force=True)
    while not (folder / "checkpoint").exists():
        time.sleep(POLL_S)

    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # so small a test leaves the GPUs to the others
    import tensorflow as tf

    model = digits.build_model(seed)
    test = digits.make_test(model, digits.load()[1])
    checkpoint = tf.train.Checkpoint(model=model)
    done = None
    while True:
        time.sleep(POLL_S)
        path = tf.train.latest_checkpoint(str(folder))
        if path is not None and path != done:
            try:
                checkpoint.restore(path).expect_partial()
            except tf.errors.NotFoundError:
                continue  # it was replaced by a newer one meanwhile
            done = path
            newest = {"step": int(path.rpartition("-")[2]), "metrics": test()}
            progress.write("evaluating", force=True, **newest)
            print(f"checkpoint of step {newest['step']}: {tell(newest['metrics'])}", flush=True)
