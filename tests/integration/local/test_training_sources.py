"""The training program's data: published files, folders, arrays, and downloads."""

from __future__ import annotations

import gzip
import hashlib
import json
import multiprocessing
import os
import re
import shutil
import struct
import sys
import types
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.data_folders import DIGITS, content, serving, sha256
from tests.support.lab import free_port
from tests.support.training_script import inside, modules, np, tf

arrays, data, published, settings, task = modules(
    "training.data.arrays",
    "training.data",
    "training.data.published",
    "training.settings",
    "training.task",
)


def open_data(name: str, folder: Path | None = None, **more: Any) -> Any:
    """Open data like the program."""
    options = {"image_size": 8, "seed": 1, "examples": 100, **more}
    return task.open_data(settings.Settings(data=name, data_dir=folder, **options))


def refusal(name: str, folder: Path, **more: Any) -> str:
    """Return the error when data cannot be opened."""
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


def fetch_error(split: Any, *indices: int) -> str:
    """Return the error when examples cannot be fetched."""
    with pytest.raises(tf.errors.OpError) as failed:
        fetch(split, *indices)
    return str(failed.value)


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, file in files.items():
        (folder / name).write_bytes(file)
    return folder


@inside
def test_digits_keep_every_fifth_for_the_test() -> None:
    found, table = open_data("digits"), np.loadtxt(DIGITS, delimiter=",")
    own, targets = table[:, :-1].reshape(-1, 8, 8, 1), table[:, -1]
    # In the format of the data set's authors.
    counts = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert np.bincount(targets.astype(int)).tolist() == counts
    assert about(found) == ([1437, 360], [8, 8, 1], 10)
    _, labels = fetch(found.train, *range(1437))
    images, answers = fetch(found.test, *range(360))
    assert (images.dtype, answers.dtype) == (np.float32, np.int64)
    assert (answers == targets[::5]).all()
    assert (images == own[::5] / 16).all()
    assert (labels == [target for n, target in enumerate(targets) if n % 5]).all()


@inside
def test_synthetic_images_follow_from_seed_and_number_and_can_be_learned() -> None:
    found, again, other = (open_data("synthetic", seed=n, examples=2000) for n in (3, 3, 4))
    assert about(found) == ([2000, 400], [32, 32, 3], 10)
    images, labels = fetch(found.train, *range(2000))
    assert 0 <= images.min() < 0.05
    assert 0.95 < images.max() <= 1
    assert np.bincount(labels, minlength=10).min() > 150
    assert (fetch(again.train, 1999, 7)[0] == images[[1999, 7]]).all()
    assert again.fingerprint == found.fingerprint != other.fingerprint
    assert (fetch(other.train, 7)[0] == images[7]).mean() < 0.1

    tests, answers = fetch(found.test, *range(400))
    assert not any((image == images).all(axis=(1, 2, 3)).any() for image in tests[:20])
    means = np.stack([images[labels == kind].mean(axis=0) for kind in range(10)])
    guesses = ((tests[:, None] - means) ** 2).sum(axis=(2, 3, 4)).argmin(axis=1)
    assert (guesses == answers).mean() > 0.99
    # The values must be the same on every machine, and VERSION must change if they do.
    first = (images[:50] * 255).round().astype(np.uint8).tobytes()
    assert hashlib.sha256(first).hexdigest() == (
        "c8eca02485af2dc26398f99a280a79186e4360ea1ace4f34f548483c5d492157"
    )


IMAGES, LABELS = "train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"


def write_mnist(folder: Path) -> Path:
    """Write six training and three test examples of 28 x 28 pixels in the format of MNIST."""
    files = {}
    for part, count in (("train", 6), ("t10k", 3)):
        pixels = bytes(number * 40 for number in range(count) for _ in range(28 * 28))
        images = struct.pack(">HBB3I", 0, 8, 3, count, 28, 28) + pixels
        labels = struct.pack(">HBBI", 0, 8, 1, count) + bytes(range(count))
        files[f"{part}-images-idx3-ubyte.gz"] = gzip.compress(images, mtime=0)
        files[f"{part}-labels-idx1-ubyte.gz"] = gzip.compress(labels, mtime=0)
    return write_files(folder, files)


