"""Examples in TFRecord files of tf.train.Example, described by ``features.json``."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import tensorflow as tf

from . import Data, DataError, naming
from .arrays import PARTS
from .files import chosen_size, decode_image
from .tfrecords import first_record, read_records, record_data

FEATURES_FILE = "features.json"


def open_tfrecords(folder: Path, image_size: int) -> Data:
    """Return the examples in FOLDER/train*.tfrecord and FOLDER/test*.tfrecord.

    An Example has a ``label``, an int64 class or a list of floats, and either ``image``, an encoded
    PNG or JPEG, or ``x``, a list of floats. ``features.json`` must contain ``classes``, such as 10,
    if labels are classes, and ``shape``, such as [8, 8, 1], if ``x`` is not a plain vector. The
    files must not be compressed, because examples are read by offset. For ``image_size`` see
    ``chosen_size``.
    """
    folder = folder.absolute()
    described = folder / FEATURES_FILE
    given = _read_features_file(described)
    parts = []
    for part in PARTS:
        files = sorted(folder.glob(f"{part}*.tfrecord"))
        if not files:
            raise DataError(f"tfrecord: {folder} contains no {part}*.tfrecord")
        parts.append(read_records(files))
    specs, shape = _specs(parts[0].first_file, given, image_size)
    classes = given.get("classes")

    def parse(record: Any) -> tuple[Any, Any]:
        parsed = tf.io.parse_single_example(record, specs)
        label = parsed["label"]
        if "image" in parsed:
            features = decode_image(parsed["image"], shape[:2])
        else:
            features = tf.reshape(parsed["x"], shape)
        if classes is None:
            return features, label
        fits = (label >= 0) & (label < classes)
        said = ["label", label, "is not one of the classes 0 to", classes - 1]
        with tf.control_dependencies([tf.debugging.Assert(fits, said)]):
            return features, tf.identity(label)

    label = tf.TensorSpec(specs["label"].shape, specs["label"].dtype)
    others = [described] if described.exists() else []
    return record_data("tfrecord", parts, parse, shape, label, classes, *others)


def _read_features_file(path: Path) -> dict[str, Any]:
    """Return ``shape`` and ``classes`` of features.json; empty if the file does not exist."""
    if not path.exists():
        return {}
    with naming(path, ValueError):
        given: Any = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(given, dict) or not given.keys() <= {"shape", "classes"}:
        raise DataError(f'{path}: must be an object that contains only "shape" and "classes"')
    shape, classes = given.get("shape", [1]), given.get("classes")
    lengths = shape if isinstance(shape, list) and shape else [None]
    if not all(type(length) is int and length > 0 for length in lengths):
        raise DataError(f"{path}: shape {shape!r} is not a list of positive integers")
    if classes is not None and (type(classes) is not int or classes < 1):
        raise DataError(f"{path}: classes {classes!r} is not a positive integer")
    return given


def _specs(
    path: Path, given: dict[str, Any], image_size: int
) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Return the specs that parse each Example, and the shape of the features.

    Both are derived from the first record in the file at ``path``. ``given`` is features.json.
    """
    # For damaged records, a package below TensorFlow raises DecodeError.
    with naming(path, Exception):
        fields = tf.train.Example.FromString(first_record(path).numpy()).features.feature
    kinds = {name: fields[name].WhichOneof("kind") for name in sorted(fields)}
    where = f"tfrecord: the first record of {path}"
    specs = {}
    if kinds.get("image") == "bytes_list":
        with naming(path, Exception):
            size = chosen_size(fields["image"].bytes_list.value[0], image_size)
        shape: tuple[int, ...] = (*size, 3)
        specs["image"] = tf.io.FixedLenFeature([], tf.string)
    elif kinds.get("x") == "float_list":
        floats = len(fields["x"].float_list.value)
        shape = tuple(given.get("shape", [floats]))
        if not floats or math.prod(shape) != floats:
            raise DataError(f"{where} has {floats} floats in x, but the shape is {list(shape)}")
        specs["x"] = tf.io.FixedLenFeature([floats], tf.float32)
    else:
        raise DataError(f"{where} has neither image (bytes) nor x (floats); it has {kinds}")
    if kinds.get("label") == "int64_list":
        if given.get("classes") is None:
            raise DataError(
                f"{where} has a class as its label, but the number of classes is "
                f'unknown: write {{"classes": N}} to {path.parent / FEATURES_FILE}'
            )
        specs["label"] = tf.io.FixedLenFeature([], tf.int64)
    elif kinds.get("label") == "float_list":
        if given.get("classes") is not None:
            raise DataError(
                f"{where} has floats as its label, but {FEATURES_FILE} specifies classes"
            )
        count = len(fields["label"].float_list.value)
        specs["label"] = tf.io.FixedLenFeature([count] if count > 1 else [], tf.float32)
    else:
        raise DataError(f"{where} has no label (an int64 or floats); it has {kinds}")
    return specs, shape
