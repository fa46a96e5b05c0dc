"""Small published data sets (digits, MNIST, Fashion-MNIST, CIFAR-10), and their download.

The digits are stored next to this module. They are the test set of "Optical Recognition of
Handwritten Digits" by E. Alpaydin and C. Kaynak (1998, doi:10.24432/C50P49, CC BY 4.0), in the file
that scikit-learn's ``load_digits`` reads. The others are downloaded only on request.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import json
import math
import os
import struct
import tarfile
import urllib.request
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import Data, DataError, naming
from .arrays import from_arrays

#: Number of classes in each of these data sets.
CLASSES = 10
#: Seconds without a byte before a download is abandoned.
PATIENCE = 60


@dataclass(frozen=True)
class Published:
    """A file at the URL ``address`` + ``file``.

    ``sha256`` is its hash in hex, and ``content`` that of the decompressed contents of a .gz file.
    """

    file: str
    address: str
    sha256: str
    content: str = ""


#: The files of --download by data set, also used by the role training_data. Those of MNIST are
#: Google's copy for TensorFlow, because the authors' server no longer offers them.
PUBLISHED = {
    name: [Published(file, one["address"], **hashes) for file, hashes in one["files"].items()]
    for name, one in json.loads(Path(__file__).with_name("published.json").read_text()).items()
}


def fetch_published(published: Published, folder: Path) -> None:
    """Download a file into ``folder``; several processes may do so in parallel.

    Raise DataError if it cannot be downloaded or has the wrong hash. Nothing is stored then.
    """
    address, target = published.address + published.file, folder / published.file
    hashed = hashlib.sha256()
    # In the same folder so that it can be renamed.
    temporary = folder / f".{published.file}.{os.urandom(8).hex()}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        answering = urllib.request.urlopen(address, timeout=PATIENCE)
        with answering as answer, temporary.open("xb") as stream:
            while block := answer.read(1 << 20):
                hashed.update(block)
                stream.write(block)
        found = hashed.hexdigest()
        if found != published.sha256:
            raise DataError(
                f"{address} returned a file that differs from the published one: its "
                f"SHA-256 is {found}, not {published.sha256}; it was discarded"
            )
        temporary.replace(target)
    except (OSError, http.client.HTTPException) as error:
        reason = str(error) or repr(error)
        raise DataError(f"{address} cannot be downloaded: {reason} (to {target})") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


# ---------------------------------------------------------------------------------- digits


def open_digits() -> Data:
    """Return 1437 digits to train on and 360 to test on. Every fifth digit is for testing."""
    path = Path(__file__).with_name("digits.csv.gz")
    with naming(path, ValueError):
        table = np.loadtxt(path, delimiter=",", dtype=np.float32)
    images = (table[:, :-1] / 16).reshape(-1, 8, 8, 1)
    labels = table[:, -1].astype(np.int64)
    test = np.arange(len(table)) % 5 == 0
    return from_arrays(
        "digits", (images[~test], labels[~test]), (images[test], labels[test]), classes=CLASSES
    )


# ---------------------------------------------------------------------------------- MNIST

#: The folder of Debian's package dataset-fashion-mnist.
DEBIAN_FOLDERS = {"fashion-mnist": Path("/usr/share/datasets/fashion-mnist")}
FILES = [published.file.removesuffix(".gz") for published in PUBLISHED["mnist"]]
#: SHA-256 of the test labels, which distinguishes the data sets: their files have the same names.
TEST_LABELS = {name: PUBLISHED[name][3].content for name in ("mnist", "fashion-mnist")}


def open_idx(name: str, folder: Path, *, download: bool) -> Data:
    """Return ``mnist`` or ``fashion-mnist`` from its four files, with or without ``.gz``."""
    files = _find_idx(name, folder, download)
    raw = [_read_bytes(path) for path in files]
    found = hashlib.sha256(raw[3]).hexdigest()
    for other, digest in TEST_LABELS.items():
        if other != name and found == digest:
            raise DataError(f"{files[3]} belongs to {other}, not to {name}: use another folder")
    arrays = list(map(parse, raw, files, (3, 1, 3, 1)))
    train, test = arrays[:2], arrays[2:]
    for (images, labels), path in ((train, files[0]), (test, files[2])):
        if len(images) != len(labels):
            raise DataError(f"{path}: {len(images)} images, but {len(labels)} labels")
    return from_arrays(name, train, test, classes=CLASSES)


def _find_idx(name: str, folder: Path, download: bool) -> list[Path]:
    """Return the paths of a data set's four files in the first folder that has any of them.

    If files are missing, download them into ``folder`` if ``download`` is set, or else raise
    DataError.
    """
    packaged = DEBIAN_FOLDERS.get(name)
    places = [folder, packaged] if packaged else [folder]
    for place in places:
        either = [(place / file, place / f"{file}.gz") for file in FILES]
        present = [next((path for path in paths if path.exists()), None) for paths in either]
        if all(present):
            return [path for path in present if path]
        if not any(present):
            continue
        if download and place == folder:
            break
        missing = [file for file, path in zip(FILES, present, strict=True) if not path]
        raise DataError(f"{name}: {place} lacks {', '.join(missing)} (with or without .gz)")
    if not download:
        package = "install Debian's package dataset-fashion-mnist, or " if packaged else ""
        raise DataError(
            f"{name}: {FILES[0]} (or .gz) and the other three files of the data set are not in "
            f"{' or '.join(map(str, places))}; {package}download them from "
            f"{PUBLISHED[name][0].address}, or add --download"
        )
    for published in PUBLISHED[name]:
        packed = folder / published.file
        if not packed.exists() and not packed.with_suffix("").exists():
            fetch_published(published, folder)
    return _find_idx(name, folder, download=False)


def _read_bytes(path: Path) -> bytes:
    with naming(path, zlib.error, gzip.BadGzipFile):
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content


def parse(content: bytes, path: Path, axes: int) -> Any:
    """Return the uint8 array in the contents of an IDX file; ``path`` is for errors.

    The file has two zero bytes, the type, the number of axes, the length of each axis, and the
    values. Raise DataError if it is damaged or does not have the expected number of ``axes``.
    """
    start = 4 + 4 * axes
    # A third byte of 8 means unsigned bytes.
    if len(content) < start or content[:4] != bytes([0, 0, 8, axes]):
        begins = f"it begins with {content[:4].hex(' ')}"
        raise DataError(f"{path}: not an IDX file of bytes with {axes} axes; {begins}")
    shape = struct.unpack(f">{axes}I", content[4:start])
    if len(content) - start != math.prod(shape):
        found = f"{len(content) - start} bytes of data, but {' x '.join(map(str, shape))}"
        raise DataError(f"{path}: truncated or corrupt: {found} in its header")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


# ---------------------------------------------------------------------------------- CIFAR-10

SIDE = 32
#: Bytes of an example.
ROW = 1 + 3 * SIDE * SIDE
#: The archive, its folder when extracted, and its files to train on and to test on.
ARCHIVE, EXTRACTED = "cifar-10-binary.tar.gz", "cifar-10-batches-bin"
BATCHES = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]


def open_cifar10(folder: Path, *, download: bool) -> Data:
    """Return CIFAR-10 from the archive in a folder, or its contents; ``download`` it if missing."""
    (published,) = PUBLISHED["cifar-10-binary"]
    source = next((p for p in (folder / EXTRACTED, folder / ARCHIVE) if p.exists()), folder)
    if source == folder and not (folder / BATCHES[0]).exists():
        if not download:
            raise DataError(
                f"cifar10: neither {ARCHIVE}, {EXTRACTED} nor {BATCHES[0]} is in {folder}; "
                f"download {ARCHIVE} from {published.address}, or add --download"
            )
        fetch_published(published, folder)
        source = folder / ARCHIVE
    contents = _read_batches(source)
    missing = [name for name in BATCHES if name not in contents]
    if missing:
        raise DataError(f"cifar10: {source} lacks {', '.join(missing)}")
    batches = []
    for name in BATCHES:
        content = contents.pop(name)
        if not content or len(content) % ROW:
            found = f"{len(content)} bytes, not a multiple of {ROW}"
            raise DataError(f"{source}/{name}: truncated or corrupt: {found}")
        # A label byte, then planes of red, green and blue, which become three channels.
        table = np.frombuffer(content, np.uint8).reshape(-1, ROW)
        images = table[:, 1:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
        batches.append((np.ascontiguousarray(images), table[:, 0].astype(np.int64)))
    train = [np.concatenate(parts) for parts in zip(*batches[:-1], strict=True)]
    return from_arrays("cifar10", train, batches[-1], classes=CLASSES)


def _read_batches(source: Path) -> dict[str, bytes]:
    """Return the contents of the batch files in a folder or an archive, by file name."""
    if source.is_dir():
        with naming(source):
            files = sorted(path for path in source.iterdir() if path.name in BATCHES)
        return {path.name: _read_bytes(path) for path in files}
    contents = {}
    with naming(source, tarfile.TarError, zlib.error), tarfile.open(source) as archive:
        for member in archive:
            name = member.name.rpartition("/")[2]
            stream = archive.extractfile(member) if name in BATCHES else None
            if stream is not None:
                contents[name] = stream.read()
    return contents