@inside
def test_opening_data_runs_no_tensorflow_operation(tmp_path: Path) -> None:
    folder = write_mnist(tmp_path / "mnist")
    for name in ("digits", "synthetic", "mnist"):
        open_data(name, folder)
    # Rejected if an operation has already run.
    tf.config.threading.set_inter_op_parallelism_threads(1)


@inside
def test_idx_files_are_read_packed_and_unpacked_and_from_debians_package(tmp_path: Path) -> None:
    folder = write_mnist(tmp_path / "packed")
    files = {path.stem: gzip.decompress(path.read_bytes()) for path in folder.iterdir()}
    packed, plain = (
        open_data("mnist", folder),
        open_data("mnist", write_files(tmp_path / "b", files)),
    )
    assert about(packed) == ([6, 3], [28, 28, 1], 10)
    images, labels = fetch(packed.train, 5, 0)
    assert (images.dtype, labels.dtype, labels.tolist()) == (np.float32, np.int64, [5, 0])
    assert images[0, 27, 27] == pytest.approx(200 / 255)
    assert images[1, 0, 0] == 0
    assert fetch(packed.test, 2)[1] == 2
    assert plain.fingerprint == packed.fingerprint

    published.DEBIAN_FOLDERS["fashion-mnist"] = folder
    package = open_data("fashion-mnist", tmp_path / "nowhere")
    assert package.fingerprint == open_data("fashion-mnist", folder).fingerprint
    published.TEST_LABELS["fashion-mnist"] = hashlib.sha256(files[LABELS[:-3]]).hexdigest()
    assert refusal("mnist", folder) == (
        f"{folder}/{LABELS} belongs to fashion-mnist, not to mnist: use another folder"
    )


@inside
def test_missing_files_say_where_and_how_to_get_them(tmp_path: Path) -> None:
    own, package = tmp_path / "own", tmp_path / "package"
    published.DEBIAN_FOLDERS["fashion-mnist"] = package
    fashion, mnist = refusal("fashion-mnist", own), refusal("mnist", own)
    assert f"not in {own} or {package}; install Debian's package" in fashion
    assert "dataset-fashion-mnist, or download them from http" in fashion
    assert f"not in {own}; download them from https://" in mnist
    assert mnist.endswith("or add --download")
    (write_mnist(own) / "t10k-images-idx3-ubyte.gz").unlink()
    lacks = "lacks t10k-images-idx3-ubyte (with or without .gz)"
    assert refusal("mnist", own) == f"mnist: {own} {lacks}"


@inside
def test_damaged_idx_files_are_named(tmp_path: Path) -> None:
    whole = (write_mnist(tmp_path / "whole") / IMAGES).read_bytes()
    plain = gzip.decompress(whole)
    cases = [
        (IMAGES, whole[:-20], "corrupt, truncated or of another type"),
        (IMAGES, b"<html>not found</html>", "corrupt, truncated or of another type"),
        (IMAGES, gzip.compress(plain[:-1]), "4703 bytes of data, but 6 x 28 x 28 in its header"),
        (IMAGES, gzip.compress(plain + b"x"), "4705 bytes of data, but 6 x 28 x 28"),
        (
            LABELS,
            gzip.compress(plain),
            "not an IDX file of bytes with 1 axes; it begins with 00 00 08",
        ),
        (LABELS, gzip.compress(b"\0\0\x08\x01\0\0\0\2\1\2"), "3 images, but 2 labels"),
        (LABELS, gzip.compress(b"\0\0\x08\x01\0\0\0\3\1\2\x0a"), "label 10 is not one of"),
    ]
    for number, (name, damaged, error) in enumerate(cases):
        folder = write_mnist(tmp_path / str(number))
        (folder / name).write_bytes(damaged)
        found = refusal("mnist", folder)
        assert error in found
        assert "label" in error or f"{folder}/{name}" in found


def publish(folder: Path, port: int) -> str:
    """Make the files of a folder, served at a port, the published MNIST; return the address."""
    os.environ["no_proxy"] = "*"
    address = f"http://127.0.0.1:{port}/"
    published.PUBLISHED["mnist"] = [
        published.Published(path.name, address, sha256(path)) for path in folder.iterdir()
    ]
    return address


