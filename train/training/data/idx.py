"""MNIST and Fashion-MNIST, from the IDX files in which both are published."""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import zlib
from pathlib import Path
from typing import Any

from . import download
from .arrays import from_arrays
from .base import Data, DataError, naming

CLASSES = 10
#: Where Debian's package dataset-fashion-mnist puts its files.
DEBIAN_FOLDERS = {"fashion-mnist": Path("/usr/share/datasets/fashion-mnist")}
FILES = [published.file.removesuffix(".gz") for published in download.PUBLISHED["mnist"]]
#: SHA-256 of the test labels: both data sets call their files alike.
TEST_LABELS = {name: download.PUBLISHED[name][3].content for name in ("mnist", "fashion-mnist")}
#: The third byte of an IDX file, for unsigned bytes.
UBYTE = 8


def open_idx(name: str, folder: Path | None, *, fetch: bool) -> Data:
    """Return ``mnist`` or ``fashion-mnist``.

    Each of the four files may be there as it is published or without ``.gz``.

    Args:
        name: of the data set.
        folder: where to look first.
        fetch: whether files that are nowhere are to be fetched into ``folder``.

    Raises:
        DataError: a file is missing, damaged, or another one's.
    """
    files = _find(name, folder, fetch)
    raw = [_read_bytes(path) for path in files]
    found = hashlib.sha256(raw[3]).hexdigest()
    for other, digest in TEST_LABELS.items():
        if other != name and found == digest:
            raise DataError(f"{files[3]} belongs to {other}, not to {name}: give another folder")
    x_train, y_train, x_test, y_test = (
        parse(content, path, axes)
        for content, path, axes in zip(raw, files, (3, 1, 3, 1), strict=True)
    )
    for images, labels, path in ((x_train, y_train, files[0]), (x_test, y_test, files[2])):
        if len(images) != len(labels):
            raise DataError(f"{path}: {len(images)} images, but {len(labels)} labels beside them")
    return from_arrays(name, (x_train, y_train), (x_test, y_test), classes=CLASSES)


def _find(name: str, folder: Path | None, fetch: bool) -> list[Path]:
    """Return the four files of the first place that has any, fetched there if that is asked."""
    places = [place for place in (folder, DEBIAN_FOLDERS.get(name)) if place is not None]
    for place in places:
        present = [_either(place / file) for file in FILES]
        if all(present):
            return [path for path in present if path]
        if any(present) and not (fetch and place == folder):
            missing = [file for file, path in zip(FILES, present, strict=True) if not path]
            raise DataError(f"{name}: {place} lacks {', '.join(missing)} (or .gz of it)")
        if any(present):
            break
    if not fetch:
        raise DataError(_how_to_get(name, places))
    if folder is None:
        raise DataError(f"{name}: --download needs --data-dir, the folder to put the files in")
    for published in download.PUBLISHED[name]:
        if not _either(folder / published.file.removesuffix(".gz")):
            download.fetch(published, folder)
    return _find(name, folder, fetch=False)


def _either(path: Path) -> Path | None:
    """Return ``path``, or else ``path`` with .gz, whichever is there."""
    packed = path.with_name(path.name + ".gz")
    return next((candidate for candidate in (path, packed) if candidate.exists()), None)


def _how_to_get(name: str, places: list[Path]) -> str:
    where = " nor in ".join(map(str, places)) if places else "any folder: no --data-dir was given"
    packaged = name in DEBIAN_FOLDERS
    package = "install Debian's package dataset-fashion-mnist, or " if packaged else ""
    return (
        f"{name}: {FILES[0]} (or .gz) and its three companions are not in {where}; {package}"
        f"bring them from {download.PUBLISHED[name][0].address}, or add --download"
    )


def _read_bytes(path: Path) -> bytes:
    """Return a file's content, unpacked."""
    with naming(path, zlib.error, gzip.BadGzipFile):
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content


def parse(content: bytes, path: Path, axes: int) -> Any:
    """Return the uint8 array of an IDX file: two zeros, type, number of axes, lengths, values.

    Args:
        content: what the file holds.
        path: its name, for messages.
        axes: how many it must have.

    Raises:
        DataError: it is no such file, or is cut short.
    """
    import numpy as np

    start = 4 + 4 * axes
    if len(content) < start or content[:4] != bytes([0, 0, UBYTE, axes]):
        raise DataError(
            f"{path}: no IDX file of bytes with {axes} axes; it begins with {content[:4].hex(' ')}"
        )
    shape = struct.unpack(f">{axes}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise DataError(
            f"{path}: cut short or damaged: {len(content) - start} bytes of data, but "
            f"{' x '.join(map(str, shape))} are announced"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
