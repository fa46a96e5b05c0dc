"""The examples to learn from and to test on: what they are, and their names.

This module imports neither TensorFlow nor numpy: options are checked without them. The others open
the data, after the strategy is made: that may take operations of TensorFlow.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ..cluster import ConfigError

NAMES = ("digits", "mnist", "fashion-mnist", "cifar10", "npz", "images", "tfrecord", "synthetic")
#: Those of NAMES that can be fetched.
FETCHED = ("mnist", "fashion-mnist", "cifar10")

#: Bytes up to which a fingerprint is of all: about a second's work.
ALL_BELOW = 256 << 20
#: Beyond, this many bytes from the beginning and the end of this many files, or rows.
SAMPLE_BYTES = 64 << 10
SAMPLES = 1000


class DataError(ConfigError):
    """The data are missing or wrong: one line with what, where, and how to get it."""


@runtime_checkable
class Split(Protocol):
    """Examples that can be fetched by their numbers, 0 to ``size`` - 1."""

    size: int

    def fetch(self, indices: Any) -> tuple[Any, Any]:
        """Return the examples at ``indices``, int64 [n]; a graph function for tf.data's map.

        That is features [n, ...], float32, or uint8 for 0 to 1 (a byte where a float takes four,
        see ``arrays.scaled``); and labels: classes, int64 of [n], or numbers, float32 of [n, ...].
        """


@dataclass(frozen=True)
class Data:
    """A task's examples."""

    #: Such as ``fashion-mnist``.
    name: str
    train: Split
    test: Split
    #: Of one example's features.
    shape: tuple[int, ...]
    #: How many there are, so labels are below it; None where labels are numbers.
    classes: int | None
    #: SHA-256 in hex of what was read, the same on every host that has the same.
    fingerprint: str
    #: Of one example's label: () for a class or a single number.
    label_shape: tuple[int, ...] = ()


@contextmanager
def naming(path: Path | str, *damage: type[Exception]) -> Iterator[None]:
    """Turn what goes wrong while ``path`` is read into a DataError that names it.

    ``damage`` are exceptions, besides OSError and EOFError, that a damaged file causes.
    """
    signs: tuple[type[Exception], ...] = (EOFError, *damage)
    try:
        yield
    except DataError:
        raise
    except signs as error:
        raise DataError(f"{path}: damaged, cut short or of another kind: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def text_fingerprint(*parts: object) -> str:
    """Return the SHA-256 of data that follow from a few numbers and words."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


def file_fingerprint(folder: Path, files: Sequence[Path], sizes: Sequence[int]) -> str:
    """Return the SHA-256 of files: names, sizes and contents, above ALL_BELOW of a sample."""
    digest = hashlib.sha256()
    for path, size in zip(files, sizes, strict=True):
        digest.update(f"{path.relative_to(folder).as_posix()}\0{size}\0".encode())
    everything = sum(sizes) <= ALL_BELOW
    for number in range(len(files)) if everything else spread(len(files)):
        with naming(files[number]), files[number].open("rb") as stream:
            if everything or sizes[number] <= 2 * SAMPLE_BYTES:
                while block := stream.read(1 << 20):
                    digest.update(block)
            else:
                digest.update(stream.read(SAMPLE_BYTES))
                stream.seek(-SAMPLE_BYTES, os.SEEK_END)
                digest.update(stream.read(SAMPLE_BYTES))
    return digest.hexdigest()


def spread(count: int) -> list[int]:
    """Return at most SAMPLES numbers below ``count``, at even distances."""
    taken = min(count, SAMPLES)
    return [number * count // taken for number in range(taken)]