@inside
def test_download_fetches_what_is_missing_and_only_if_asked(tmp_path: Path) -> None:
    there, own = write_mnist(tmp_path / "there"), tmp_path / "own/folder"
    whole = content(there)
    with serving(there) as port:
        publish(there, port)
        assert "add --download" in refusal("mnist", own)
        assert not own.exists()
        assert about(open_data("mnist", own, download=True))[0] == [6, 3]
        assert content(own) == whole

        for path in (own / LABELS, *there.glob("*images*")):
            path.unlink()
        open_data("mnist", own, download=True)
        assert content(own) == whole
    open_data("mnist", own, download=True)


@inside
def test_download_keeps_nothing_but_the_published_file(tmp_path: Path) -> None:
    there, own = write_mnist(tmp_path / "there"), tmp_path / "own"
    with serving(there) as port:
        address = publish(there, port)
        for path in there.iterdir():
            path.write_bytes(b"something else")
        other = refusal("mnist", own, download=True)
        assert re.search(
            f"{address}\\S+ returned a file that differs from the published one", other
        )
        assert list(own.iterdir()) == []
        shutil.rmtree(there)
        assert "cannot be downloaded: HTTP Error 404" in refusal("mnist", own, download=True)
    assert re.search("cannot be downloaded: .*refused", refusal("mnist", own, download=True))
    assert list(own.iterdir()) == []


BATCHES = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]


def binary_batch(*labels: int) -> bytes:
    """Return images with the label as red, 100 as green and 255 as blue in all pixels."""
    return b"".join(bytes([label] * 1025 + [100] * 1024 + [255] * 1024) for label in labels)


#: The six batches of a small CIFAR-10: two examples in each.
BINARY = {name: binary_batch(number, 9 - number) for number, name in enumerate(BATCHES)}
ARCHIVE = "cifar-10-binary.tar.gz"


def write_archive(folder: Path) -> Path:
    write_files(folder / "cifar-10-batches-bin", {**BINARY, "readme.html": b"hello"})
    shutil.make_archive(str(folder / "cifar-10-binary"), "gztar", folder, "cifar-10-batches-bin")
    shutil.rmtree(folder / "cifar-10-batches-bin")
    return folder / ARCHIVE


@inside
def test_cifar10_is_the_same_in_all_its_forms_and_fetched_if_asked(tmp_path: Path) -> None:
    write_files(tmp_path / "a/cifar-10-batches-bin", BINARY)
    plain, archive = write_files(tmp_path / "b", BINARY), write_archive(tmp_path / "c")
    there = published.Published(ARCHIVE, f"file://{archive.parent}/", sha256(archive))
    published.PUBLISHED["cifar-10-binary"] = [there]
    assert "or add --download" in refusal("cifar10", tmp_path / "own")
    prints = set()
    for path in (tmp_path / "a", plain, archive.parent, tmp_path / "own"):
        found = open_data("cifar10", path, download=path.name == "own")
        assert about(found) == ([10, 2], [32, 32, 3], 10)
        images, labels = fetch(found.train, 2)
        assert images[0, 31, 0] == pytest.approx(np.array([1, 100, 255]) / 255)
        assert labels == 1
        assert fetch(found.test, 0, 1)[1].tolist() == [5, 4]
        prints.add(found.fingerprint)
    assert len(prints) == 1
    assert [path.name for path in (tmp_path / "own").iterdir()] == [ARCHIVE]


@inside
def test_damaged_cifar10_files_are_named(tmp_path: Path) -> None:
    packed = write_archive(tmp_path / "a")
    packed.write_bytes(packed.read_bytes()[:-30])
    one = "data_batch_1.bin"
    write_files(tmp_path / "b", {one: BINARY[one]})
    write_files(tmp_path / "c", {**BINARY, one: b"x" * 99})
    write_files(tmp_path / "d", {**BINARY, one: binary_batch(10)})
    cases = {
        "a": f"{packed}: corrupt, truncated",
        "b": "lacks data_batch_2.bin",
        "c": f"{tmp_path}/c/{one}: truncated or corrupt: 99 bytes, not a multiple of 3073",
        "d": "label 10 is not one of the classes 0 to 9",
        "none": f"is in {tmp_path}/none; download {ARCHIVE} from https://www.cs.toronto.edu",
    }
    for name, error in cases.items():
        assert error in refusal("cifar10", tmp_path / name)


