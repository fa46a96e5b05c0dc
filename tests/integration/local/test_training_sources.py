"""The training program's data that lie in memory: by name, published files, arrays; downloads."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.data_folders import DIGITS
from tests.support.lab import free_port
from tests.support.training_script import inside, modules, np, tf
from tests.support.training_sources import about, data, fetch, open_data, refusal, write_mnist

arrays, published = modules("training.data.arrays", "training.data.published")


@inside
def test_digits_keep_every_fifth_for_the_test() -> None:
    found, table = open_data("digits"), np.loadtxt(DIGITS, delimiter=",")
    own, targets = table[:, :-1].reshape(-1, 8, 8, 1), table[:, -1]
    # As the data set's authors publish it.
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
    # The same on every machine and with every version, or VERSION must change.
    first = (images[:50] * 255).round().astype(np.uint8).tobytes()
    assert hashlib.sha256(first).hexdigest() == (
        "c8eca02485af2dc26398f99a280a79186e4360ea1ace4f34f548483c5d492157"
    )


@inside
def test_opening_data_runs_no_tensorflow_operation(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    for name in ("digits", "synthetic", "mnist"):
        open_data(name, tmp_path)
    # Refused as soon as there has been an operation.
    tf.config.threading.set_inter_op_parallelism_threads(1)


FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")


@inside
def test_idx_files_are_read_packed_and_unpacked(tmp_path: Path) -> None:
    write_mnist(tmp_path / "packed")
    write_mnist(tmp_path / "plain", packed=False)
    packed, plain = (open_data("mnist", tmp_path / name) for name in ("packed", "plain"))
    assert about(packed) == ([6, 3], [28, 28, 1], 10)
    images, labels = fetch(packed.train, 5, 0)
    assert (images.dtype, labels.dtype, labels.tolist()) == (np.float32, np.int64, [5, 0])
    assert images[0, 27, 27] == pytest.approx(200 / 255)
    assert images[1, 0, 0] == 0
    assert fetch(packed.test, 2)[1] == 2
    assert plain.fingerprint == packed.fingerprint


@pytest.mark.skipif(
    not FASHION_MNIST.is_dir(), reason="Debian's package dataset-fashion-mnist is not installed"
)
@inside
def test_real_fashion_mnist_of_debians_package(tmp_path: Path) -> None:
    for packed in FASHION_MNIST.glob("*.gz"):
        (tmp_path / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    package = open_data("fashion-mnist", Path("nowhere"))
    assert about(package)[0] == [60000, 10000]
    assert fetch(package.train, *range(10))[1].tolist() == [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]
    assert open_data("fashion-mnist", tmp_path).fingerprint == package.fingerprint
    assert refusal("mnist", tmp_path) == (
        f"{tmp_path}/t10k-labels-idx1-ubyte belongs to fashion-mnist, not to mnist: "
        "give another folder"
    )


@inside
def test_missing_files_say_where_and_how_to_get_them(tmp_path: Path) -> None:
    own, package = tmp_path / "own", tmp_path / "package"
    published.DEBIAN_FOLDERS["fashion-mnist"] = package
    fashion, mnist = refusal("fashion-mnist", own), refusal("mnist", own)
    assert f"not in {own} nor in {package}; install Debian's package" in fashion
    assert "dataset-fashion-mnist, or bring them from http" in fashion
    assert f"not in {own}; bring them from https://" in mnist
    assert mnist.endswith("or add --download")
    write_mnist(own)
    (own / "t10k-images-idx3-ubyte.gz").unlink()
    assert refusal("mnist", own) == f"mnist: {own} lacks t10k-images-idx3-ubyte (or .gz of it)"


@inside
def test_damaged_idx_files_are_named(tmp_path: Path) -> None:
    images, labels = "train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"
    write_mnist(tmp_path)
    whole = (tmp_path / images).read_bytes()
    plain = gzip.decompress(whole)
    cases = [
        (images, whole[:-20], "damaged, cut short or of another kind"),
        (images, b"<html>not found</html>", "damaged, cut short or of another kind"),
        (images, gzip.compress(plain[:-1]), "4703 bytes of data, but 6 x 28 x 28 are announced"),
        (images, gzip.compress(plain + b"x"), "4705 bytes of data, but 6 x 28 x 28"),
        (labels, gzip.compress(plain), "no IDX file of bytes with 1 axes; it begins with 00 00 08"),
        (labels, gzip.compress(b"\0\0\x08\x01\0\0\0\2\1\2"), "3 images, but 2 labels"),
        (labels, gzip.compress(b"\0\0\x08\x01\0\0\0\3\1\2\x0a"), "label 10 is none of"),
    ]
    for name, content, error in cases:
        write_mnist(tmp_path)
        (tmp_path / name).write_bytes(content)
        found = refusal("mnist", tmp_path)
        assert error in found
        assert "label" in error or f"{tmp_path}/{name}" in found


class Handler(SimpleHTTPRequestHandler):
    """Serves files, and keeps what it was asked for."""

    asked: list[str] = []

    def log_message(self, *_: object) -> None:
        self.asked.append(self.path)


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve a folder's files at the address that is yielded, as the program's source of MNIST."""
    for variable in ("http_proxy", "HTTP_PROXY"):
        os.environ.pop(variable, None)
    write_mnist(folder)
    handler = partial(Handler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{listening.server_port}/"
        hashes = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}
        publish(address, hashes)
        yield address
        listening.shutdown()


