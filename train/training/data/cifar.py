"""CIFAR-10, from the binary version in which it is published."""

from __future__ import annotations

import re
import tarfile
import zlib
from pathlib import Path
from typing import Any

from . import download
from .arrays import from_arrays
from .base import Data, DataError, naming

CLASSES = 10
SIDE = 32
PIXELS = 3 * SIDE * SIDE
#: The archive, its folder when it is extracted, and its files: those to train on, and to test on.
ARCHIVE, EXTRACTED = "cifar-10-binary.tar.gz", "cifar-10-batches-bin"
BATCH = re.compile(r"(data_batch_[1-5]|test_batch)\.bin")
BATCHES = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]


def open_cifar10(folder: Path, *, fetch: bool) -> Data:
    """Return CIFAR-10.

    Args:
        folder: with the archive or the extracted folder, or itself one of these.
        fetch: whether the archive is to be fetched into it if nothing is there.

    Raises:
        DataError: nothing is there, or it is damaged.
    """
    import numpy as np

    source = _find(folder)
    (published,) = download.PUBLISHED["cifar-10-binary"]
    if source is None and fetch:
        download.fetch(published, folder)
        source = _find(folder)
    if source is None:
        raise DataError(
            f"cifar10: neither {ARCHIVE}, {EXTRACTED} nor {BATCHES[0]} is in {folder}; bring "
            f"{ARCHIVE} from {published.address}, or add --download"
        )
    contents = _read_folder(source) if source.is_dir() else _read_archive(source)
    missing = [name for name in BATCHES if name not in contents]
    if missing:
        raise DataError(f"cifar10: {source} lacks {', '.join(missing)}")
    batches = []
    for name in BATCHES:
        pixels, labels = _from_binary(contents.pop(name), f"{source}/{name}")
        # Planes of red, green and blue become pixels of three channels.
        images = pixels.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
        batches.append((np.ascontiguousarray(images), labels))
    train = [np.concatenate(parts) for parts in zip(*batches[:-1], strict=True)]
    return from_arrays("cifar10", train, batches[-1], classes=CLASSES)


def _find(folder: Path) -> Path | None:
    """Return the folder or archive to read."""
    if folder.is_file():
        return folder
    for candidate in (folder / EXTRACTED, folder / ARCHIVE):
        if candidate.exists():
            return candidate
    return folder if (folder / BATCHES[0]).exists() else None


def _read_folder(folder: Path) -> dict[str, bytes]:
    """Return the contents of the batches in an extracted folder, by name."""
    contents = {}
    with naming(folder):
        files = sorted(path for path in folder.iterdir() if BATCH.fullmatch(path.name))
    for path in files:
        with naming(path):
            contents[path.name] = path.read_bytes()
    return contents


def _read_archive(path: Path) -> dict[str, bytes]:
    """Return the contents of the batches in an archive, by name; nothing is extracted to disk."""
    contents = {}
    with naming(path, tarfile.TarError, zlib.error), tarfile.open(path) as archive:
        for member in archive:
            name = member.name.rpartition("/")[2]
            stream = archive.extractfile(member) if BATCH.fullmatch(name) else None
            if stream is not None:
                contents[name] = stream.read()
    return contents


def _from_binary(content: bytes, name: str) -> tuple[Any, Any]:
    """Return pixels [n, 3072] and labels [n] of a batch: a byte of label, then the pixels."""
    import numpy as np

    if not content or len(content) % (1 + PIXELS):
        raise DataError(
            f"{name}: cut short or damaged: {len(content)} bytes, no multiple of {1 + PIXELS}"
        )
    table = np.frombuffer(content, np.uint8).reshape(-1, 1 + PIXELS)
    return table[:, 1:], table[:, 0].astype(np.int64)
