"""What a training rank leaves on its host: checkpoints and the trained model.

All ranks must save, because TensorFlow may have to combine the replicas' variables for it; but
only the chief's files are kept. The others write into a scratch folder of their own, and remove it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import tensorflow as tf

from .cluster import Cluster


class Outputs:
    """The folders of a rank, as a context that removes its scratch folder in the end.

    Args:
        cluster: tells whether this rank is the chief.
        checkpoint_dir: folder of the checkpoints, which the ranks may share.
        model_file: where the model goes, a path that ends in ``.keras``.
        kept: how many checkpoints are kept.
        saved: what the checkpoints hold, by name.
    """

    def __init__(
        self,
        cluster: Cluster,
        checkpoint_dir: Path,
        model_file: Path,
        kept: int,
        saved: Mapping[str, Any],
    ) -> None:
        """Choose the folders, and remove what a killed rank of this name has left in its own."""
        self._scratch = checkpoint_dir / f"scratch-{cluster.task}"
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._model_file = model_file if cluster.is_chief else self._scratch / model_file.name
        self._saved_step: int | None = None
        self._manager = tf.train.CheckpointManager(
            tf.train.Checkpoint(**saved),
            str(checkpoint_dir if cluster.is_chief else self._scratch),
            max_to_keep=kept,
        )

    def __enter__(self) -> Outputs:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the scratch folder."""
        shutil.rmtree(self._scratch, ignore_errors=True)

    def checkpoint(self, step: int) -> None:
        """Save ``ckpt-<step>``, unless it is the last one saved, and remove the oldest."""
        if step != self._saved_step:
            self._manager.save(checkpoint_number=step)
            self._saved_step = step

    def model(self, model: Any) -> None:
        """Save the model in Keras' own format; a file of an earlier run is replaced at once."""
        self._model_file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._model_file.with_name(f"unfinished-{self._model_file.name}")
        model.save(str(unfinished))
        os.replace(unfinished, self._model_file)