@inside
def test_npz_archives(tmp_path: Path) -> None:
    def write(name: str, **named: Any) -> Path:
        (tmp_path / name).mkdir()
        np.savez_compressed(tmp_path / name / "own.npz", **named)
        return tmp_path / name / "own.npz"

    x, y = np.arange(8, dtype=np.uint8).reshape(2, 2, 2) * 36, np.array([[1], [0]])
    whole = write("a", x_train=x, y_train=y, x_test=x[:1], y_test=y[:1])
    found = open_data("npz", whole.parent)
    assert about(found) == ([2, 1], [2, 2, 1], 2)
    images, labels = fetch(found.train, 1, 0)
    assert labels.tolist() == [0, 1]
    assert images[0, 1, 1] == pytest.approx(252 / 255)

    lacking = write("b", x_train=x, y_train=y)
    objects = write("c", x_train=np.array([{}]), y_train=y, x_test=x, y_test=y)
    cut = write("d")
    cut.write_bytes(whole.read_bytes()[:-40])
    assert f"{lacking} lacks x_test, y_test" in refusal("npz", lacking.parent)
    assert f"{objects}: corrupt, truncated or of another type: Object" in refusal(
        "npz", objects.parent
    )
    assert f"{cut}: corrupt, or not an archive" in refusal("npz", cut.parent)
    (tmp_path / "e").mkdir()
    assert f"npz: {tmp_path}/e contains 0 .npz files, expected one" in refusal(
        "npz", tmp_path / "e"
    )


@inside
def test_only_images_of_bytes_are_scaled() -> None:
    labels = np.array([0, 1])
    #: The shape of the features in the data, by that of the user's array.
    shapes = {
        (2, 3, 4): (3, 4, 1),
        (2, 3, 4, 3): (3, 4, 3),
        (2, 1, 4, 3): (1, 4, 3),
        (2, 5): (5,),
        (2, 1, 5): (1, 5),
        (2, 5, 1): (5, 1),
        (2, 2, 3, 4, 3): (2, 3, 4, 3),
    }
    for given, shape in shapes.items():
        bits = np.ones(given, np.uint8)
        bits[1] = 0
        found = arrays.from_arrays("own", (bits, labels), (bits, labels))
        features, _ = fetch(found.train, 0, 1)
        value = 1 / 255 if len(shape) >= 3 else 1.0  # of images, and of videos
        assert found.shape == shape
        assert features.dtype == np.float32
        assert features[0] == pytest.approx(np.full(shape, value))
        assert not features[1].any()


class Split:
    """Examples that a user's own code fetches."""

    size, classes = 5, 7

    def __init__(self, kind: str = "float32") -> None:
        self.kind = kind

    def fetch(self, indices: Any) -> Any:
        return tf.ones([tf.size(indices), 4], self.kind), indices


def numbers(count: int) -> Any:
    examples = tf.data.Dataset.range(count)
    return examples.map(lambda number: (tf.fill([3], number), tf.cast(number, tf.float32)))


@inside
def test_own_arrays_datasets_and_splits() -> None:
    x, y = np.arange(12.0).reshape(4, 3), np.array([0, 2, 1, 2])
    pairs = np.full((4, 2), 0.5, np.float32)
    few = (x[:1], y[:1])
    made = partial(arrays.from_arrays, "own.py")
    pair = made((x, y), few)
    # The source, its kind, and the last training example: features and label.
    cases = [
        (pair, ([4, 1], [3], 3), [9, 10, 11], 2),
        (made((x, pairs), (x, pairs)), ([4, 4], [3], None), [9, 10, 11], [0.5, 0.5]),
        (made(numbers(6), numbers(2)), ([6, 2], [3], None), [5, 5, 5], 5.0),
        (made(Split(), Split()), ([5, 5], [4], 7), [1, 1, 1, 1], 4),
        (made((x, y), (x, y), classes=9), ([4, 4], [3], 9), [9, 10, 11], 2),
    ]
    for found, expected, features, label in cases:
        assert about(found) == expected
        values, labels = fetch(found.train, found.train.size - 1)
        assert (values.tolist(), labels.tolist()) == ([features], [label])
        assert values.dtype == np.float32
        assert labels.dtype == (np.int64 if found.classes else np.float32)
    lists = made([x.tolist(), y.reshape(4, 1)], few)
    assert lists.fingerprint == pair.fingerprint != made((x + 1, y), few).fingerprint


