"""A user's own network and data: a Python file with ``build_model`` and ``build_dataset``.

``build_model(...)`` returns a Keras model from features [n, ...] to outputs (logits, for classes).
``build_dataset(...)`` returns a pair, what to train on and what to test on; each of them is a pair
of arrays (features, labels), or a ``tf.data.Dataset`` of single examples that ends, or an object
with ``size`` and ``fetch(indices)``; see data/arrays.py. ``loss(labels, outputs)``, if it is there,
gives a float for each example: [n]; and so does each function of the dictionary by name that
``metrics()`` returns. ``build_optimizer(learning_rate)`` returns a Keras 2 optimizer in place of
--optimizer; its argument is the learning rate by step.

Each may take any of these arguments, by name: ``seed`` (int), ``folder`` (a Path, --data-dir); and
``build_model`` also ``shape`` (of one example's features) and ``classes`` (int, or None for
numbers). Each function here raises ConfigError where the file cannot be used.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from .cluster import ConfigError

#: Of a batch's labels and outputs: a float for each example.
PerExample = Callable[[Any, Any], Any]
#: The names of metrics that are not the program's own.
METRIC = re.compile(
    r"(?!(loss|epoch_loss|accuracy|mean_absolute_error|learning_rate|test_.*|top\d+_accuracy)$)"
    r"[a-z][a-z0-9_]{0,39}"
)


def load(path: str) -> ModuleType:
    """Return the module in a file; those in its folder can be imported by it."""
    file = Path(path).resolve()
    # The whole path: data and network may be two files of one name.
    name = f"user{file.with_suffix('')}".replace("/", "_").replace(".", "_")
    if name in sys.modules:
        return sys.modules[name]
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def call(path: str, name: str, **offered: Any) -> Any:
    """Return what a function of the module gives, called with those arguments that it takes."""
    function: Callable[..., Any] | None = getattr(load(path), name, None)
    if not callable(function):
        raise ConfigError(f"{path} has no function {name}()")
    parameters = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is not parameter.VAR_POSITIONAL
    ]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return function(**offered)
    for parameter in parameters:
        if parameter.name not in offered and parameter.default is parameter.empty:
            raise ConfigError(
                f"{path}: {name}() asks for {parameter.name!r}; it may take {', '.join(offered)}"
            )
    taken = {parameter.name for parameter in parameters}
    return function(**{key: value for key, value in offered.items() if key in taken})


def make(path: str, name: str, kind: type, kind_name: str, **offered: Any) -> Any:
    """Return what ``call`` does, which must be of a ``kind`` of Keras 2."""
    made = call(path, name, **offered)
    if not isinstance(made, kind):
        raise ConfigError(
            f"{path}: {name}() gave {type(made).__module__}.{type(made).__name__}, not a "
            f"{kind_name} of Keras 2"
        )
    return made


def which(name: str, *paths: str) -> str:
    """Return the one of some files, of those that are Python files, that has a function; or ''."""
    modules = dict.fromkeys(path for path in paths if path.endswith(".py"))
    found = [path for path in modules if getattr(load(path), name, None) is not None]
    if len(found) > 1:
        raise ConfigError(f"{' and '.join(found)} both have {name}(): keep one")
    return "".join(found)


def losses_and_metrics(*paths: str) -> list[tuple[str, str, PerExample]]:
    """Return the own loss and metrics of some files: file, name and function of each."""
    own = []
    if path := which("loss", *paths):
        own.append((path, "loss", _per_example(path, "loss", load(path).loss)))
    if path := which("metrics", *paths):
        own += [(path, name, metric) for name, metric in _metrics(path).items()]
    return own


def _metrics(path: str) -> dict[str, PerExample]:
    made = call(path, "metrics")
    if not isinstance(made, dict) or not all(
        isinstance(name, str) and METRIC.fullmatch(name) for name in made
    ):
        raise ConfigError(
            f"{path}: metrics() must return a dictionary of functions by names of their own, such "
            "as sureness: small letters, digits and _, and not loss or accuracy"
        )
    return {name: _per_example(path, name, function) for name, function in made.items()}


def _per_example(path: str, name: str, function: PerExample) -> PerExample:
    try:
        inspect.signature(function).bind("labels", "outputs")
    except TypeError:
        raise ConfigError(f"{path}: {name} must be a function {name}(labels, outputs)") from None
    return function
