"""The examples to train on and to test on: types, names and fingerprints.

This module imports neither TensorFlow nor numpy, because options are checked without them. The
other modules open the data after the strategy is made, because they may run TensorFlow operations.
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
#: Those of NAMES that can be downloaded.
FETCHED = ("mnist", "fashion-mnist", "cifar10")

#: Maximum number of bytes to hash in full: about a second of work.
ALL_BELOW = 256 << 20
#: For larger data, hash this many bytes from the start and the end of this many files or rows.
SAMPLE_BYTES = 64 << 10
SAMPLES = 1000


class DataError(ConfigError):
    """Data are missing or invalid; the message has the problem, the path and the remedy."""


@runtime_checkable
class Split(Protocol):
    """Examples that can be fetched by number, 0 to ``size`` - 1."""

    size: int

    def fetch(self, indices: Any) -> tuple[Any, Any]:
        """Return the examples at ``indices``, int64 [n]. It runs in a graph, such as tf.data's map.

        Features are [n, ...], float32, or uint8 for 0 to 1 (a quarter of the memory, see
        ``arrays.scaled``). Labels are classes, int64 [n], or numbers, float32 [n, ...].
        """


@dataclass(frozen=True)
class Data:
    """The examples of a task."""

    #: Name, such as ``fashion-mnist``.
    name: str
    train: Split
    test: Split
    #: Shape of the features of an example.
    shape: tuple[int, ...]
    #: Number of classes; labels are from 0 to one less. None if labels are numbers.
    classes: int | None
    #: SHA-256 in hex of the data, the same on all hosts with the same data.
    fingerprint: str
    #: Shape of the label of an example: () for a class or a single number.
    label_shape: tuple[int, ...] = ()


@contextmanager
def naming(path: Path | str, *damage: type[Exception]) -> Iterator[None]:
    """Turn errors while reading ``path`` into a DataError that names it.

    ``damage`` are the exceptions, besides OSError and EOFError, that a damaged file causes.
    """
    signs: tuple[type[Exception], ...] = (EOFError, *damage)
    try:
        yield
    except DataError:
        raise
    except signs as error:
        raise DataError(f"{path}: corrupt, truncated or of another type: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def text_fingerprint(*parts: object) -> str:
    """Return the SHA-256 of data that are determined by some numbers and words."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


def file_fingerprint(folder: Path, files: Sequence[Path], sizes: Sequence[int]) -> str:
    """Return the SHA-256 of names, sizes and contents of files; above ALL_BELOW, of samples."""
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
    """Return at most SAMPLES evenly spaced numbers below ``count``."""
    taken = min(count, SAMPLES)
    return [number * count // taken for number in range(taken)]