def publish(address: str, hashes: dict[str, str]) -> None:
    """Have MNIST published at an address."""
    files = [known.file for known in published.PUBLISHED["mnist"]]
    made = [published.Published(file, address, hashes.get(file, "")) for file in files]
    published.PUBLISHED["mnist"] = made


@inside
def test_download_fetches_what_is_missing_and_only_if_asked(tmp_path: Path) -> None:
    there, own = tmp_path / "there", tmp_path / "own/folder"
    with serving(there):
        assert "add --download" in refusal("mnist", own)
        assert (Handler.asked, own.exists()) == ([], False)
        assert about(open_data("mnist", own, download=True))[0] == [6, 3]
        for path in there.iterdir():
            assert (own / path.name).read_bytes() == path.read_bytes()
        assert len(list(own.iterdir())) == len(Handler.asked) == 4

        (own / "t10k-labels-idx1-ubyte.gz").unlink()
        for _ in range(2):
            open_data("mnist", own, download=True)
        assert Handler.asked[4:] == ["/t10k-labels-idx1-ubyte.gz"]


@inside
def test_download_keeps_nothing_but_the_published_file(tmp_path: Path) -> None:
    there, own, name = tmp_path / "there", tmp_path / "own", "train-images-idx3-ubyte.gz"
    with serving(there) as address:
        content = (there / name).read_bytes()
        (there / name).write_bytes(b"something else")
        other = refusal("mnist", own, download=True)
        assert f"{address}{name} gave something else than the published file" in other
        assert list(own.iterdir()) == []

        (there / name).unlink()
        missing = refusal("mnist", own, download=True)
        assert f"{address}{name} cannot be fetched: " in missing
        assert "404" in missing
    publish(f"http://127.0.0.1:{free_port()}/", {name: hashlib.sha256(content).hexdigest()})
    refused = refusal("mnist", own, download=True)
    assert "cannot be fetched: " in refused
    assert "refused" in refused
    assert list(own.iterdir()) == []


BATCHES = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]


def binary_batch(*labels: int) -> bytes:
    """Return images whose red is all of their label, whose green is 100, and whose blue 255."""
    colours = ((label, 100, 255) for label in labels)
    images = (b"".join(bytes([value]) * 1024 for value in colour) for colour in colours)
    return b"".join(bytes([label]) + image for label, image in zip(labels, images, strict=True))


#: The six batches of a small CIFAR-10: two examples in each.
BINARY = {name: binary_batch(number, 9 - number) for number, name in enumerate(BATCHES)}
ARCHIVE = "cifar-10-binary.tar.gz"


