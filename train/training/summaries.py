"""TensorBoard events of the chief."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf

from .cluster import TrainingError


class Summaries:
    """Writes scalars into a folder; one that is off writes nothing.

    Args:
        folder: of the event files; a resumed run adds one.
        on: whether this rank writes: the chief does.

    Raises:
        TrainingError: the folder cannot be written.
    """

    def __init__(self, folder: Path, on: bool) -> None:
        self._writer = None
        try:
            if on:
                self._writer = tf.summary.create_file_writer(str(folder))
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
