"""What the tests of the training program's data share: made-up files, and what is opened."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.support.training_script import modules, tf

arrays, data = modules("training.data.arrays", "training.data")
settings, task = modules("training.settings", "training.task")


def open_data(name: str, folder: Path | None = None, **more: Any) -> Any:
    """Open data as the program does."""
    options = {"image_size": 8, "seed": 1, "examples": 100, **more}
    return task.open_data(settings.Settings(data=name, data_dir=folder, **options))


def refusal(name: str, folder: Path, **more: Any) -> str:
    """Return why data cannot be opened."""
    with pytest.raises(data.DataError) as refused:
        open_data(name, folder, **more)
    return str(refused.value)


def about(found: Any) -> tuple[list[int], list[int], int | None]:
    """Return the numbers of examples for training and test, their shape, and the classes."""
    return [found.train.size, found.test.size], list(found.shape), found.classes


def fetch(split: Any, *indices: int) -> tuple[Any, Any]:
    """Return features, from 0 to 1 for images, and labels of some examples."""
    batches = tf.data.Dataset.from_tensors(tf.constant(indices, tf.int64)).map(split.fetch)
    features, labels = next(iter(batches))
    return arrays.scaled(features).numpy(), labels.numpy()


def idx(*shape: int, content: bytes) -> bytes:
    """Return an IDX file of unsigned bytes."""
    return struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape) + content


def write_mnist(folder: Path, packed: bool = True) -> None:
    """Write six examples to train on and three for the test, of 28 x 28 pixels, as MNIST is."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 6), ("t10k", 3)):
        pixels = bytes(number * 40 for number in range(count) for _ in range(28 * 28))
        files = {
            f"{part}-images-idx3-ubyte": idx(count, 28, 28, content=pixels),
            f"{part}-labels-idx1-ubyte": idx(count, content=bytes(range(count))),
        }
        for name, content in files.items():
            if packed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))
            else:
                (folder / name).write_bytes(content)


def png(width: int, height: int, color: tuple[int, int, int]) -> bytes:
    """Return a PNG image of one colour."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        crc = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + crc

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress((b"\0" + bytes(color) * width) * height)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", rows), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
