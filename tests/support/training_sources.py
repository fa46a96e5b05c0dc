"""What the tests of the training program's data share: made-up files, and a look at them."""

from __future__ import annotations

import gzip
import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any

from tests.support.lab import REPOSITORY
from tests.support.tensorflow_forks import forks

TRAIN = REPOSITORY / "train"
#: Seconds after which a process of a test is given up.
PATIENCE = 300

#: Opens data as it is asked to on standard input, and tells on standard output what it got.
LOOK = """
import json, sys
from pathlib import Path
from training import data

def open_one(name, folder=None, download=False, image_size=8, seed=1, examples=100):
    folder = None if folder is None else Path(folder)
    return data.open_data(name, folder, download=download, image_size=image_size, seed=seed,
                          examples=examples)

def describe(found):
    return {"name": found.name, "sizes": [found.train.size, found.test.size],
            "shape": list(found.shape), "classes": found.classes,
            "fingerprint": found.fingerprint}

def fetched(split, indices):
    import tensorflow as tf
    batches = tf.data.Dataset.from_tensors(tf.constant(indices, tf.int64)).map(split.fetch)
    features, labels = next(iter(batches))
    return {"features": features.numpy().tolist(), "labels": labels.numpy().tolist(),
            "types": [features.dtype.name, labels.dtype.name]}

def look(fetch=None, **wanted):
    try:
        found = open_one(**wanted)
    except data.DataError as error:
        return {"error": str(error)}
    result = describe(found)
    for part, indices in (fetch or {}).items():
        try:
            result[part] = fetched(getattr(found, part), indices)
        except Exception as error:
            result[part] = {"error": f"{type(error).__name__}: {error}"}
    return result
"""


def run_python(python: str, code: str, given: Any = None) -> Any:
    """Run ``code`` after LOOK with ``given`` (JSON) on its input; return the JSON it prints."""
    variables = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    environment = {**os.environ, **variables}
    done = forks(python).run(LOOK + code, (), environment, TRAIN, PATIENCE, json.dumps(given))
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def look(python: str, *wanted: dict[str, Any], patch: str = "") -> list[dict[str, Any]]:
    """Open data for each of ``wanted``, the arguments of open_data, by the training program.

    Each may have ``fetch``, such as {"train": [0, 5]}, too. What comes back says what Data holds,
    and what was fetched; or has "error".

    Args:
        python: the interpreter with TensorFlow.
        patch: code to run before.
    """
    code = patch + "\nprint(json.dumps([look(**wanted) for wanted in json.load(sys.stdin)]))"
    given = [{**request, "folder": str(request["folder"])} for request in wanted]
    found: list[dict[str, Any]] = run_python(python, code, given)
    return found


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
