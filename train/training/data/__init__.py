"""The examples to train on and to test on: types, names and fingerprints.

This module imports neither TensorFlow nor numpy, because options are checked without them. The
other modules may run TensorFlow operations, so open data only after the strategy is made.
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
#: Of larger data, hash SAMPLE_BYTES from the start and the end of each of SAMPLES files, or SAMPLES
#: rows of an array.
SAMPLE_BYTES = 64 << 10
SAMPLES = 1000


class DataError(ConfigError):
    """Data are missing or invalid; the message has the problem, the path and the remedy."""


@runtime_checkable
class Split(Protocol):
    """Examples that can be fetched by number, 0 to ``size`` - 1."""

    size: int

    def fetch(self, indices: Any) -> tuple[Any, Any]:
        """Return the features and labels of the examples at ``indices``, int64 [n].

        Features are [n, ...] of float32 or uint8. In uint8, 0 to 255 stand for 0 to 1 (see
        ``arrays.scaled``), which takes a quarter of the memory. Labels are classes, int64 [n], or
        numbers, float32 [n, ...]. This method is called in a graph, such as that of tf.data's map.
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
    #: Number of classes; labels are 0 to ``classes`` - 1. None if labels are numbers.
    classes: int | None
    #: SHA-256 in hex of the data, the same on all hosts with the same data.
    fingerprint: str
    #: Shape of the label of an example: () for a class or a single number.
    label_shape: tuple[int, ...] = ()


@contextmanager
def naming(path: Path | str, *damage: type[Exception]) -> Iterator[None]:
    """Turn errors while reading ``path`` into a DataError that names ``path``.

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
    """Return the SHA-256 in hex of ``parts``, numbers and words that determine some data."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


def file_fingerprint(folder: Path, files: Sequence[Path], sizes: Sequence[int]) -> str:
    """Return the SHA-256 in hex of the names, sizes and contents of files in ``folder``.

    ``sizes`` are in bytes. If they add up to more than ALL_BELOW, only samples of the contents are
    hashed.
    """
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
