"""CIFAR-10, from the binary or the Python version in which it is published."""

from __future__ import annotations

import io
import pickle
import re
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import download
from .arrays import from_arrays
from .base import Data, DataError, naming

CLASSES = 10
SIDE = 32
PIXELS = 3 * SIDE * SIDE
#: In the order in which they are looked for: a version's archive, its folder when it is
#: extracted, and its files: those to train on, and the one to test on.
BINARY = ("cifar-10-binary.tar.gz", "cifar-10-batches-bin")
PYTHON = ("cifar-10-python.tar.gz", "cifar-10-batches-py")
BATCH = re.compile(r"(data_batch_[1-5]|test_batch)(\.bin)?")
BATCHES = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]


def open_cifar10(folder: Path, *, fetch: bool) -> Data:
    """Return CIFAR-10.

    Args:
        folder: with an archive or an extracted folder of either version, or itself one of these.
        fetch: whether the binary version is to be fetched into it if nothing is there.

    Raises:
        DataError: nothing is there, or it is damaged.
    """
    import numpy as np

    source = _find(folder)
    if source is None and fetch:
        download.fetch(download.PUBLISHED["cifar10"][0], folder)
        source = _find(folder)
    if source is None:
        wanted = ", ".join([*BINARY, *PYTHON])
        raise DataError(
            f"cifar10: none of {wanted} or data_batch_1(.bin) is in {folder}; bring "
            f"{BINARY[0]} from {download.CIFAR10_ADDRESS}, or add --download"
        )
    contents = _read_folder(source) if source.is_dir() else _read_archive(source)
    suffix = ".bin" if f"{BATCHES[0]}.bin" in contents else ""
    missing = [name + suffix for name in BATCHES if name + suffix not in contents]
    if missing:
        raise DataError(f"cifar10: {source} lacks {', '.join(missing)}")
    read: Callable[[bytes, str], tuple[Any, Any]] = _from_binary if suffix else _from_pickle
    batches = []
    for name in BATCHES:
        pixels, labels = read(contents.pop(name + suffix), f"{source}/{name}{suffix}")
        # Planes of red, green and blue become pixels of three channels.
        images = pixels.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
        batches.append((np.ascontiguousarray(images), labels))
    train = [np.concatenate(parts) for parts in zip(*batches[:-1], strict=True)]
    return from_arrays("cifar10", train, batches[-1], classes=CLASSES)


def _find(folder: Path) -> Path | None:
    """Return the folder or archive to read."""
    if folder.is_file():
        return folder
    for archive, extracted in (BINARY, PYTHON):
        for candidate in (folder / extracted, folder / archive):
            if candidate.exists():
                return candidate
    beside = any((folder / f"{BATCHES[0]}{suffix}").exists() for suffix in (".bin", ""))
    return folder if beside else None


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


def _from_pickle(content: bytes, name: str) -> tuple[Any, Any]:
    """Return pixels [n, 3072] and labels [n] of a pickled batch."""
    import numpy as np

    # A damaged pickle can raise nearly anything.
    with naming(name, Exception):
        batch = _unpickler(content, name).load()
    if not isinstance(batch, dict):
        raise DataError(f"{name}: no batch of CIFAR-10: it holds no dictionary")
    pixels, labels = (batch.get(key, batch.get(key.encode())) for key in ("data", "labels"))
    if not (
        isinstance(pixels, np.ndarray)
        and pixels.dtype == np.uint8
        and pixels.ndim == 2
        and pixels.shape[1] == PIXELS
        and isinstance(labels, list)
        and len(labels) == len(pixels)
        and all(isinstance(label, int) for label in labels)
    ):
        raise DataError(f"{name}: no batch of CIFAR-10: data [n, {PIXELS}] and n labels expected")
    return pixels, np.array(labels, np.int64)


def _unpickler(content: bytes, name: str) -> pickle.Unpickler:
    """Return an unpickler that builds plain values and numpy arrays and calls nothing else."""
    import numpy as np

    def encode(text: str, encoding: str) -> bytes:
        if encoding != "latin1":
            raise DataError(f"{name}: the pickle asks for the encoding {encoding!r}: refused")
        return text.encode("latin1")

    # What a pickled array calls, under the names of numpy 1 and 2.
    rebuild, from_buffer = (np.zeros(1).__reduce_ex__(version)[0] for version in (2, 5))
    allowed: dict[tuple[str, str], Any] = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): encode,
        **{(f"numpy.{core}.multiarray", "_reconstruct"): rebuild for core in ("core", "_core")},
        **{(f"numpy.{core}.numeric", "_frombuffer"): from_buffer for core in ("core", "_core")},
    }

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, attribute: str) -> Any:
            if (module, attribute) not in allowed:
                raise DataError(
                    f"{name}: the pickle asks for {module}.{attribute}: refused, only numpy "
                    "arrays are read"
                )
            return allowed[module, attribute]

    # As bytes: the published batches were written by Python 2.
    return Unpickler(io.BytesIO(content), encoding="bytes")
