"""Fingerprints of data: SHA-256 of everything, or of a sample where that would take long."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .base import naming

#: Bytes up to which all is read: about a second's work.
ALL_BELOW = 256 << 20
#: Beyond, this many bytes from the beginning and the end of this many files, or rows.
SAMPLE_BYTES = 64 << 10
SAMPLES = 1000


def of_text(*parts: object) -> str:
    """Return the fingerprint of data that follow from a few numbers and words."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


def of_arrays(arrays: Iterable[Any]) -> str:
    """Return the fingerprint of numpy arrays: types, shapes and contents.

    Of an array larger than ALL_BELOW, SAMPLES rows at even distances count.
    """
    import numpy as np

    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        if array.nbytes > ALL_BELOW:
            array = array[_spread(len(array))]
        digest.update(memoryview(np.ascontiguousarray(array).reshape(-1)).cast("B"))
    return digest.hexdigest()


def of_files(folder: Path, files: Sequence[Path], sizes: Sequence[int]) -> str:
    """Return the fingerprint of files: their names below ``folder``, sizes and contents.

    Where they are larger than ALL_BELOW together, names and sizes of all of them count, and the
    beginning and the end of SAMPLES files at even distances.

    Raises:
        DataError: a file cannot be read.
    """
    digest = hashlib.sha256()
    for path, size in zip(files, sizes, strict=True):
        digest.update(f"{path.relative_to(folder).as_posix()}\0{size}\0".encode())
    everything = sum(sizes) <= ALL_BELOW
    for number in range(len(files)) if everything else _spread(len(files)):
        with naming(files[number]), files[number].open("rb") as stream:
            if everything or sizes[number] <= 2 * SAMPLE_BYTES:
                while block := stream.read(1 << 20):
                    digest.update(block)
            else:
                digest.update(stream.read(SAMPLE_BYTES))
                stream.seek(-SAMPLE_BYTES, os.SEEK_END)
                digest.update(stream.read(SAMPLE_BYTES))
    return digest.hexdigest()


def _spread(count: int) -> list[int]:
    """Return at most SAMPLES numbers below ``count``, at even distances."""
    taken = min(count, SAMPLES)
    return [number * count // taken for number in range(taken)]
