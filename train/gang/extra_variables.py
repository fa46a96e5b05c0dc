"""Reads variables from ``-e`` and from files of variables, and converts their values.

Numbers for the script keep their spelling.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

ENVIRONMENT, ARGUMENTS = "train_job_environment", "train_job_args"


class Unsafe(str):
    """A string that Ansible never treats as a template, like ``!unsafe`` in YAML."""


class _Reader(yaml.SafeLoader):
    """Reads YAML, with dates as text. Tagged values, such as ``!vault``, become placeholders."""


class Tagged:
    """A placeholder for a tagged value, which only Ansible can read."""


def _unsafe(loader: Any, node: Any) -> Any:
    return Unsafe(node.value) if isinstance(node, yaml.ScalarNode) else Tagged()


_YAML = "tag:yaml.org,2002:"
TEXT = f"{_YAML}str"
_Reader.add_multi_constructor("!", lambda loader, suffix, node: Tagged())
_Reader.add_constructor("!unsafe", _unsafe)
_Reader.add_constructor(f"{_YAML}timestamp", lambda loader, node: node.value)
#: Tags of values that keep their spelling when they become text for the script.
_WRITTEN = tuple(f"{_YAML}{kind}" for kind in ("int", "float", "timestamp"))
_NAMES = (*_WRITTEN, f"{_YAML}bool", f"{_YAML}null")


def _as_written(node: Any, tags: Sequence[str]) -> Any:
    """Return a scalar node with one of ``tags`` as text, and any other node unchanged."""
    if not isinstance(node, yaml.ScalarNode) or node.tag not in tags:
        return node
    return yaml.ScalarNode(TEXT, node.value, node.start_mark, node.end_mark)


def _for_script(loader: _Reader, name: str, node: Any) -> None:
    """Change a variable's node so that numbers for the script keep their spelling.

    Only the script's environment and arguments are changed.
    """
    if name == ENVIRONMENT and isinstance(node, yaml.MappingNode):
        loader.flatten_mapping(node)
        pairs = [(_as_written(k, _NAMES), _as_written(v, _WRITTEN)) for k, v in node.value]
        node.value = pairs
    elif name == ARGUMENTS and isinstance(node, yaml.SequenceNode):
        node.value = [_as_written(item, _WRITTEN) for item in node.value]


def load(source: str, name: str = "") -> Any:
    """Return the contents of a YAML text: variables or, with ``name``, the value of a variable."""
    loader = _Reader(source)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if name:
            _for_script(loader, name, node)
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                _for_script(loader, str(key.value), value)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def is_plain(value: Any) -> bool:
    """Return whether a value contains no placeholders."""
    if isinstance(value, dict):
        return all(map(is_plain, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    return not isinstance(value, Tagged)


def plain(value: Any, name: str) -> Any:
    """Return the value of a variable, converted to types of JSON.

    Raise ValueError if it cannot be written as JSON or is not valid Unicode.
    """
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise ValueError(
                f"{name} is binary data, but variables must be text: encode it as base64"
            ) from None
    if isinstance(value, str):
        try:
            # JSON writes characters beyond 16 bits as two halves.
            text = value.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError:
            raise ValueError(f"{name} contains {value!r}, which is not valid UTF-8") from None
        return Unsafe(text) if isinstance(value, Unsafe) else text
    if isinstance(value, Mapping):
        return {plain(key, name): plain(item, name) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, name) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item, name) for item in value), key=str)
    if isinstance(value, (os.PathLike, datetime.date, datetime.time)):
        return str(value)
    raise ValueError(
        f"{name} has the unsupported type {type(value).__name__}: use text, numbers, "
        "booleans, lists or dictionaries"
    )