@inside
def test_own_arrays_that_do_not_fit_are_refused() -> None:
    x, y = np.arange(12.0).reshape(4, 3), np.array([0, 2, 1, 2])
    good = (x, y)
    cases = [
        (good, (x[:, :2], y), "an example is (3,) of float32 in train, but (2,) of float32"),
        (good, (x, np.zeros(4, np.float32)), "() of int64 in train, but () of float32 in test"),
        ((x, y[:3]), good, "own.py: train: 4 features, but 3 labels"),
        ((x[:0], y[:0]), good, "own.py: train: there are no features"),
        (good, (x, y - 1), "label -1 is not one of the classes"),
        ((x * np.nan, y), good, "own.py: train: the features contain NaN or infinity"),
        ((np.array(["a", "b"]), y), good, "the features have the type <U1, expected numbers"),
        ((x[:, 0], y), good, "features must have the shape [n, ...]; reshape [n] to [n, 1]"),
        (
            (x, np.eye(4, dtype=int)),
            good,
            "class labels must have the shape [n] or [n, 1], not [4, 4]",
        ),
        (x, good, "own.py: train must be a pair (features, labels), a tf.data.Dataset or a Spl"),
        (
            numbers(6).repeat(),
            numbers(2),
            "the dataset is infinite or its size is unknown: use take()",
        ),
        (numbers(6).batch(4), numbers(2), "are not single examples, all of one shape"),
        (Split(), good, "train and test must both be arrays, or both have size and fetch"),
        (Split("float64"), Split(), "train.fetch returns features of float64"),
    ]
    for train, test, error in cases:
        with pytest.raises(data.DataError) as refused:
            arrays.from_arrays("own.py", train, test)
        assert error in str(refused.value)
        assert "\n" not in str(refused.value)
    with pytest.raises(data.DataError, match="label 2 is not one of the classes 0 to 1"):
        arrays.from_arrays("own.py", good, good, classes=2)


def png(color: tuple[int, int, int], width: int = 8, height: int = 8) -> bytes:
    """Return a PNG image of one color."""
    return bytes(tf.io.encode_png(np.full((height, width, 3), color, np.uint8)).numpy())


def write_images(folder: Path) -> Path:
    """Write red cats, green dogs and a blue emu, of two sizes."""
    kinds = {"cat": (255, 0, 0), "dog": (0, 255, 0), "emu": (0, 0, 255)}
    for part, names in (("train", ("cat", "dog", "emu")), ("test", ("dog", "emu"))):
        for name in names:
            (folder / part / name).mkdir(parents=True)
            for number in range(2):
                image = png(kinds[name], 8 + 5 * number)
                (folder / part / name / f"{number}.png").write_bytes(image)
    (folder / "train" / ".DS_Store").write_bytes(b"x")
    (folder / "train" / "cat" / ".hidden").write_bytes(b"x")
    return folder


@inside
def test_images_are_classes_by_folder(tmp_path: Path) -> None:
    one, two = (write_images(tmp_path / name) for name in ("one", "two"))
    prints = []
    for folder in (one, two):
        found = open_data("images", folder)
        assert about(found) == ([6, 4], [8, 8, 3], 3)
        images, labels = fetch(found.train, 5, 0, 3)
        assert (images.dtype, labels.dtype, labels.tolist()) == (np.float32, np.int64, [2, 0, 1])
        for image, color in zip(images, ([0, 0, 1], [1, 0, 0], [0, 1, 0]), strict=True):
            np.testing.assert_allclose(image, np.broadcast_to(color, (8, 8, 3)), atol=1e-6)
        assert fetch(found.test, 0, 3)[1].tolist() == [1, 2]
        prints.append(found.fingerprint)
    assert prints[0] == prints[1]
    small = open_data("images", one, image_size=5)
    assert about(small)[1] == [5, 5, 3]
    assert fetch(small.train)[1].tolist() == []

    (two / "train/cat/0.png").write_bytes(png((254, 0, 0)))
    assert open_data("images", two).fingerprint != prints[0]
    # 0 means the size of the first image, which is neither square nor that of the others here.
    (one / "train/cat/0.png").write_bytes(png((255, 0, 0), 7, 9))
    as_first = open_data("images", one, image_size=0)
    assert about(as_first)[1] == [9, 7, 3]
    red = np.broadcast_to([1, 0, 0], (2, 9, 7, 3))
    np.testing.assert_allclose(fetch(as_first.train, 0, 1)[0], red, atol=1e-6)


