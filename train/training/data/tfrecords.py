"""TFRecord files of tf.train.Example: FOLDER/train*.tfrecord and FOLDER/test*.tfrecord.

An Example holds either ``image``, an encoded PNG or JPEG image, or ``x``, a list of floats; and
``label``, an int64 class or a list of floats. Beside the files, ``features.json`` says what they
do not: ``{"classes": 10}`` where labels are classes, and ``"shape": [8, 8, 1]`` where ``x`` is no
plain vector.

The files are not compressed: an example is read by its place, wherever it stands.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import fingerprints
from .arrays import PARTS
from .base import Data, DataError, naming
from .each import chosen_size, decode_image, fetch_each

SIDECAR = "features.json"
#: A record: its length (8 bytes), the CRC of that (4), its content, the CRC of that (4).
HEADER, FOOTER = 12, 4
GZIP = b"\x1f\x8b"


class RecordSplit:
    """Examples in TFRecord files.

    Args:
        files: the files, absolute.
        numbers: numpy int64 [size], the number of each record's file.
        offsets: numpy int64 [size], where each record begins in it, in bytes.
        parse: gives the features, float32 of ``shape``, and the label of a record's bytes.
        shape: of one example's features.
        label: the tf.TensorSpec of one label.
    """

    def __init__(
        self,
        files: list[Path],
        numbers: Any,
        offsets: Any,
        parse: Callable[[Any], tuple[Any, Any]],
        shape: tuple[int, ...],
        label: Any,
    ) -> None:
        self.size = len(offsets)
        self._index: Any = ([str(path) for path in files], numbers, offsets)
        self._parse, self._shape, self._label = parse, shape, label
        self._tensors: Any = None

    def fetch(self, indices: Any) -> tuple[Any, Any]:
        """Return features and labels by number: see Split."""
        import tensorflow as tf

        if self._tensors is None:
            with tf.init_scope(), tf.device("CPU:0"):
                self._tensors = tuple(tf.constant(part) for part in self._index)
        files, numbers, offsets = self._tensors

        def load(index: Any) -> tuple[Any, Any]:
            # Seeks, without a buffer reads just the record, and checks its CRCs.
            reader = tf.raw_ops.TFRecordDatasetV2(
                filenames=[files[numbers[index]]],
                compression_type="",
                buffer_size=0,
                byte_offsets=[offsets[index]],
            )
            record = tf.data.experimental.from_variant(reader, tf.TensorSpec([], tf.string))
            return self._parse(record.take(1).get_single_element())

        def describe(chosen: Any) -> Any:
            places = tf.strings.as_string(tf.gather(offsets, chosen))
            return tf.strings.join(
                [tf.gather(files, tf.gather(numbers, chosen)), places], " at byte "
            )

        return fetch_each(load, describe, indices, self._shape, self._label)


def _parser(
    specs: Mapping[str, Any], shape: tuple[int, ...], classes: int | None
) -> Callable[[Any], tuple[Any, Any]]:
    """Return what gives the features and the label of a serialised Example.

    Args:
        specs: what to parse, as tf.io.parse_single_example wants it.
        shape: of one example's features; the image's height and width where it is an image.
        classes: how many there are, or None.
    """
    import tensorflow as tf

    def parse(record: Any) -> tuple[Any, Any]:
        parsed = tf.io.parse_single_example(record, specs)
        label = parsed["label"]
        if "image" in parsed:
            features = decode_image(parsed["image"], shape[:2])
        else:
            features = tf.reshape(parsed["x"], shape)
        if classes is None:
            return features, label
        fits = tf.debugging.Assert(
            (label >= 0) & (label < classes),
            ["label", label, "is none of the classes below", classes],
        )
        with tf.control_dependencies([fits] if fits is not None else []):
            return features, tf.identity(label)

    return parse


def index(files: list[Path]) -> tuple[Any, Any]:
    """Return the number of each record's file, and where in it the record begins: int64 [n].

    Raises:
        DataError: a file is damaged or compressed, or there are no records.
    """
    import numpy as np

    starts = [record_offsets(path) for path in files]
    numbers = np.repeat(np.arange(len(starts)), [len(offsets) for offsets in starts])
    if not len(numbers):
        raise DataError(f"tfrecord: {files[0]} and its like hold no records")
    return numbers.astype(np.int64), np.concatenate(starts)


def open_tfrecords(folder: Path, image_size: int) -> Data:
    """Return the examples in the TFRecord files of ``folder``.

    Reads the length of each record here, and of the first one all.

    Args:
        folder: with the files.
        image_size: height and width that images get, in pixels; 0: those of the first one.

    Raises:
        DataError: a file is missing, damaged or compressed, or what it holds cannot be told.
    """
    import tensorflow as tf

    folder = folder.absolute()
    said = _read_sidecar(folder / SIDECAR)
    files: dict[str, list[Path]] = {}
    indexes: dict[str, tuple[Any, Any]] = {}
    for part in PARTS:
        files[part] = sorted(folder.glob(f"{part}*.tfrecord"))
        if not files[part]:
            raise DataError(f"tfrecord: {folder} holds no {part}*.tfrecord")
        indexes[part] = index(files[part])
    numbers, offsets = indexes["train"]
    first = files["train"][numbers[0]]
    specs, shape = _specs(first, int(offsets[0]), said, image_size)
    parse = _parser(specs, shape, said.get("classes"))
    label = tf.TensorSpec(specs["label"].shape, specs["label"].dtype)
    train, test = (RecordSplit(files[part], *indexes[part], parse, shape, label) for part in PARTS)
    named = [*files["train"], *files["test"]]
    if (folder / SIDECAR).exists():
        named.append(folder / SIDECAR)
    return Data(
        "tfrecord",
        train,
        test,
        shape,
        said.get("classes"),
        fingerprints.of_files(folder, named, [path.stat().st_size for path in named]),
        tuple(specs["label"].shape),
    )


def _read_sidecar(path: Path) -> dict[str, Any]:
    """Return what features.json says: nothing where there is none."""
    if not path.exists():
        return {}
    with naming(path, ValueError):
        said = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(said, dict) or not said.keys() <= {"shape", "classes"}:
        raise DataError(f'{path}: only "shape" and "classes" may stand in it, as an object')
    shape, classes = said.get("shape"), said.get("classes")
    lengths = shape if isinstance(shape, list) and shape else [None if "shape" in said else 1]
    if not all(type(length) is int and length > 0 for length in lengths):
        raise DataError(f"{path}: shape {shape!r} is no list of whole numbers from 1")
    if classes is not None and (type(classes) is not int or classes < 1):
        raise DataError(f"{path}: classes {classes!r} is no whole number from 1")
    return said


def record_offsets(path: Path) -> Any:
    """Return where each record of a file begins, numpy int64 [n], and check all lengths.

    Raises:
        DataError: the file is no TFRecord file, is damaged, compressed or cut short.
    """
    import numpy as np

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
    import numpy as np

    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> 1) ^ np.where(table & 1, np.uint32(0x82F63B78), np.uint32(0))
    crc = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in rows.T:
        crc = table[(crc ^ column) & 0xFF] ^ (crc >> 8)
    crc = ~crc
    return ((crc >> 15) | (crc << 17)) + np.uint32(0xA282EAD8)


def _specs(
    path: Path, offset: int, said: dict[str, Any], image_size: int
) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Return what to parse of every Example, and the features' shape, by a look at the first."""
    import tensorflow as tf

    # What the damage raises, DecodeError, belongs to a package beneath TensorFlow.
    with naming(path, Exception), path.open("rb") as stream:
        stream.seek(offset)
        (length,) = struct.unpack("<Q", stream.read(8))
        stream.seek(offset + HEADER)
        fields = tf.train.Example.FromString(stream.read(length)).features.feature
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
        shape = tuple(said.get("shape", [floats]))
        if not floats or math.prod(shape) != floats:
            raise DataError(f"{where} has {floats} floats in x, and the shape is {list(shape)}")
        specs["x"] = tf.io.FixedLenFeature([floats], tf.float32)
    else:
        raise DataError(f"{where} has neither image (bytes) nor x (floats); it has {kinds}")
    if kinds.get("label") == "int64_list":
        if said.get("classes") is None:
            raise DataError(
                f"{where} has a class as its label, but not how many there are: write "
                f'{{"classes": N}} to {path.parent / SIDECAR}'
            )
        specs["label"] = tf.io.FixedLenFeature([], tf.int64)
    elif kinds.get("label") == "float_list":
        if said.get("classes") is not None:
            raise DataError(f"{where} has floats as its label, but {SIDECAR} says classes")
        count = len(fields["label"].float_list.value)
        specs["label"] = tf.io.FixedLenFeature([count] if count > 1 else [], tf.float32)
    else:
        raise DataError(f"{where} has no label (an int64 or floats); it has {kinds}")
    return specs, shape
