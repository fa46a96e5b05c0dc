"""Examples that are read from files when they are fetched: folders of images, TFRecords, TFDS.

They are fetched by graph operations alone, because parameter servers run these in other processes
on the host that fetches. Errors name the files that cannot be read.
"""

from __future__ import annotations

import fcntl
import json
import math
import mmap
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from . import Data, DataError, file_fingerprint, naming
from .arrays import PARTS, scaled

SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp")
FEATURES_FILE = "features.json"
#: A record: its length (8 bytes), the CRC of that (4), its content, the CRC of that (4).
HEADER, FOOTER = 12, 4
GZIP = b"\x1f\x8b"
TFDS = "tfds:"


@dataclass(eq=False)
class FileSplit:
    """Examples that are read from files one by one, in parallel."""

    #: One value per example, or files; converted to tensors at the first fetch.
    columns: Sequence[Any]
    #: Maps columns and an int64 index to features, float32 of ``shape``, and a label.
    load: Callable[..., tuple[Any, Any]]
    #: Maps columns and indices [k] to names of examples, strings [k].
    describe: Callable[..., Any]
    size: int
    shape: tuple[int, ...]
    #: The tf.TensorSpec of a label.
    label: Any
    _tensors: Any = None

    def fetch(self, indices: Any) -> tuple[Any, Any]:
        """Return features and labels by number, see Split; the graph names damaged examples."""
        if self._tensors is None:
            with tf.init_scope(), tf.device("CPU:0"):
                self._tensors = [tf.constant(column) for column in self.columns]
        columns, shape, label = self._tensors, self.shape, self.label
        count = tf.size(indices, out_type=tf.int64)
        elements = tf.data.Dataset.from_tensor_slices((tf.range(count), indices)).map(
            lambda place, index: (place, *self.load(*columns, index)),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
        # TensorFlow's error would not name the file (the log has the reason). An extra element at
        # the end is always readable, so that there is a batch even if nothing else is.
        last = (tf.constant(-1, tf.int64), tf.zeros(shape), tf.zeros(label.shape, label.dtype))
        elements = elements.ignore_errors(log_warning=True)
        elements = elements.concatenate(tf.data.Dataset.from_tensors(last))
        batch = elements.batch(count + 1).get_single_element()
        places, features, labels = (part[:-1] for part in batch)
        read = tf.scatter_nd(places[:, tf.newaxis], tf.ones_like(places), [count])
        names = self.describe(*columns, tf.boolean_mask(indices, read == 0)[:3])
        # Not tf.debugging.assert_equal, which would omit the names.
        complete = tf.debugging.Assert(
            tf.equal(tf.size(names), 0), ["examples that cannot be read or decoded:", names]
        )
        with tf.control_dependencies([complete] if complete is not None else []):
            features, labels = tf.identity(features), tf.identity(labels)
        features.set_shape([indices.shape[0], *shape])
        labels.set_shape([indices.shape[0], *label.shape])
        return features, labels


def chosen_size(content: bytes, asked: int) -> tuple[int, int]:
    """Return the height and width in pixels of all images: ``asked``, or if 0 that of the first."""
    if asked:
        return asked, asked
    with tf.device("CPU:0"):
        height, width, _ = tf.io.decode_image(content, expand_animations=False).shape
    return height, width


def decode_image(content: Any, size: Sequence[int]) -> Any:
    """Decode an image to float32 [*size, 3] from 0 to 1; its proportions may change."""
    image = tf.io.decode_image(content, channels=3, expand_animations=False)
    image.set_shape([None, None, 3])
    image = tf.image.resize(tf.cast(image, tf.float32), size, antialias=True)
    return tf.clip_by_value(image * tf.constant(1 / 255, tf.float32), 0.0, 1.0)


# ---------------------------------------------------------------------------------- images


def open_images(folder: Path, image_size: int) -> Data:
    """Return the images FOLDER/train/CLASS/*.jpg and FOLDER/test/CLASS/*.jpg.

    A class number is the index of its folder in the sorted names of ``train``.
    """
    folder = folder.absolute()
    found: dict[str, list[tuple[Path, int, str]]] = {}
    for part in PARTS:
        with naming(folder / part):
            found[part] = [image for kind in _visible(folder / part) for image in _images(kind)]
        if not found[part]:
            wanted = "folders of images, one for each class"
            raise DataError(f"images: {folder / part} holds no {wanted}")
    classes = sorted({kind for _, _, kind in found["train"]})
    unknown = sorted({kind for _, _, kind in found["test"]} - set(classes))
    if unknown:
        raise DataError(f"images: {folder}/test has classes that train has not: {unknown}")
    first = found["train"][0][0]
    # For damaged images, TensorFlow raises its own errors.
    with naming(first, Exception):
        shape = (*chosen_size(first.read_bytes(), image_size), 3)

    def load(paths: Any, labels: Any, index: Any) -> tuple[Any, Any]:
        return decode_image(tf.io.read_file(paths[index]), shape[:2]), labels[index]

    def describe(paths: Any, labels: Any, chosen: Any) -> Any:
        return tf.gather(paths, chosen)

    def split(part: str) -> FileSplit:
        paths = [str(path) for path, _, _ in found[part]]
        labels = np.searchsorted(classes, [kind for _, _, kind in found[part]])
        label = tf.TensorSpec([], tf.int64)
        return FileSplit([paths, labels], load, describe, len(paths), shape, label)

    files, sizes, _ = zip(*found["train"], *found["test"], strict=True)
    fingerprint = file_fingerprint(folder, files, sizes)
    return Data("images", split("train"), split("test"), shape, len(classes), fingerprint)


def _visible(folder: Path) -> list[Path]:
    """Return the sorted entries of a folder, except hidden files such as .DS_Store."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _images(kind: Path) -> list[tuple[Path, int, str]]:
    """Return the images of a class: path, size in bytes, and the name of the class."""
    if not kind.is_dir():
        raise DataError(f"images: {kind} is no folder of a class: move it away")
    images = []
    for path in _visible(kind):
        if path.suffix.lower() not in SUFFIXES or not path.is_file():
            raise DataError(f"images: {path} is none of {', '.join(SUFFIXES)}: move it away")
        size = path.stat().st_size
        if not size:
            raise DataError(f"images: {path} is empty")
        images.append((path, size, kind.name))
    if not images:
        raise DataError(f"images: {kind} is empty")
    return images


# ---------------------------------------------------------------------------------- TFRecord


#: The records of some files: the files, and for each record the number of its file and its offset.
_Records = tuple[list[Path], Any, Any]


def _record_data(
    name: str,
    parts: Sequence[_Records],
    parse: Callable[[Any], tuple[Any, Any]],
    shape: tuple[int, ...],
    label: Any,
    classes: int | None,
    *others: Path,
) -> Data:
    """Return the examples in the records of two parts; the fingerprint includes other files."""

    def load(names: Any, numbers: Any, offsets: Any, index: Any) -> tuple[Any, Any]:
        # It seeks; without a buffer, it reads only the record, and checks its CRCs.
        reader = tf.raw_ops.TFRecordDatasetV2(
            filenames=[names[numbers[index]]],
            compression_type="",
            buffer_size=0,
            byte_offsets=[offsets[index]],
        )
        record = tf.data.experimental.from_variant(reader, tf.TensorSpec([], tf.string))
        return parse(record.take(1).get_single_element())

    def describe(names: Any, numbers: Any, offsets: Any, chosen: Any) -> Any:
        places = tf.strings.as_string(tf.gather(offsets, chosen))
        return tf.strings.join([tf.gather(names, tf.gather(numbers, chosen)), places], " at byte ")

    files: list[Path] = []
    splits = []
    for own, numbers, offsets in parts:
        files += own
        columns = [list(map(str, own)), numbers, offsets]
        splits.append(FileSplit(columns, load, describe, len(numbers), shape, label))
    files += others
    fingerprint = file_fingerprint(files[0].parent, files, [path.stat().st_size for path in files])
    train, test = splits
    return Data(name, train, test, shape, classes, fingerprint, tuple(label.shape))


def open_tfrecords(folder: Path, image_size: int) -> Data:
    """Return the examples in FOLDER/train*.tfrecord and FOLDER/test*.tfrecord.

    An Example has either ``image``, an encoded PNG or JPEG, or ``x``, a list of floats, and a
    ``label``, an int64 class or a list of floats. ``features.json`` adds ``{"classes": 10}`` if
    labels are classes, and ``"shape": [8, 8, 1]`` if ``x`` is not a plain vector. The files must
    not be compressed, because examples are read by offset.
    """
    folder = folder.absolute()
    described = folder / FEATURES_FILE
    given = _read_features_file(described)
    parts = []
    for part in PARTS:
        files = sorted(folder.glob(f"{part}*.tfrecord"))
        if not files:
            raise DataError(f"tfrecord: {folder} holds no {part}*.tfrecord")
        parts.append(_records(files))
    specs, shape = _specs(_first_file(parts[0]), given, image_size)
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
        said = ["label", label, "is none of the classes below", classes]
        with tf.control_dependencies([tf.debugging.Assert(fits, said)]):
            return features, tf.identity(label)

    label = tf.TensorSpec(specs["label"].shape, specs["label"].dtype)
    others = [described] if described.exists() else []
    return _record_data("tfrecord", parts, parse, shape, label, classes, *others)


def _records(files: list[Path]) -> _Records:
    starts = [record_offsets(path) for path in files]
    numbers = np.repeat(np.arange(len(starts)), [len(offsets) for offsets in starts])
    if not len(numbers):
        raise DataError(f"tfrecord: {files[0]} and its like hold no records")
    return files, numbers.astype(np.int64), np.concatenate(starts)


def _first_file(records: _Records) -> Path:
    files, numbers, _ = records
    return files[int(numbers[0])]


def _read_features_file(path: Path) -> dict[str, Any]:
    """Return ``shape`` and ``classes`` of features.json; empty if the file does not exist."""
    if not path.exists():
        return {}
    with naming(path, ValueError):
        given: Any = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(given, dict) or not given.keys() <= {"shape", "classes"}:
        raise DataError(f'{path}: only "shape" and "classes" may stand in it, as an object')
    shape, classes = given.get("shape", [1]), given.get("classes")
    lengths = shape if isinstance(shape, list) and shape else [None]
    if not all(type(length) is int and length > 0 for length in lengths):
        raise DataError(f"{path}: shape {shape!r} is no list of whole numbers from 1")
    if classes is not None and (type(classes) is not int or classes < 1):
        raise DataError(f"{path}: classes {classes!r} is no whole number from 1")
    return given


def record_offsets(path: Path) -> Any:
    """Return the offset of each record in a file, numpy int64 [n]; check all lengths."""
    offsets, headers, position = [], [], 0
    with naming(path), path.open("rb") as stream:
        size = path.stat().st_size
        if not size:
            return np.zeros(0, np.int64)
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            compressed = content[:2] == GZIP
            while position + HEADER <= size:
                offsets.append(position)
                headers.append(content[position : position + HEADER])
                (length,) = struct.unpack_from("<Q", headers[-1])
                position += HEADER + length + FOOTER
    table = np.frombuffer(b"".join(headers), np.uint8).reshape(-1, HEADER)
    stored = np.ascontiguousarray(table[:, 8:]).view("<u4")[:, 0]
    wrong = np.flatnonzero(stored != masked_crc(table[:, :8]))
    if len(wrong) and compressed and wrong[0] == 0:
        raise DataError(f"{path}: compressed; records are read by their place: unpack it (gunzip)")
    if len(wrong):
        raise DataError(
            f"{path}: damaged, or no TFRecord file: the CRC at byte {offsets[wrong[0]]} is wrong"
        )
    if position != size:
        raise DataError(f"{path}: cut short in the record at byte {offsets[-1] if offsets else 0}")
    return np.array(offsets, np.int64)


def masked_crc(rows: Any) -> Any:
    """Return TFRecord's masked CRC-32C, numpy uint32 [n], of rows of bytes, uint8 [n, length]."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> 1) ^ np.where(table & 1, np.uint32(0x82F63B78), np.uint32(0))
    crc = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in rows.T:
        crc = table[(crc ^ column) & 0xFF] ^ (crc >> 8)
    crc = ~crc
    return ((crc >> 15) | (crc << 17)) + np.uint32(0xA282EAD8)


def _first_record(path: Path) -> Any:
    with tf.device("CPU:0"):
        try:
            return tf.data.TFRecordDataset(str(path)).take(1).get_single_element()
        except tf.errors.DataLossError:  # names a graph node
            raise ValueError("its first record is no such record") from None


def _specs(
    path: Path, given: dict[str, Any], image_size: int
) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Return the parser's specs for each Example and the features' shape, from the first one."""
    # For damaged records, a package below TensorFlow raises DecodeError.
    with naming(path, Exception):
        fields = tf.train.Example.FromString(_first_record(path).numpy()).features.feature
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
            raise DataError(f"{where} has {floats} floats in x, and the shape is {list(shape)}")
        specs["x"] = tf.io.FixedLenFeature([floats], tf.float32)
    else:
        raise DataError(f"{where} has neither image (bytes) nor x (floats); it has {kinds}")
    if kinds.get("label") == "int64_list":
        if given.get("classes") is None:
            raise DataError(
                f"{where} has a class as its label, but not how many there are: write "
                f'{{"classes": N}} to {path.parent / FEATURES_FILE}'
            )
        specs["label"] = tf.io.FixedLenFeature([], tf.int64)
    elif kinds.get("label") == "float_list":
        if given.get("classes") is not None:
            raise DataError(f"{where} has floats as its label, but {FEATURES_FILE} has classes")
        count = len(fields["label"].float_list.value)
        specs["label"] = tf.io.FixedLenFeature([count] if count > 1 else [], tf.float32)
    else:
        raise DataError(f"{where} has no label (an int64 or floats); it has {kinds}")
    return specs, shape


# ---------------------------------------------------------------------------------- TFDS


def open_tfds(name: str, folder: Path, *, download: bool, image_size: int) -> Data:
    """Return a data set of TensorFlow Datasets on disk, such as ``mnist`` or ``mnist:3.0.1``.

    Its files are TFRecords; its splits ``train`` and ``test``, or else ``validation``. ``folder``
    is the package's ``data_dir``. If ``download``, a data set that is not prepared there is
    prepared, by one process at a time. An ``image_size`` of 0 means the common size of all images,
    or else that of the first.
    """
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise DataError(
            f"{TFDS}{name}: tensorflow_datasets cannot be imported ({error}): install it with "
            "tensorflow_extra_requirements of setup.yml"
        ) from error
    where = f"{TFDS}{name} in {folder}"
    try:
        builder = tfds.builder(name, data_dir=str(folder))
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
            f"{TFDS}{name}: it is not prepared in {folder}: run `{build}`, or add --download"
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
    parts = [_records(list(map(Path, info.splits[part].filepaths))) for part in ("train", test)]
    classes = getattr(info.features[keys[1]], "num_classes", None)

    def decoded(record: Any) -> tuple[Any, Any]:
        example = info.features.deserialize_example(record)
        label = tf.cast(example[keys[1]], tf.float32 if classes is None else tf.int64)
        return example[keys[0]], label

    first = _first_file(parts[0])
    with naming(first, Exception), tf.device("CPU:0"):
        features, label = decoded(_first_record(first))
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
    return _record_data(f"{TFDS}{name}", parts, parse, shape, spec, classes)