@inside
def test_other_formats_are_decoded_and_pixels_stay(tmp_path: Path) -> None:
    folder = write_images(tmp_path) / "train/cat"
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    (folder / "0.png").write_bytes(tf.io.encode_png(pixels).numpy())
    (folder / "1.png").unlink()
    gray = tf.io.encode_jpeg(np.full((8, 8, 1), 51, np.uint8))
    (folder / "1.JPEG").write_bytes(gray.numpy())
    images, _ = fetch(open_data("images", tmp_path).train, 0, 1)
    assert (images[0] == pixels * np.float32(1 / 255)).all()
    np.testing.assert_allclose(images[1], 0.2, atol=0.01)


@inside
def test_wrong_image_folders_are_refused(tmp_path: Path) -> None:
    black = png((0, 0, 0))
    cases = [
        ("train/cat/notes.txt", b"x", "notes.txt is not an image file (.png, .jpg, .jpeg,"),
        ("train/notes.png", b"x", "train/notes.png is not a folder with"),
        ("train/fox/.hidden", b"x", "train/fox is empty"),
        ("train/cat/0.png", b"", "train/cat/0.png is empty"),
        ("test/fox/0.png", black, "test has classes that are not in train: ['fox']"),
    ]
    for number, (name, image, error) in enumerate(cases):
        path = write_images(tmp_path / str(number)) / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(image)
        assert error in refusal("images", tmp_path / str(number))
    empty = write_files(tmp_path / "empty", {})
    assert f"{empty}/train: cannot be read: No such file" in refusal("images", empty)
    for kind, image in (("cut", png((1, 2, 3), 64, 64)[:-30]), ("foreign", b"<html>")):
        path = write_images(tmp_path / kind) / "train/cat/0.png"
        path.write_bytes(image)
        error = fetch_error(open_data("images", tmp_path / kind).train, 1, 0)
        assert "examples could not be read or decoded" in error
        assert str(path) in error
        assert "1.png" not in error


def example(label: Any, **fields: Any) -> bytes:
    """Return a tf.train.Example with bytes, lists of floats and whole numbers."""
    made = tf.train.Example()
    for name, value in {**fields, "label": label}.items():
        kind = made.features.feature[name]
        if isinstance(value, bytes):
            kind.bytes_list.value.append(value)
        elif isinstance(value, list):
            kind.float_list.value.extend(value)
        else:
            kind.int64_list.value.append(value)
    return bytes(made.SerializeToString())


def write(path: Path, examples: Sequence[bytes], **options: str) -> None:
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(**options)) as writer:
        for made in examples:
            writer.write(made)


NINES = {"x": [9.0] * 4}


def write_vectors(folder: Path, sidecar: str) -> Path:
    """Write three training examples, none of them in the first file, and one test example."""
    for shard in range(3):
        vectors = ([float(shard), float(n), 0.5, 1.0] for n in range(shard))
        made = [example((3 * shard + n) % 4, x=x) for n, x in enumerate(vectors)]
        write(folder / f"train-{shard}.tfrecord", made)
    write(folder / "test.tfrecord", [example(3, **NINES)])
    (folder / "features.json").write_text(sidecar)
    return folder


