"""All that a training changes: the variables of the model and of the optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .cluster import ConfigError


class State:
    """The variables of a training, in an order that is the same in every rank and every run.

    Args:
        strategy: the strategy in whose scope they were made.
        model: a Keras model.
        optimizer: a Keras optimizer, built for the model.
    """

    def __init__(self, strategy: Any, model: Any, optimizer: Any) -> None:
        self._strategy = strategy
        self.model_variables = list(model.variables)
        own = list(optimizer.variables)
        if hasattr(optimizer, "dynamic_counter"):  # it scales the loss
            own += [optimizer.dynamic_counter, optimizer._loss_scale.current_loss_scale]
        self.variables = self.model_variables + own

    def snapshot(self) -> dict[str, Any]:
        """Return numpy arrays of all variables by name; no other rank takes part.

        After every step all replicas hold the same values: any of them will do.
        """
        return dict(zip(self.names, self._values(self.variables), strict=True))

    def model_values(self) -> list[Any]:
        """Return numpy arrays of the model's variables, in Keras' order."""
        return self._values(self.model_variables)

    @property
    def names(self) -> list[str]:
        """A name for each variable: its number, which tells them apart, and Keras' name."""
        kinds = ["model"] * len(self.model_variables)
        kinds += ["optimizer"] * (len(self.variables) - len(kinds))
        return [f"{kind}.{n:04}" for n, kind in enumerate(kinds)]

    def restore(self, arrays: Mapping[str, Any]) -> None:
        """Give the variables the values of a snapshot.

        Raises:
            ConfigError: it is one of another model or optimizer.
        """
        shapes = [tuple(variable.shape) for variable in self.variables]
        found = {name: tuple(array.shape) for name, array in arrays.items()}
        if found != dict(zip(self.names, shapes, strict=True)):
            raise ConfigError(
                f"the checkpoint holds {len(found)} variables of another network or optimizer than "
                f"this one with {len(shapes)}: take the options it was made with, "
                "--resume never, or another --checkpoint-dir"
            )
        for name, variable in zip(self.names, self.variables, strict=True):
            variable.assign(arrays[name])

    def _values(self, variables: list[Any]) -> list[Any]:
        local = self._strategy.experimental_local_results
        return [np.asarray(local(variable)[0].numpy()) for variable in variables]
