"""Examples in memory: a user's arrays, and the contents of small files."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from . import ALL_BELOW, Data, DataError, Split, naming, spread, text_fingerprint

PARTS = ("train", "test")
#: Maximum size in MiB of data to embed in a graph. A serialized graph is limited to 2 GiB, and must
#: also contain the network.
EMBEDDED_MB = 1500


class ArraySplit:
    """Examples in memory: numpy arrays of features, uint8 or float32, and labels."""

    def __init__(self, features: Any, labels: Any) -> None:
        self.size, self._embedded = len(features), False
        self._arrays: Any = (features, labels)
        self._tensors: Any = None

    def embed(self) -> None:
        """Let ``fetch`` embed the data in each graph; call this before the first ``fetch``.

        Raise DataError if the data are larger than EMBEDDED_MB.
        """
        # For graphs that run in other processes: captured tensors are sent with every call, those
        # in a graph only once.
        size_mb = sum(array.nbytes for array in self._arrays) // 2**20
        if size_mb > EMBEDDED_MB:
            raise DataError(
                f"{size_mb} MiB of examples, but the limit with parameter servers is "
                f"{EMBEDDED_MB} MiB: use --data images or tfrecord, which the workers read "
                "themselves"
            )
        self._embedded = True

    def fetch(self, indices: Any) -> tuple[Any, Any]:
        """Return the features and labels of the examples at ``indices``; see Split."""
        if self._embedded:
            features, labels = map(tf.constant, self._arrays)
        elif self._tensors is None:
            # The tensors are made outside of any graph, so that graphs only refer to them. They are
            # not made before the first fetch, because no TensorFlow operation may run before the
            # strategy is made.
            with tf.init_scope(), tf.device("CPU:0"):
                features, labels = self._tensors = tuple(map(tf.constant, self._arrays))
            self._arrays = None  # so that the data are in memory only once
        else:
            features, labels = self._tensors
        return tf.gather(features, indices), tf.gather(labels, indices)

    def mean(self) -> Any:
        """Return the examples' mean ``scaled`` features, numpy float32.

        Call this before the first ``fetch``.
        """
        features = self._arrays[0]
        total = features.mean(axis=0, dtype="float64")
        return (total / 255 if features.dtype == "uint8" else total).astype("float32")


def scaled(features: Any) -> Any:
    """Scale uint8 tensors to float32 from 0 to 1; return float32 tensors unchanged."""
    if features.dtype != tf.uint8:
        return features
    # Multiplied, because TensorFlow rewrites a division in a graph to that, and the bits must be
    # the same outside of a graph.
    return tf.cast(features, tf.float32) * tf.constant(1 / 255, tf.float32)


def from_arrays(name: str, train: Any, test: Any, *, classes: int | None = None) -> Data:
    """Return a user's examples as Data.

    ``train`` and ``test`` are each one of these:

    * a pair of arrays, features [n, ...] and labels [n, ...]. Images keep the type uint8, in which
      they are scaled later: features of uint8 [n, height, width, channels], or [n, height, width]
      with several rows and columns, which get a channel axis. All others become float32. Labels of
      whole numbers [n] or [n, 1] are classes from 0, by default up to the highest; others are
      numbers;
    * a ``tf.data.Dataset`` of single examples (features, labels) with a known cardinality;
    * an object with ``size`` and ``fetch``, see Split. Then both must be such objects. If labels
      are classes, ``train.classes`` is their number. ``train.fingerprint`` is optional.

    Datasets and such objects run TensorFlow operations, so make the strategy first. Raise DataError
    if the examples cannot be used.
    """
    are_splits = [isinstance(part, Split) for part in (train, test)]
    if all(are_splits):
        return _from_splits(name, train, test)
    if any(are_splits):
        raise DataError(f"{name}: train and test must both be arrays, or both have size and fetch")
    x_train, y_train = _arrays(f"{name}: train", train)
    x_test, y_test = _arrays(f"{name}: test", test)
    for noun, in_train, in_test in (("an example", x_train, x_test), ("a label", y_train, y_test)):
        if in_train.shape[1:] != in_test.shape[1:] or in_train.dtype != in_test.dtype:
            raise DataError(
                f"{name}: {noun} is {in_train.shape[1:]} of {in_train.dtype} in train, but "
                f"{in_test.shape[1:]} of {in_test.dtype} in test"
            )
    if y_train.dtype.kind == "f":
        classes = None
    else:
        low = int(min(y_train.min(), y_test.min()))
        high = int(max(y_train.max(), y_test.max()))
        classes = classes if classes is not None else high + 1
        if low < 0 or high >= classes:
            wrong = low if low < 0 else high
            raise DataError(f"{name}: label {wrong} is not one of the classes 0 to {classes - 1}")
    splits = ArraySplit(x_train, y_train), ArraySplit(x_test, y_test)
    digest = _fingerprint(x_train, y_train, x_test, y_test)
    return Data(name, *splits, x_train.shape[1:], classes, digest, y_train.shape[1:])


def _arrays(what: str, value: Any) -> tuple[Any, Any]:
    """Return features (uint8 or float32) and labels (int64 or float32) of a pair or a dataset."""
    pair = _read_dataset(what, value) if hasattr(value, "cardinality") else value
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise DataError(f"{what} must be a pair (features, labels), a tf.data.Dataset or a Split")
    features, labels = np.asarray(pair[0]), np.asarray(pair[1])
    for array, noun in ((features, "features"), (labels, "labels")):
        if array.dtype.kind not in "buif":
            raise DataError(f"{what}: the {noun} have the type {array.dtype}, expected numbers")
        if array.ndim == 0 or len(array) == 0:
            raise DataError(f"{what}: there are no {noun}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise DataError(f"{what}: the {noun} contain NaN or infinity")
    if len(features) != len(labels):
        raise DataError(f"{what}: {len(features)} features, but {len(labels)} labels")
    if features.ndim == 1:
        raise DataError(f"{what}: features must have the shape [n, ...]; reshape [n] to [n, 1]")
    if features.dtype == np.uint8 and features.ndim == 3 and min(features.shape[1:]) > 1:
        features = features[..., np.newaxis]
    if features.dtype != np.uint8 or features.ndim < 4:  # small numbers are not always pixels
        features = features.astype(np.float32, copy=False)
    if labels.dtype.kind == "f":
        return features, labels.astype(np.float32, copy=False)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise DataError(
            f"{what}: class labels must have the shape [n] or [n, 1], not {list(labels.shape)}"
        )
    return features, labels.astype(np.int64, copy=False)


def _read_dataset(what: str, dataset: Any) -> tuple[Any, Any]:
    """Read a tf.data.Dataset of single examples into two numpy arrays."""
    size = int(dataset.cardinality())
    if size < 0:
        raise DataError(
            f"{what}: the dataset is infinite or its size is unknown: use take(), or "
            "dataset.apply(tf.data.experimental.assert_cardinality(n))"
        )
    spec = dataset.element_spec
    if not isinstance(spec, tuple) or len(spec) != 2:
        raise DataError(f"{what}: the dataset's elements must be pairs (features, label)")
    if not all(part.shape.is_fully_defined() for part in spec):
        raise DataError(
            f"{what}: elements of {spec} are not single examples, all of one shape: "
            "use unbatch(), or set_shape() in a map"
        )
    arrays = [np.empty((size, *part.shape), part.dtype.as_numpy_dtype) for part in spec]
    for number, element in enumerate(dataset.as_numpy_iterator()):
        for array, value in zip(arrays, element, strict=True):
            array[number] = value
    return arrays[0], arrays[1]


def _from_splits(name: str, train: Split, test: Split) -> Data:
    """Return Data for objects with a ``fetch``, which is traced to find its types and shapes."""
    seen = []
    for part, split in zip(PARTS, (train, test), strict=True):
        if split.size < 1:
            raise DataError(f"{name}: {part}.size is {split.size}, expected at least 1")
        spec = tf.TensorSpec([None], tf.int64)
        features, labels = tf.function(split.fetch).get_concrete_function(spec).structured_outputs
        shape, label_shape = features.shape[1:], labels.shape[1:]
        if features.dtype != tf.float32 or not shape.is_fully_defined() or not shape.rank:
            raise DataError(
                f"{name}: {part}.fetch returns features of {features.dtype.name} "
                f"{features.shape}, expected float32 [n, ...] of a known shape"
            )
        if labels.dtype not in (tf.int64, tf.float32) or not label_shape.is_fully_defined():
            raise DataError(
                f"{name}: {part}.fetch returns labels of {labels.dtype.name} "
                f"{labels.shape}, expected int64 or float32 [n, ...] of a known shape"
            )
        seen.append((tuple(shape), labels.dtype, tuple(label_shape)))
    if seen[0] != seen[1]:
        raise DataError(f"{name}: train.fetch and test.fetch return different shapes or types")
    shape, kind, label_shape = seen[0]
    classes = getattr(train, "classes", None)
    if (kind == tf.int64) != (classes is not None):
        raise DataError(
            f"{name}: train must have the attribute classes, a number, if and only if fetch "
            "returns int64 labels"
        )
    known = text_fingerprint(name, train.size, test.size, shape, classes)
    fingerprint = str(getattr(train, "fingerprint", None) or known)
    return Data(name, train, test, shape, classes, fingerprint, label_shape)


def _fingerprint(*arrays: Any) -> str:
    """Return the SHA-256 in hex of the arrays' types, shapes and contents.

    Of an array with more than ALL_BELOW bytes, only SAMPLES rows are hashed.
    """
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        if array.nbytes > ALL_BELOW:
            array = array[spread(len(array))]
        digest.update(memoryview(np.ascontiguousarray(array).reshape(-1)).cast("B"))
    return digest.hexdigest()


def open_npz(folder: Path) -> Data:
    """Return the data in the only .npz file of a folder: x_train, y_train, x_test and y_test."""
    found = list(folder.glob("*.npz"))
    if len(found) != 1:
        raise DataError(f"npz: {folder} contains {len(found)} .npz files, expected one")
    [path] = found
    wanted = [f"{axis}_{part}" for part in PARTS for axis in "xy"]
    with naming(path, zipfile.BadZipFile, zlib.error, ValueError):
        if not zipfile.is_zipfile(path):
            raise DataError(f"{path}: corrupt, or not an archive written by numpy.savez")
        # Without pickles, because they can run arbitrary code.
        with np.load(path, allow_pickle=False) as archive:
            missing = [name for name in wanted if name not in archive.files]
            if missing:
                raise DataError(f"{path} lacks {', '.join(missing)}; it must contain {wanted}")
            x_train, y_train, x_test, y_test = (archive[name] for name in wanted)
    data = from_arrays(str(path), (x_train, y_train), (x_test, y_test))
    return replace(data, name="npz")
