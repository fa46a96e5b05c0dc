"""The state that a training changes: the variables of the model and the optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from .checkpoints import Arrays
from .cluster import ConfigError
from .tensorflow_internals import loss_scale_variables, moving_averages


class TrainingState:
    """The variables of a training, in an order that is the same in all ranks and runs.

    ``model`` and ``optimizer`` are from Keras and were built in the scope of ``strategy``. If
    ``keeps_best`` is set, variables are reserved for the best weights so far.
    """

    def __init__(
        self, strategy: Any, model: Any, optimizer: Any, *, keeps_best: bool = False
    ) -> None:
        self._strategy = strategy
        self.model_variables = list(model.variables)
        place = {id(variable): n for n, variable in enumerate(self.model_variables)}
        averages = moving_averages(optimizer)
        # The moving averages, by the number of the model's variable.
        self._averages = {
            place[id(variable)]: average
            for variable, average in zip(model.trainable_variables, averages, strict=False)
        }
        averaged = {id(average) for average in averages}
        own = [variable for variable in optimizer.variables if id(variable) not in averaged]
        own += loss_scale_variables(optimizer)
        kept = self.model_variables if keeps_best else []
        with strategy.scope():
            self._best = [tf.Variable(tf.zeros(v.shape, v.dtype), trainable=False) for v in kept]
        self._by_name = {
            **_named("model", enumerate(self.model_variables)),
            **_named("optimizer", enumerate(own, len(self.model_variables))),
            **_named("average", self._averages.items()),
            **_named("best", enumerate(self._best)),
        }

    @property
    def variables(self) -> list[Any]:
        """All variables."""
        return list(self._by_name.values())

    @property
    def layer_names(self) -> dict[str, str]:
        """The variables' names in the model, such as ``conv/kernel``, by their snapshot names."""
        names = [variable.name.partition(":")[0] for variable in self.model_variables]
        return _named("model", enumerate(names))

    def snapshot(self) -> Arrays:
        """Return numpy arrays of all variables, by name.

        They are read from a replica of this rank, because all replicas hold the same values after
        every step. Values of types that numpy does not support, such as bfloat16, become integers
        with the same bits.
        """
        arrays = [
            array.view(f"u{array.itemsize}") if array.dtype.kind == "V" else array
            for array in self._values(self.variables)
        ]
        return dict(zip(self._by_name, arrays, strict=True))

    def not_finite(self, arrays: Arrays) -> str:
        """Return the name of the first weight with NaN or infinity in a snapshot, or ''.

        Constants, such as the mask of an attention, may be infinite.
        """
        for name, variable in self._by_name.items():
            if variable.dtype.is_floating and variable.trainable:
                array = _in_own_type(variable, arrays[name])
                if not np.isfinite(array).all():
                    return self.layer_names.get(name, name)
        return ""

    def model_values(self) -> list[Any]:
        """Return the weights to test and save: numpy arrays in Keras' order.

        A variable that has a moving average is replaced by it.
        """
        return self._values(
            [self._averages.get(n, variable) for n, variable in enumerate(self.model_variables)]
        )

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Set the model's weights to their moving averages, if there are any, in this context."""
        changed = [self.model_variables[n] for n in self._averages]
        before, values = self._values(changed), self._values(list(self._averages.values()))
        _assign_all(changed, values)
        try:
            yield
        finally:
            _assign_all(changed, before)

    def keep_best(self) -> None:
        """Save the current weights as the best ones, if variables are reserved for them."""
        if self._best:
            _assign_all(self._best, self.model_values())

    def best_values(self) -> list[Any]:
        """Return the best weights: numpy arrays in Keras' order."""
        return self._values(self._best)

    def begin_with(self, values: Mapping[int, Any]) -> None:
        """Set initial values of some of the model's variables, by number, and of their averages."""
        for n, value in values.items():
            for variable in (self.model_variables[n], self._averages.get(n)):
                if variable is not None:
                    assign(variable, value)

    def restore(self, arrays: Arrays) -> None:
        """Set the variables to the values of a snapshot, which may lack the best weights.

        Raise ConfigError if the snapshot is from another model or optimizer.
        """
        found, own = _needed_shapes(arrays), _needed_shapes(self._by_name)
        if found != own:
            raise ConfigError(
                "the checkpoint is from a different network or optimizer (it contains "
                f"{len(found)} variables, this run has {len(own)}): use the options that the "
                "checkpoint was written with, --resume never, or another --checkpoint-dir"
            )
        for name, variable in self._by_name.items():
            if name in arrays:
                assign(variable, arrays[name])

    def _values(self, variables: Sequence[Any]) -> list[Any]:
        local = self._strategy.experimental_local_results
        return [np.asarray(local(variable)[0].numpy()) for variable in variables]


def weights_of(arrays: Arrays) -> list[Any]:
    """Return those arrays of a snapshot that are the weights to test, in Keras' order.

    Pass them to ``assign``.
    """
    # Numbers have four digits, or more from 10,000 on.
    names = sorted((n for n in arrays if n.startswith("model.")), key=lambda n: (len(n), n))
    return [arrays.get(name.replace("model.", "average."), arrays[name]) for name in names]


def assign(variable: Any, array: Any) -> None:
    """Set a variable to the values of an array from a snapshot."""
    # Reading some of BatchNorm needs all ranks.
    variable.assign(_in_own_type(variable, array), read_value=False)


def _in_own_type(variable: Any, array: Any) -> Any:
    """Return an array from a snapshot in the type of its variable."""
    own = np.dtype(variable.dtype.as_numpy_dtype)
    return array.view(own) if own.kind == "V" else array


def _named(kind: str, numbered: Iterable[tuple[int, Any]]) -> dict[str, Any]:
    return {f"{kind}.{n:04}": value for n, value in numbered}


def _assign_all(variables: Sequence[Any], values: Sequence[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value, read_value=False)


def _needed_shapes(named: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(of.shape) for name, of in named.items() if not name.startswith("best.")}