@inside
def test_tfrecords_of_floats_and_of_images(tmp_path: Path) -> None:
    vectors = open_data(
        "tfrecord", write_vectors(tmp_path / "x", '{"classes": 4, "shape": [2, 2]}')
    )
    assert about(vectors) == ([3, 1], [2, 2], 4)
    features, labels = fetch(vectors.train, 2, 0, 1)
    assert labels.tolist() == [3, 3, 2]
    assert features[:, 0].tolist() == [[2, 1], [1, 0], [2, 0]]
    assert features[:, 1].tolist() == [[0.5, 1]] * 3
    assert (fetch(vectors.test, 0)[0] == np.full((1, 2, 2), 9)).all()

    image = png((51, 51, 51))
    for part in ("train", "test"):
        made = [example([float(n), 0.5], image=image) for n in range(4)]
        write(tmp_path / f"image/{part}.tfrecord", made)
    (tmp_path / "image/features.json").write_text("{}")
    images = open_data("tfrecord", tmp_path / "image")
    assert about(images)[1:] == ([8, 8, 3], None)
    features, labels = fetch(images.train, 3)
    assert labels.tolist() == [[3, 0.5]]
    assert (features.dtype, labels.dtype) == (np.float32, np.float32)
    np.testing.assert_allclose(features, np.full((1, 8, 8, 3), 0.2), atol=1e-6)


@inside
def test_wrong_tfrecords_are_refused(tmp_path: Path) -> None:
    good = '{"classes": 4, "shape": [2, 2]}'

    def changed(name: str, content: bytes) -> Path:
        folder = write_vectors(tmp_path / str(len(list(tmp_path.iterdir()))), good)
        (folder / name).write_bytes(content)
        return folder

    second = (write_vectors(tmp_path / "good", good) / "train-2.tfrecord").read_bytes()
    middle = len(second) // 2
    packed = write_vectors(tmp_path / "packed", good)
    write(packed / "test.tfrecord", [example(3, **NINES)], compression_type="GZIP")
    none = tmp_path / "none"
    for part in ("train", "test"):
        write(none / f"{part}.tfrecord", [example(1, y=[1.0])])
    (none / "features.json").write_text("{}")
    crc = second[: middle + 9] + b"x" + second[middle + 10 :]
    cases = {
        "truncated in the record at byte": changed("train-2.tfrecord", second[:-3]),
        f"train-2.tfrecord: corrupt, or not a TFRecord file: the CRC at byte {middle}": changed(
            "train-2.tfrecord", crc
        ),
        "the CRC at byte 0 is wrong": changed("test.tfrecord", b"<html>" * 9),
        "test.tfrecord: truncated in the record at byte 0": changed("test.tfrecord", b"1"),
        'write {"classes": N} to': changed("features.json", b'{"shape": [2, 2]}'),
        "has 4 floats in x, but the shape is [5]": changed(
            "features.json", b'{"classes": 4, "shape": [5]}'
        ),
        'must be an object that contains only "shape" and "classes"': changed(
            "features.json", b'{"a": 1}'
        ),
        "features.json: corrupt": changed("features.json", b"{"),
        "classes 0 is not a positive integer": changed("features.json", b'{"classes": 0}'),
        "test.tfrecord: the file is compressed": packed,
        "neither image (bytes) nor x": none,
        "contains no train*.tfrecord": tmp_path,
    }
    for error, folder in cases.items():
        assert error in refusal("tfrecord", folder)
    # Damage that is detected only when a record is read is reported then.
    content = second[:-9] + bytes([second[-9] ^ 1]) + second[-8:]
    damaged = changed("train-2.tfrecord", content)
    error = fetch_error(open_data("tfrecord", damaged).train, 2, 0)
    assert f"{damaged}/train-2.tfrecord at byte {middle}" in error
    assert "train-1" not in error
    few = changed("features.json", b'{"classes": 3, "shape": [2, 2]}')
    error = fetch_error(open_data("tfrecord", few).train, 2, 0)
    assert f"{few}/train-2.tfrecord at byte" in error


def serve(cluster: dict[str, list[str]], job: str) -> None:
    tf.distribute.Server(cluster, job_name=job, task_index=0, protocol="grpc").join()


