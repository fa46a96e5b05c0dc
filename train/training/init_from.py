"""First weights from an earlier training: a checkpoint or a saved model, by the layers' names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tensorflow as tf

from . import checkpoints
from .cluster import ConfigError
from .state import State


def initial_values(path: str, state: State) -> tuple[dict[int, Any], str]:
    """Return first values of the model's variables, by number, and a line that says which.

    A variable gets the values of that of the same name and shape, such as ``conv/kernel``; the
    others keep those that they have.

    Args:
        path: a checkpoint ``ckpt-*.npz``, ``model.keras``, an HDF5 file or a SavedModel's folder.
        state: of the model.

    Raises:
        ConfigError: it cannot be read, or has nothing for this model.
    """
    if not Path(path).exists():
        raise ConfigError(f"--init-from: there is no {path} in {Path.cwd()}")
    try:
        found = _numbered(_read(path))
    except Exception as error:  # what damage raises depends on the format
        reason = str(error).partition("\n")[0][:300]
        raise ConfigError(f"--init-from {path} cannot be read: {reason}") from error
    wanted = _numbered(zip(state.layer_names.values(), state.model_variables, strict=True))
    values, skipped = {}, []
    for number, (name, variable) in enumerate(wanted.items()):
        value = found.get(name)
        if value is not None and tuple(value.shape) == tuple(variable.shape):
            values[number] = value
        else:
            skipped.append(name[0])
    if not values:
        raise ConfigError(
            f"--init-from {path} has no variable of this network's names and shapes, such as "
            f"{next(iter(wanted))[0]}"
        )
    told = f"{len(values)} of {len(wanted)} variables begin as in {path}"
    return values, told + (f"; not {', '.join(skipped)}" if skipped else "")


def _read(path: str) -> Iterable[tuple[str, Any]]:
    """Yield the names and values of the variables of a file or folder."""
    if path.endswith(".npz"):
        checkpoint = checkpoints.read(Path(path))
        for name in checkpoint.names:
            average = name.replace("model.", "average.")
            arrays = checkpoint.arrays
            yield checkpoint.names[name], arrays.get(average, arrays[name])
        return
    if Path(path).is_dir():
        variables = tf.saved_model.load(path).variables
    else:
        variables = tf.keras.models.load_model(path, compile=False).variables
    for variable in variables:
        yield variable.name.partition(":")[0], variable.numpy()


def _numbered(pairs: Iterable[tuple[str, Any]]) -> dict[tuple[str, int], Any]:
    """Return the values by name and how often it was there before."""
    seen: Counter[str] = Counter()
    numbered = {}
    for name, value in pairs:
        numbered[name, seen[name]] = value
        seen[name] += 1
    return numbered
