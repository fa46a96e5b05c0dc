"""The training program's data: CIFAR-10, numpy archives, and a user's own arrays."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from tests.support.training_sources import look, run_python

BATCHES = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]


def planes(label: int) -> bytes:
    """Return an image whose red is all ``label``, whose green is 100, and whose blue 255."""
    return bytes([label]) * 1024 + bytes([100]) * 1024 + bytes([255]) * 1024


def binary_batch(labels: list[int]) -> bytes:
    return b"".join(bytes([label]) + planes(label) for label in labels)


def contents() -> dict[str, bytes]:
    """Return the six batches of a small CIFAR-10: two examples in each."""
    return {name: binary_batch([number, 9 - number]) for number, name in enumerate(BATCHES)}


def write_folder(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def write_archive(path: Path, inner: str, files: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in {**files, "readme.html": b"hello"}.items():
            member = tarfile.TarInfo(f"{inner}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.tensorflow
def test_cifar10_is_the_same_in_all_its_forms(tf_python: str, tmp_path: Path) -> None:
    binary = contents()
    archive = write_archive(tmp_path / "c/cifar-10-binary.tar.gz", "cifar-10-batches-bin", binary)
    write_folder(tmp_path / "a/cifar-10-batches-bin", binary)
    write_folder(tmp_path / "b", binary)
    folders = [tmp_path / name for name in "abc"]
    found = look(
        tf_python,
        *(
            {"name": "cifar10", "folder": folder, "fetch": {"train": [2], "test": [0, 1]}}
            for folder in [*folders, archive]
        ),
    )
    assert found[0]["sizes"] == [10, 2]
    assert (found[0]["shape"], found[0]["classes"]) == ([32, 32, 3], 10)
    pixel = [pytest.approx(value / 255) for value in (1, 100, 255)]
    assert found[0]["train"]["features"][0][31][0] == pixel
    assert found[0]["train"]["labels"] == [1]
    assert found[0]["test"]["labels"] == [5, 4]
    assert [other == found[0] for other in found] == [True] * 4


@pytest.mark.tensorflow
def test_cifar10_is_fetched_if_asked(tf_python: str, tmp_path: Path) -> None:
    name = "cifar-10-binary.tar.gz"
    archive = write_archive(tmp_path / "there" / name, "x", contents())
    patch = f"""
from training.data import published
published.PUBLISHED["cifar-10-binary"] = [published.Published(
    {name!r}, "file://{archive.parent}/", {hashlib.sha256(archive.read_bytes()).hexdigest()!r})]
"""
    wanted = {"name": "cifar10", "folder": tmp_path / "own"}
    refused, fetched = look(tf_python, wanted, {**wanted, "download": True}, patch=patch)
    assert "or add --download" in refused["error"]
    assert fetched["sizes"] == [10, 2]
    assert [path.name for path in (tmp_path / "own").iterdir()] == [name]


@pytest.mark.tensorflow
def test_damaged_cifar10_files_are_named(tf_python: str, tmp_path: Path) -> None:
    binary = contents()
    packed = write_archive(tmp_path / "a/cifar-10-binary.tar.gz", "x", binary)
    packed.write_bytes(packed.read_bytes()[:-30])
    one = "data_batch_1.bin"
    cases = {
        packed.parent: f"{packed}: damaged, cut short",
        write_folder(tmp_path / "b", {one: binary[one]}): "lacks data_batch_2.bin",
        write_folder(tmp_path / "c", {**binary, one: b"x" * 99}): (
            f"{tmp_path}/c/{one}: cut short or damaged: 99 bytes, no multiple of 3073"
        ),
        write_folder(tmp_path / "d", {**binary, one: binary_batch([10])}): (
            "label 10 is none of the classes 0 to 9"
        ),
        tmp_path / "none": (
            f"is in {tmp_path}/none; bring cifar-10-binary.tar.gz from https://www.cs.toronto.edu"
        ),
    }
    found = look(tf_python, *({"name": "cifar10", "folder": folder} for folder in cases))
    for result, error in zip(found, cases.values(), strict=True):
        assert error in result["error"]

    assert not Path("train/evil").exists()


@pytest.mark.tensorflow
def test_npz_archives(tf_python: str, tmp_path: Path) -> None:
    make = f"""
import numpy as np
folder = Path({str(tmp_path)!r})
for name in "abcde":
    (folder / name).mkdir()