@inside
def test_worker_of_parameter_servers_fetches_the_same(tmp_path: Path) -> None:
    """The pipeline runs in the worker's process, which has opened no data itself."""
    cluster = {job: [f"localhost:{free_port()}"] for job in ("chief", "ps", "worker")}
    fork = multiprocessing.get_context("fork")
    servers = [fork.Process(target=serve, args=(cluster, job)) for job in ("ps", "worker")]
    for server in servers:
        server.start()
    try:
        images = write_images(tmp_path / "images")
        vectors = write_vectors(tmp_path / "x", json.dumps({"classes": 4}))
        opened = [open_data("digits"), open_data("synthetic")]
        opened += [open_data("images", images), open_data("tfrecord", vectors)]
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer="grpc"
        )
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        for found in opened:
            check_worker(coordinator, found.train.fetch)
    finally:
        for server in servers:
            server.kill()


def check_worker(coordinator: Any, fetch: Callable[[Any], Any]) -> None:
    """Check that a worker fetches the same three examples as this process."""

    def pipeline() -> Any:
        return tf.data.Dataset.range(3).batch(3).map(fetch).repeat()

    iterator = iter(coordinator.create_per_worker_dataset(pipeline))
    # Its function is different for each data set.
    features, labels = coordinator.schedule(tf.function(lambda of: next(of)), (iterator,)).fetch()
    own_features, own_labels = fetch(tf.range(3, dtype=tf.int64))
    assert (features == own_features.numpy()).all()
    assert (labels == own_labels.numpy()).all()


class Features(dict[str, Any]):
    """The package's description and reader of an example."""

    def deserialize_example(self, record: Any) -> dict[str, Any]:
        kinds = {"image": tf.string, "label": tf.int64}
        specs = {name: tf.io.FixedLenFeature([], kind) for name, kind in kinds.items()}
        parsed = tf.io.parse_single_example(record, specs)
        image = tf.io.decode_image(parsed["image"], channels=3, expand_animations=False)
        return {"image": image, "label": parsed["label"]}


def install_package(folder: Path) -> None:
    """Install a fake of tensorflow_datasets that reads TFRecord files written here."""
    splits = {}
    for part, count in (("train", 7), ("validation", 4)):
        paths = [folder / f"own-{part}.tfrecord-{shard}-of-2" for shard in range(2)]
        for shard, path in enumerate(paths):
            numbers = range(shard, count, 2)
            write(path, [example(n % 3, image=png((n, n, n), 4, 4 + n % 2)) for n in numbers])
        splits[part] = types.SimpleNamespace(filepaths=[str(path) for path in paths])
    info = types.SimpleNamespace(
        supervised_keys=("image", "label"),
        file_format=types.SimpleNamespace(value="tfrecord"),
        splits=splits,
        features=Features(
            image=types.SimpleNamespace(shape=(None, None, 3)),
            label=types.SimpleNamespace(num_classes=3),
        ),
    )

    def builder(name: str, data_dir: str) -> Any:
        if name == "unknown":
            raise ValueError("Dataset unknown not found.\nDid you mean ...")
        return types.SimpleNamespace(info=info, is_prepared=lambda: name == "own")

    sys.modules["tensorflow_datasets"] = types.SimpleNamespace(builder=builder)  # type: ignore[assignment]


@inside
def test_prepared_data_sets_of_the_package_are_read_by_number(tmp_path: Path) -> None:
    missing = refusal("tfds:mnist", tmp_path)
    assert "tensorflow_datasets cannot be imported" in missing
    assert "tensorflow_extra_requirements" in missing
    install_package(tmp_path / "own")
    own = open_data("tfds:own", tmp_path, image_size=0)
    assert about(own) == ([7, 4], [4, 4, 3], 3)
    # The first file has 0, 2, 4 and 6. The second has the others, with a different height.
    images, labels = fetch(own.train, 0, 1, 6)
    assert labels.tolist() == [0, 2, 2]
    assert fetch(own.test, 3)[1].tolist() == [0]
    assert images[:, 3, 3, 0] == pytest.approx(np.array([0, 2, 5]) / 255)
    assert refusal("tfds:unknown", tmp_path) == (
        f"tfds:unknown in {tmp_path} cannot be opened: Dataset unknown not found."
    )
    unprepared = refusal("tfds:later", tmp_path)
    assert f" is not prepared in {tmp_path}: run `tfds build later" in unprepared
