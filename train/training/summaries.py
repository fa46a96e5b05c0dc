"""TensorBoard events of the chief."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf

from .cluster import TrainingError


class Summaries:
    """Writes scalars into a folder; one that is off writes nothing.

    Args:
        folder: of the event files; a resumed run adds one.
        on: whether this rank writes: the chief does.
        step: the one that a resumed run begins after; 0 for a run from its beginning. What an
            interrupted run has written of later steps is left out by TensorBoard.

    Raises:
        TrainingError: the folder cannot be written.
    """

    def __init__(self, folder: Path, on: bool, step: int) -> None:
        self._writer = None
        try:
            if on:
                self._writer = tf.summary.create_file_writer(str(folder))
            if self._writer is not None:
                # TensorBoard drops what it has seen of this step and later ones, but for the first
                # time that it sees a start.
                start = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
                event = tf.compat.v1.Event(wall_time=time.time(), step=step + 1, session_log=start)
                with self._writer.as_default(step=step):
                    tf.raw_ops.ImportEvent(
                        writer=self._writer._resource, event=event.SerializeToString()
                    )
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