x, y = np.arange(8, dtype=np.uint8).reshape(2, 2, 2) * 36, np.array([[1], [0]])
np.savez_compressed(folder / "a" / "some.npz", x_train=x, y_train=y, x_test=x[:1], y_test=y[:1])
np.savez(folder / "b" / "other.npz", x_train=x, y_train=y)
np.savez(folder / "c" / "o.npz", x_train=np.array([{{}}]), y_train=y, x_test=x, y_test=y)
whole = (folder / "a" / "some.npz").read_bytes()
(folder / "d" / "cut.npz").write_bytes(whole[:-40])
print("null")
"""
    run_python(tf_python, make)
    fetch = {"train": [1, 0]}
    folder, file, *wrong = look(
        tf_python,
        {"name": "npz", "folder": tmp_path / "a", "fetch": fetch},
        {"name": "npz", "folder": tmp_path / "a" / "some.npz", "fetch": fetch},
        *({"name": "npz", "folder": tmp_path / name} for name in "bcde"),
    )
    assert (folder["sizes"], folder["shape"], folder["classes"]) == ([2, 1], [2, 2, 1], 2)
    assert folder["train"]["labels"] == [0, 1]
    assert folder["train"]["features"][0][1][1] == [pytest.approx(252 / 255)]
    assert file == folder
    assert f"{tmp_path}/b/other.npz lacks x_test, y_test" in wrong[0]["error"]
    assert f"{tmp_path}/c/o.npz: damaged, cut short or of another kind: Object" in wrong[1]["error"]
    assert f"{tmp_path}/d/cut.npz: damaged, or no archive" in wrong[2]["error"]
    assert f"npz: {tmp_path}/e holds 0 .npz files, not one" in wrong[3]["error"]


# ---------------------------------------------------------------------------------- own arrays

OWN = """
import numpy as np
import tensorflow as tf
from training.data.arrays import from_arrays
x, y = np.arange(12.0).reshape(4, 3), np.array([0, 2, 1, 2])

class Split:
    size, classes = 5, 7
    def fetch(self, indices):
        return tf.ones([tf.size(indices), 4]), indices

class Wrong(Split):
    def fetch(self, indices):
        return tf.ones([tf.size(indices), 4], tf.float64), indices

def numbers(*shape):
    return np.zeros(shape, np.float32)

def dataset(count):
    return tf.data.Dataset.range(count).map(lambda i: (tf.fill([3], i), tf.cast(i, tf.float32)))

def attempt(train, test, get=(), **options):
    try:
        found = from_arrays("own.py", train, test, **options)
    except data.DataError as error:
        return str(error)
    return {**describe(found), **(fetched(found.train, get) if get else {})}
"""


@pytest.mark.tensorflow
def test_own_arrays_datasets_and_splits(tf_python: str) -> None:
    code = """
print(json.dumps([
    attempt((x, y), (x[:1], y[:1]), [3]),
    attempt([x.tolist(), y.reshape(4, 1)], (x[:1], y[:1])),
    attempt((x, numbers(4, 2) + 0.5), (x, numbers(4, 2)), [0]),
    attempt((x + 1, y), (x[:1], y[:1])),
    attempt(dataset(6), dataset(2), [5]),
    attempt(Split(), Split(), [4]),
    attempt((x, y), (x, y), classes=9),
]))
"""
    pair, lists, numbers, other, dataset, split, nine = run_python(tf_python, OWN + code)
    assert (pair["sizes"], pair["shape"], pair["classes"]) == ([4, 1], [3], 3)
    assert (pair["features"], pair["labels"]) == ([[9, 10, 11]], [2])
    assert pair["types"] == ["float32", "int64"]
    assert lists["fingerprint"] == pair["fingerprint"] != other["fingerprint"]
    assert (numbers["classes"], numbers["labels"]) == (None, [[0.5, 0.5]])
    assert numbers["types"] == ["float32", "float32"]
    assert (dataset["sizes"], dataset["shape"], dataset["classes"]) == ([6, 2], [3], None)
    assert (dataset["features"], dataset["labels"]) == ([[5, 5, 5]], [5.0])
    assert (split["sizes"], split["shape"], split["classes"]) == ([5, 5], [4], 7)
    assert (split["features"], split["labels"]) == ([[1, 1, 1, 1]], [4])
    assert nine["classes"] == 9


@pytest.mark.tensorflow
def test_own_arrays_that_do_not_fit_are_refused(tf_python: str) -> None:
    good = "(x, y)"
    cases = {
        f"{good}, (x[:, :2], y)": "an example is (3,) of float32 in train, but (2,) of float32",
        f"{good}, (x, numbers(4))": "a label is () of int64 in train, but () of float32 in test",
        f"(x, y[:3]), {good}": "own.py: train: 4 features, but 3 labels",
        f"(x[:0], y[:0]), {good}": "own.py: train: there are no features",
        f"{good}, (x, y - 1)": "label -1 is none of the classes",
        f"{good}, {good}, classes=2": "label 2 is none of the classes 0 to 1",
        f"(x * np.nan, y), {good}": "own.py: train: the features hold NaN or infinity",
        f"(np.array(['a', 'b']), y), {good}": "the features are of <U1, not numbers",
        f"(x[:, 0], y), {good}": "features must be [n, ...]; make [n, 1] of [n]",
        f"(x, np.eye(4, dtype=int)), {good}": "classes must be [n] or [n, 1], not [4, 4]",
        f"x, {good}": "own.py: train must be a pair (features, labels), a tf.data.Dataset or a Spl",
        "dataset(6).repeat(), dataset(2)": "the dataset is endless or its size unknown: use take()",
        "dataset(6).batch(4), dataset(2)": "are not single examples, all of one shape",
        f"Split(), {good}": "train and test must both be arrays, or both have size and fetch",
        "Wrong(), Split()": "train.fetch gives features of float64",
    }
    code = OWN + f"print(json.dumps([{', '.join(f'attempt({case})' for case in cases)}]))"
    for found, error in zip(run_python(tf_python, code), cases.values(), strict=True):
        assert error in found
        assert "\n" not in found
