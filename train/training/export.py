"""Leaves the trained model: by the chief alone, whole or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import tensorflow as tf

from . import keyed
from .cluster import TrainingError
from .task import Task

MODEL_FILE = "model.keras"
SAVED_MODEL = "saved_model"


def export(task: Task, values: list[Any], folder: Path) -> None:
    """Save the model as ``--export`` says; what an earlier run left is replaced at the end.

    A twin of the model is saved, made outside of the strategy: saving the model itself would need
    all ranks.

    Args:
        task: builds the twin.
        values: numpy arrays of the model's variables, in Keras' order.
        folder: gets ``model.keras``, for ``tf.keras.models.load_model`` of Keras 2, or
            ``saved_model/``, for anything that loads a SavedModel.

    Raises:
        TrainingError: it cannot be written.
    """
    form = task.settings.export
    if form == "none":
        return
    try:
        _save(task, values, folder, form)
    except (OSError, tf.errors.OpError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise TrainingError(f"the model could not be written in {folder}: {reason}") from error


def _save(task: Task, values: list[Any], folder: Path, form: str) -> None:
    twin = task.build_model()
    twin.set_weights(values)
    twin = keyed.exportable(twin)
    folder.mkdir(parents=True, exist_ok=True)
    if form in ("keras", "both"):
        unfinished = folder / f"unfinished-{MODEL_FILE}"
        twin.save(str(unfinished))
        unfinished.replace(folder / MODEL_FILE)
    if form in ("saved-model", "both"):
        unfinished = folder / f"unfinished-{SAVED_MODEL}"
        shutil.rmtree(unfinished, ignore_errors=True)
        twin.export(str(unfinished))
        shutil.rmtree(folder / SAVED_MODEL, ignore_errors=True)
        unfinished.rename(folder / SAVED_MODEL)
