"""All private names of TensorFlow that the training program uses are in one module."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.support.training_ranks import TRAIN, WORKER

#: The module with all of them, each with its reason.
INTERNALS = TRAIN / "training/tensorflow_internals.py"
#: Private names of the standard library.
ALLOWED = {"os._exit"}


def private_names(path: Path) -> list[str]:
    """Return imports of TensorFlow's private packages, and private attributes of other objects."""
    names = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tensorflow."):
            names.append(str(node.module))
        elif isinstance(node, ast.Import):
            names += [each.name for each in node.names if each.name.startswith("tensorflow.")]
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            owner = ast.unparse(node.value)
            if not node.attr.startswith("__") and owner not in ("self", "cls"):
                names.append(f"{owner}.{node.attr}")
    return [name for name in names if name not in ALLOWED]


def test_private_names_of_tensorflow_are_in_one_module() -> None:
    paths = [WORKER, *(TRAIN / "training").rglob("*.py"), *(TRAIN / "collectives").rglob("*.py")]
    found = {path: names for path in paths if (names := private_names(path))}
    assert found.keys() == {INTERNALS}, found
    assert "tensorflow.python.eager" in found[INTERNALS]
