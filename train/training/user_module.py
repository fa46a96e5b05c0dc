"""A user's network and data: a Python file with ``build_model`` and ``build_dataset``.

It may also define ``loss``, ``metrics`` and ``build_optimizer``; see docs/training.md for their
arguments and results. Each function here raises ConfigError if the file cannot be used.
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

#: Maps a batch's labels and outputs to a float for each example.
PerExample = Callable[[Any, Any], Any]
#: Names of metrics that do not collide with the program's.
METRIC = re.compile(
    r"(?!(loss|epoch_loss|accuracy|mean_absolute_error|learning_rate|test_.*|top[0-9]+_accuracy)$)"
    r"[a-z][a-z0-9_]{0,39}"
)


def load(path: str) -> ModuleType:
    """Return the module in a file; it can import modules in the same folder."""
    file = Path(path).resolve()
    # The whole path, because data and network may be two files with the same name.
    name = f"user{file.with_suffix('')}".replace("/", "_").replace(".", "_")
    if name in sys.modules:
        return sys.modules[name]
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def call(path: str, name: str, **offered: Any) -> Any:
    """Call a function of a user's file and return its result.

    Only those of the ``offered`` arguments are passed that the function accepts.
    """
    function: Callable[..., Any] | None = getattr(load(path), name, None)
    if not callable(function):
        raise ConfigError(f"{path} has no function {name}()")
    parameters = inspect.signature(function).parameters.items()
    taken = {key: of for key, of in parameters if of.kind is not of.VAR_POSITIONAL}
    if any(of.kind is of.VAR_KEYWORD for of in taken.values()):
        return function(**offered)
    for asked, of in taken.items():
        if asked not in offered and of.default is of.empty:
            raise ConfigError(
                f"{path}: {name}() requires the argument {asked!r}, but only "
                f"{', '.join(offered)} can be passed"
            )
    return function(**{key: value for key, value in offered.items() if key in taken})


def make(path: str, name: str, kind: type, kind_name: str, **offered: Any) -> Any:
    """Return the result of ``call``, which must be an instance of ``kind``, a class of Keras 2.

    ``kind_name`` is the class's name in errors.
    """
    made = call(path, name, **offered)
    if not isinstance(made, kind):
        found = f"{type(made).__module__}.{type(made).__name__}"
        raise ConfigError(f"{path}: {name}() returned {found}, expected a {kind_name} of Keras 2")
    return made


def which(name: str, *paths: str) -> str:
    """Return the Python file in ``paths`` that defines a function, or '' if there is none.

    Raise ConfigError if several files define it.
    """
    modules = dict.fromkeys(path for path in paths if path.endswith(".py"))
    found = [path for path in modules if getattr(load(path), name, None) is not None]
    if len(found) > 1:
        raise ConfigError(
            f"{' and '.join(found)} both define {name}(): remove one of the two functions"
        )
    return "".join(found)


def losses_and_metrics(*paths: str) -> list[tuple[str, str, PerExample]]:
    """Return the loss and metrics that some files define: file, name and function of each."""
    own: list[tuple[str, str, PerExample]] = []
    if path := which("loss", *paths):
        own.append((path, "loss", load(path).loss))
    if path := which("metrics", *paths):
        made = call(path, "metrics")
        if not isinstance(made, dict) or not all(
            isinstance(name, str) and METRIC.fullmatch(name) for name in made
        ):
            raise ConfigError(
                f"{path}: metrics() must return a dictionary of functions with unique "
                "names, such as sureness: lower-case letters, digits and _, but not loss "
                "or accuracy"
            )
        own += [(path, name, function) for name, function in made.items()]
    for path, name, function in own:
        try:
            inspect.signature(function).bind("labels", "outputs")
        except TypeError:
            wanted = f"a function {name}(labels, outputs)"
            raise ConfigError(f"{path}: {name} must be {wanted}") from None
    return own
