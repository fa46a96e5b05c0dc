"""Runs code with TensorFlow in a separate process: whole tests, functions of tests, scripts."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import json
import os
import pickle
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.assertion.rewrite import rewrite_asserts

from tests.support.lab import REPOSITORY, clean_environment
from tests.support.tensorflow_forks import forks
from tests.support.training_ranks import PATIENCE, TRAIN, Rank


class _Module:
    """A module that is imported at its first use, in a process that has it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        found = importlib.import_module(self._name)
        return getattr(found, attribute)


def modules(*names: str) -> Any:
    """Return modules of TensorFlow's environment or the training program, for use there."""
    return [_Module(name) for name in names]


np, tf = modules("numpy", "tensorflow")


def _run(python: str, script: str, arguments: Sequence[str], project: bool) -> str:
    variables = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    if project:
        variables["PYTHONPATH"] = str(TRAIN)
    environment = clean_environment(**variables)
    with tempfile.NamedTemporaryFile("r") as output:
        process = forks(python).start(
            arguments, environment, Path("/"), Path(output.name), script=script
        )
        code = process.poll(PATIENCE)
        process.kill()
        said = output.read()
    assert code == 0, said[-6000:]
    return said.partition("RESULT")[2].partition("\n")[0]


def call(python: str, function: Callable[..., Any], *given: Any, project: bool = True) -> Any:
    """Call a function of a test module with TensorFlow; return its result, require success."""
    script = (
        f"sys = __import__('sys'); sys.path.append({str(REPOSITORY)!r})\n"
        "from tests.support import training_script as here\nhere.answer(*sys.argv[1:])"
    )
    # Paths are sent as objects, because another Python may be unable to unpickle them.
    arguments = json.dumps(given, default=lambda path: {"path": str(path)})
    words = [function.__module__, function.__name__, arguments]
    return pickle.loads(bytes.fromhex(_run(python, script, words, project)))


def answer(name: str, function: str, given: str) -> None:
    """Call a function of a test module; its assertions show values as in pytest."""
    path = REPOSITORY / (name.replace(".", "/") + ".py")
    tree = ast.parse(path.read_bytes())
    rewrite_asserts(tree, path.read_bytes())
    sys.modules[name] = module = type(sys)(name)
    exec(compile(tree, path, "exec", dont_inherit=True), vars(module))
    arguments = json.loads(given, object_hook=lambda found: Path(found["path"]))
    try:
        result = inspect.unwrap(getattr(module, function))(*arguments)
        print("RESULT" + pickle.dumps(result).hex(), flush=True)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # otherwise, TensorFlow would wait for servers


def inside(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test with TensorFlow."""
    own = inspect.signature(test)

    @functools.wraps(test)
    def run(tf_python: str, **given: Any) -> None:
        call(tf_python, test, *(given[name] for name in own.parameters))

    python = inspect.Parameter("tf_python", inspect.Parameter.KEYWORD_ONLY)
    vars(run)["__signature__"] = own.replace(parameters=[*own.parameters.values(), python])
    pytest.mark.tensorflow(run)
    return run


def replicas_of_cpu(count: int) -> Any:
    """Return a strategy with some replicas; must run before any other TensorFlow operation."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    parts = [tf.config.LogicalDeviceConfiguration()] * count
    tf.config.set_logical_device_configuration(cpu, parts)
    return tf.distribute.MirroredStrategy([f"cpu:{number}" for number in range(count)])


def halves(replicas: Any, whole: Any) -> Any:
    """Return a batch divided between two replicas."""
    half = len(whole) // 2
    return replicas.experimental_distribute_values_from_function(
        lambda context: whole[half * context.replica_id_in_sync_group :][:half]
    )


def compare_models(folder: Path, shape: tuple[int, ...]) -> list[tuple[str, str]]:
    """Check that both files of a model give the same; return each layer's package and class."""
    images = np.random.default_rng(1).random((7, *shape), np.float32)
    model = tf.keras.models.load_model(folder / "model.keras")
    saved = tf.saved_model.load(str(folder / "saved_model"))
    served = np.asarray(saved.serve(images))
    assert served.shape == (7, 10)
    np.testing.assert_allclose(np.asarray(model(images)), served, rtol=0, atol=1e-6)
    kinds = [type(layer) for layer in model.layers]
    return [(kind.__module__.partition(".")[0], kind.__name__) for kind in kinds]


def read_scalars(*folders: Path) -> list[dict[str, dict[int, float]]]:
    """Return the TensorBoard scalars in each folder, by tag and step."""
    read: list[dict[str, dict[int, float]]] = []
    for folder in folders:
        read.append({})
        for path in sorted(folder.glob("events*"), key=lambda path: path.stat().st_mtime_ns):
            for event in tf.compat.v1.train.summary_iterator(str(path)):
                for value in event.summary.value:
                    numbers = read[-1].setdefault(value.tag, {})
                    numbers[event.step] = float(tf.make_ndarray(value.tensor))
    return read


def scalars(python: str, *ranks: Rank) -> list[dict[str, dict[int, float]]]:
    found: list[dict[str, dict[int, float]]] = call(
        python, read_scalars, *(rank.folder / "tensorboard" for rank in ranks)
    )
    return found
