"""Examples in TFRecord files, whose records are read by their offsets.

The files must not be compressed.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from . import Data, DataError, file_fingerprint, naming
from .files import FileSplit

#: Bytes before and after the content of a record: its length (8) and the CRC of the length (4); the
#: CRC of the content (4).
HEADER, FOOTER = 12, 4
GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Records:
    """The positions of the records in some files. There is at least one record."""

    files: list[Path]
    #: For each record, the number of its file and its offset in bytes in the file, numpy int64 [n].
    numbers: Any
    offsets: Any

    @property
    def first_file(self) -> Path:
        """The file of the first record; files before it are empty."""
        return self.files[int(self.numbers[0])]


def record_data(
    name: str,
    parts: Sequence[Records],
    parse: Callable[[Any], tuple[Any, Any]],
    shape: tuple[int, ...],
    label: Any,
    classes: int | None,
    *others: Path,
) -> Data:
    """Return the examples in the records of two ``parts``: one to train on and one to test on.

    ``parse`` maps a record to features, float32 of ``shape``, and a label with the tf.TensorSpec
    ``label``. ``others`` are files that describe the records; the fingerprint includes them.
    """

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
    for part in parts:
        files += part.files
        columns = [list(map(str, part.files)), part.numbers, part.offsets]
        splits.append(FileSplit(columns, load, describe, len(part.numbers), shape, label))
    files += others
    fingerprint = file_fingerprint(files[0].parent, files, [path.stat().st_size for path in files])
    train, test = splits
    return Data(name, train, test, shape, classes, fingerprint, tuple(label.shape))


def read_records(files: list[Path]) -> Records:
    """Locate the records in files; raise DataError if a file is damaged or all are empty.

    Only the headers are read and checked.
    """
    starts = [record_offsets(path) for path in files]
    numbers = np.repeat(np.arange(len(starts)), [len(offsets) for offsets in starts])
    if not len(numbers):
        raise DataError(f"tfrecord: {files[0]} and similar files contain no records")
    return Records(files, numbers.astype(np.int64), np.concatenate(starts))


def record_offsets(path: Path) -> Any:
    """Return the offset in bytes of each record in a file, numpy int64 [n].

    The CRCs of all lengths are checked. Raise DataError if the file is damaged or compressed.
    """
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
        raise DataError(
            f"{path}: the file is compressed, but records are read by position: decompress "
            "it (gunzip)"
        )
    if len(wrong):
        raise DataError(
            f"{path}: corrupt, or not a TFRecord file: the CRC at byte {offsets[wrong[0]]} is wrong"
        )
    if position != size:
        raise DataError(f"{path}: truncated in the record at byte {offsets[-1] if offsets else 0}")
    return np.array(offsets, np.int64)


def masked_crc(rows: Any) -> Any:
    """Return TFRecord's masked CRC-32C of each row, numpy uint32 [n].

    ``rows`` are bytes, numpy uint8 [n, length].
    """
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> 1) ^ np.where(table & 1, np.uint32(0x82F63B78), np.uint32(0))
    crc = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in rows.T:
        crc = table[(crc ^ column) & 0xFF] ^ (crc >> 8)
    crc = ~crc
    return ((crc >> 15) | (crc << 17)) + np.uint32(0xA282EAD8)


def first_record(path: Path) -> Any:
    """Return a file's first record, a string tensor. Raise ValueError if it is damaged."""
    with tf.device("CPU:0"):
        try:
            return tf.data.TFRecordDataset(str(path)).take(1).get_single_element()
        except tf.errors.DataLossError:  # names a graph node
            raise ValueError("its first record is not a TFRecord") from None
