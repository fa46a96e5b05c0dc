"""Data sets of TensorFlow Datasets, whose package prepares and decodes TFRecord files."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

import tensorflow as tf

from . import Data, DataError, naming
from .arrays import scaled
from .tfrecords import first_record, read_records, record_data

TFDS = "tfds:"


def open_tfds(name: str, folder: Path, *, download: bool, image_size: int) -> Data:
    """Return a data set of TensorFlow Datasets on disk, such as ``mnist`` or ``mnist:3.0.1``.

    Its files must be TFRecords. The split ``train`` is for training, and ``test``, or else
    ``validation``, is for testing. ``folder`` is the package's ``data_dir``. If ``download`` is
    set, a data set that is not yet prepared there is prepared, by one process at a time.

    Images are scaled to a height and width of ``image_size``. If it is 0, they are scaled to the
    size of the first image, unless all have the same size. Raise DataError if the data set cannot
    be used.
    """
    try:
        import tensorflow_datasets
    except ImportError as error:
        raise DataError(
            f"{TFDS}{name}: tensorflow_datasets cannot be imported ({error}): install it with "
            "tensorflow_extra_requirements of setup.yml"
        ) from error
    where = f"{TFDS}{name} in {folder}"
    try:
        builder = tensorflow_datasets.builder(name, data_dir=str(folder))
        if download and not builder.is_prepared():
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / ".prepared-by-one").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                builder.download_and_prepare()
    except Exception as error:  # the package raises many types
        reason = next(filter(None, str(error).splitlines()), type(error).__name__)
        raise DataError(f"{where} cannot be opened: {reason}") from error
    if not builder.is_prepared():
        build = f"tfds build {name} --data_dir {folder}"
        raise DataError(
            f"{TFDS}{name} is not prepared in {folder}: run `{build}`, or add --download"
        )
    info = builder.info
    keys = info.supervised_keys
    if not keys or len(keys) != 2 or not all(isinstance(key, str) for key in keys):
        raise DataError(
            f"{where} does not define a pair of features and label (supervised_keys: {keys})"
        )
    if info.file_format is not None and info.file_format.value != "tfrecord":
        raise DataError(
            f"{where} is stored in {info.file_format.value} files, but only tfrecord is supported"
        )
    test = "test" if "test" in info.splits else "validation"
    if not {"train", test} <= set(info.splits):
        raise DataError(
            f"{where} must have the splits train and test, but has {', '.join(info.splits)}"
        )
    parts = [read_records(list(map(Path, info.splits[part].filepaths))) for part in ("train", test)]
    classes = getattr(info.features[keys[1]], "num_classes", None)

    def decoded(record: Any) -> tuple[Any, Any]:
        example = info.features.deserialize_example(record)
        label = tf.cast(example[keys[1]], tf.float32 if classes is None else tf.int64)
        return example[keys[0]], label

    first = parts[0].first_file
    with naming(first, Exception), tf.device("CPU:0"):
        features, label = decoded(first_record(first))
    shape = tuple(int(length) for length in features.shape)
    if image_size and len(shape) == 3:
        shape = (image_size, image_size, shape[2])
    fixed = tuple(info.features[keys[0]].shape or ()) == shape

    def parse(record: Any) -> tuple[Any, Any]:
        features, label = decoded(record)
        if not fixed:
            features = tf.image.resize(tf.cast(features, tf.float32), shape[:2], antialias=True)
            features = tf.clip_by_value(features * tf.constant(1 / 255), 0.0, 1.0)
        if len(shape) >= 3:
            features = scaled(features)
        return tf.ensure_shape(tf.cast(features, tf.float32), shape), label

    spec = tf.TensorSpec(label.shape, label.dtype)
    return record_data(f"{TFDS}{name}", parts, parse, shape, spec, classes)
