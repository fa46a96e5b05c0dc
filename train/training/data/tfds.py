"""Data sets of TensorFlow Datasets that are prepared on disk: ``tfds:NAME``.

Their files are TFRecords, so examples are read by their numbers like those of tfrecords.py, in the
package's own features. The package need not be there for other data.
"""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

from . import fingerprints
from .arrays import scaled
from .base import Data, DataError, naming
from .tfrecords import RecordSplit, index

PREFIX = "tfds:"


def open_tfds(name: str, folder: Path, *, fetch: bool, image_size: int) -> Data:
    """Return a data set of TensorFlow Datasets: its splits ``train`` and ``test``.

    Without a split ``test``, that is ``validation``.

    Args:
        name: as ``tfds.builder`` takes it, such as ``mnist`` or ``mnist:3.0.1``.
        folder: where it is prepared, the package's ``data_dir``.
        fetch: whether it is to be prepared there if it is not, by one process at a time.
        image_size: height and width that images get, in pixels; 0: those that all have, or else of
            the first one.

    Raises:
        DataError: the package or the data set is missing, or the data set has no pair of features
            and label that can be learnt.
    """
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise DataError(
            f"{PREFIX}{name}: tensorflow_datasets cannot be imported ({error}): install it with "
            "tensorflow_extra_requirements of setup.yml"
        ) from error
    import tensorflow as tf

    where = f"{PREFIX}{name} in {folder}"
    try:
        builder = tfds.builder(name, data_dir=str(folder))
        if fetch and not builder.is_prepared():
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / ".prepared-by-one").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                builder.download_and_prepare()
    except Exception as error:  # the package raises many
        reason = next(filter(None, str(error).splitlines()), type(error).__name__)
        raise DataError(f"{where} cannot be opened: {reason}") from error
    if not builder.is_prepared():
        raise DataError(
            f"{PREFIX}{name}: it is not prepared in {folder}: run `tfds build {name} --data_dir "
            f"{folder}`, or add --download"
        )
    info = builder.info
    keys = info.supervised_keys
    if not keys or len(keys) != 2 or not all(isinstance(key, str) for key in keys):
        raise DataError(f"{where} names no pair of features and label (supervised_keys: {keys})")
    if info.file_format is not None and info.file_format.value != "tfrecord":
        raise DataError(f"{where} is in {info.file_format.value} files, and tfrecord is read")
    test = "test" if "test" in info.splits else "validation"
    if not {"train", test} <= set(info.splits):
        raise DataError(f"{where} has no splits train and test, but {', '.join(info.splits)}")
    files = {part: [Path(path) for path in info.splits[part].filepaths] for part in ("train", test)}
    indexes = {part: index(files[part]) for part in files}
    classes = getattr(info.features[keys[1]], "num_classes", None)

    def decoded(record: Any) -> tuple[Any, Any]:
        example = info.features.deserialize_example(record)
        label = tf.cast(example[keys[1]], tf.float32 if classes is None else tf.int64)
        return example[keys[0]], label

    first = files["train"][indexes["train"][0][0]]
    with naming(first, Exception), tf.device("CPU:0"):
        record = tf.data.TFRecordDataset(str(first)).take(1).get_single_element()
        features, label = decoded(record)
    shape = tuple(int(length) for length in features.shape)
    if image_size and len(shape) == 3:
        shape = (image_size, image_size, shape[2])
    fixed = tuple(info.features[keys[0]].shape or ()) == shape

    def parse(record: Any) -> tuple[Any, Any]:
        features, label = decoded(record)
        if not fixed:
            features = tf.image.resize(tf.cast(features, tf.float32), shape[:2], antialias=True)
            features = tf.clip_by_value(features * tf.constant(1 / 255), 0.0, 1.0)
        return tf.ensure_shape(tf.cast(scaled(features), tf.float32), shape), label

    spec = tf.TensorSpec(label.shape, label.dtype)
    train, tested = (RecordSplit(files[p], *indexes[p], parse, shape, spec) for p in files)
    named = [*files["train"], *files[test]]
    return Data(
        f"{PREFIX}{name}",
        train,
        tested,
        shape,
        classes,
        fingerprints.of_files(named[0].parent, named, [path.stat().st_size for path in named]),
        tuple(label.shape),
    )