def write_folder(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def write_archive(folder: Path) -> Path:
    folder.mkdir()
    with tarfile.open(folder / ARCHIVE, "w:gz") as archive:
        for name, content in {**BINARY, "readme.html": b"hello"}.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return folder / ARCHIVE


@inside
def test_cifar10_is_the_same_in_all_its_forms(tmp_path: Path) -> None:
    write_folder(tmp_path / "a/cifar-10-batches-bin", BINARY)
    plain, archive = write_folder(tmp_path / "b", BINARY), write_archive(tmp_path / "c")
    prints = set()
    for path in (tmp_path / "a", plain, archive.parent):
        found = open_data("cifar10", path)
        assert about(found) == ([10, 2], [32, 32, 3], 10)
        images, labels = fetch(found.train, 2)
        assert images[0, 31, 0] == pytest.approx(np.array([1, 100, 255]) / 255)
        assert labels == 1
        assert fetch(found.test, 0, 1)[1].tolist() == [5, 4]
        prints.add(found.fingerprint)
    assert len(prints) == 1


@inside
def test_cifar10_is_fetched_if_asked(tmp_path: Path) -> None:
    archive, own = write_archive(tmp_path / "there"), tmp_path / "own"
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    there = published.Published(ARCHIVE, f"file://{archive.parent}/", sha256)
    published.PUBLISHED["cifar-10-binary"] = [there]
    assert "or add --download" in refusal("cifar10", own)
    assert about(open_data("cifar10", own, download=True))[0] == [10, 2]
    assert [path.name for path in own.iterdir()] == [ARCHIVE]


@inside
def test_damaged_cifar10_files_are_named(tmp_path: Path) -> None:
    packed = write_archive(tmp_path / "a")
    packed.write_bytes(packed.read_bytes()[:-30])
    one = "data_batch_1.bin"
    write_folder(tmp_path / "b", {one: BINARY[one]})
    write_folder(tmp_path / "c", {**BINARY, one: b"x" * 99})
    write_folder(tmp_path / "d", {**BINARY, one: binary_batch(10)})
    cases = {
        "a": f"{packed}: damaged, cut short",
        "b": "lacks data_batch_2.bin",
        "c": f"{tmp_path}/c/{one}: cut short or damaged: 99 bytes, no multiple of 3073",
        "d": "label 10 is none of the classes 0 to 9",
        "none": f"is in {tmp_path}/none; bring {ARCHIVE} from https://www.cs.toronto.edu",
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
    assert f"{objects}: damaged, cut short or of another kind: Object" in refusal(
        "npz", objects.parent
    )
    assert f"{cut}: damaged, or no archive" in refusal("npz", cut.parent)
    (tmp_path / "e").mkdir()
    assert f"npz: {tmp_path}/e holds 0 .npz files, not one" in refusal("npz", tmp_path / "e")


class Split:
    """Examples that are fetched by a user's own code."""

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
    # What is opened, what it is, and the last example of the training: features and label.
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
        (good, (x, y - 1), "label -1 is none of the classes"),
        ((x * np.nan, y), good, "own.py: train: the features hold NaN or infinity"),
        ((np.array(["a", "b"]), y), good, "the features are of <U1, not numbers"),
        ((x[:, 0], y), good, "features must be [n, ...]; make [n, 1] of [n]"),
        ((x, np.eye(4, dtype=int)), good, "classes must be [n] or [n, 1], not [4, 4]"),
        (x, good, "own.py: train must be a pair (features, labels), a tf.data.Dataset or a Spl"),
        (numbers(6).repeat(), numbers(2), "the dataset is endless or its size unknown: use take()"),
        (numbers(6).batch(4), numbers(2), "are not single examples, all of one shape"),
        (Split(), good, "train and test must both be arrays, or both have size and fetch"),
        (Split("float64"), Split(), "train.fetch gives features of float64"),
    ]
    for train, test, error in cases:
        with pytest.raises(data.DataError) as refused:
            arrays.from_arrays("own.py", train, test)
        assert error in str(refused.value)
        assert "\n" not in str(refused.value)
    with pytest.raises(data.DataError, match="label 2 is none of the classes 0 to 1"):
        arrays.from_arrays("own.py", good, good, classes=2)
