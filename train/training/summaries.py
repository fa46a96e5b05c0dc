"""TensorBoard events of the chief."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf


class Summaries:
    """Writes scalars into a folder; one that is off writes nothing.

    Args:
        folder: of the event files; a resumed run adds one.
        on: whether this rank writes: the chief does.
    """

    def __init__(self, folder: Path, on: bool) -> None:
        self._writer = tf.summary.create_file_writer(str(folder)) if on else None

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
