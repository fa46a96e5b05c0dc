"""The training program's data that lie in memory: by name, published files, arrays; downloads."""

from __future__ import annotations

import gzip
import hashlib
import io
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.lab import free_port
from tests.support.training_sources import TRAIN, look, run_python, write_mnist

# ---------------------------------------------------------------------------------- names

WITHOUT = """
import sys
for name in ("tensorflow", "numpy"):
    sys.modules[name] = None  # importing it fails
from pathlib import Path
from training import data
name, folder, download = sys.argv[1:]
try:
    data.check_data(name, Path(folder) if folder else None, download=download == "yes")
except data.DataError as error:
    print(error)
"""


def check_data(name: str, folder: str, download: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, name, folder, download],
        cwd=TRAIN,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("name", "folder", "download", "error"),
    [
        ("digits", "", "no", ""),
        ("synthetic", "", "no", ""),
        ("fashion-mnist", "", "no", ""),
        ("mnist", "somewhere", "yes", ""),
        ("mnits", "", "no", "'mnits' are not known; there are digits, mnist"),
        ("images", "", "no", "images: --data-dir must name the folder"),
        ("fashion-mnist", "", "yes", "--data-dir must name the folder"),
        ("npz", "x", "yes", "--download fetches mnist, fashion-mnist, cifar10, not npz"),
    ],
)
def test_names_are_checked_without_tensorflow_and_numpy(
    name: str, folder: str, download: str, error: str
) -> None:
    said = check_data(name, folder, download)
    assert error in said
    assert bool(error) == bool(said)


# ---------------------------------------------------------------------------------- no files


@pytest.mark.tensorflow
def test_digits_keep_every_fifth_for_the_test(tf_python: str) -> None:
    code = """
from sklearn.datasets import load_digits
found, own = open_one("digits"), load_digits()
train, test = fetched(found.train, range(1437)), fetched(found.test, range(360))
print(json.dumps({
    **describe(found),
    "types": train["types"],
    "labels": test["labels"] == own.target[::5].tolist(),
    "images": test["features"] == (own.images[::5] / 16).reshape(-1, 8, 8, 1).tolist(),
    "rest": train["labels"] == [int(t) for i, t in enumerate(own.target) if i % 5],
}))
"""
    found = run_python(tf_python, code)
    assert found["sizes"] == [1437, 360]
    assert (found["shape"], found["classes"]) == ([8, 8, 1], 10)
    assert found["types"] == ["float32", "int64"]
    assert found["labels"]
    assert found["images"]
    assert found["rest"]


@pytest.mark.tensorflow
def test_synthetic_images_follow_from_seed_and_number_and_can_be_learned(tf_python: str) -> None:
    code = """
import hashlib
import numpy as np
found, again, other = (open_one("synthetic", seed=seed, examples=2000) for seed in (3, 3, 4))
def get(split, indices):
    got = fetched(split, indices)
    return np.array(got["features"], np.float32), np.array(got["labels"])
x, y = get(found.train, range(2000))
few, _ = get(again.train, [1999, 7])
tests, answers = get(found.test, range(400))
means = np.stack([x[y == kind].mean(axis=0) for kind in range(10)])
guess = ((tests[:, None] - means) ** 2).sum(axis=(2, 3, 4)).argmin(axis=1)
print(json.dumps({
    **describe(found),
    "range": [float(x.min()), float(x.max())],
    "counts": np.bincount(y, minlength=10).tolist(),
    "same": bool((few == x[[1999, 7]]).all()),
    "again": again.fingerprint == found.fingerprint,
    "other": other.fingerprint != found.fingerprint,
    "different": float((get(other.train, [7])[0] == few[1]).mean()),
    "seen": max(float((image == x).all(axis=(1, 2, 3)).any()) for image in tests[:20]),
    "accuracy": float((guess == answers).mean()),
    "hash": hashlib.sha256((x[:50] * 255).round().astype(np.uint8).tobytes()).hexdigest(),
}))
"""
    found = run_python(tf_python, code)
    assert found["sizes"] == [2000, 400]
    assert (found["shape"], found["classes"]) == ([32, 32, 3], 10)
    low, high = found["range"]
    assert 0 <= low < 0.05
    assert 0.95 < high <= 1
    assert min(found["counts"]) > 150
    assert found["same"]
    assert found["again"]
    assert found["other"]
    assert found["different"] < 0.1
    assert found["seen"] == 0
    assert found["accuracy"] > 0.99
    # The same on every machine and with every version, or VERSION must change.
    assert found["hash"] == "c8eca02485af2dc26398f99a280a79186e4360ea1ace4f34f548483c5d492157"


@pytest.mark.tensorflow
def test_opening_data_runs_no_tensorflow_operation(tf_python: str, tmp_path: Path) -> None:
    write_mnist(tmp_path)
    code = f"""
import tensorflow as tf
for name in ("digits", "synthetic", "mnist"):
    open_one(name, {str(tmp_path)!r})
# Refused as soon as there has been an operation.
tf.config.threading.set_inter_op_parallelism_threads(1)
print(json.dumps("fine"))
"""
    assert run_python(tf_python, code) == "fine"


# ---------------------------------------------------------------------------------- IDX files

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")


@pytest.mark.tensorflow
def test_idx_files_are_read_packed_and_unpacked(tf_python: str, tmp_path: Path) -> None:
    write_mnist(tmp_path / "packed")
    write_mnist(tmp_path / "plain", packed=False)
    fetch = {"train": [5, 0], "test": [2]}
    packed, plain = look(
        tf_python,
        {"name": "mnist", "folder": tmp_path / "packed", "fetch": fetch},
        {"name": "mnist", "folder": tmp_path / "plain"},
    )
    assert packed["sizes"] == [6, 3]
    assert (packed["shape"], packed["classes"]) == ([28, 28, 1], 10)
    assert packed["train"]["types"] == ["float32", "int64"]
    assert packed["train"]["labels"] == [5, 0]
    assert packed["train"]["features"][0][27][27] == [pytest.approx(200 / 255)]
    assert packed["train"]["features"][1][0][0] == [0]
    assert packed["test"]["labels"] == [2]
    assert plain["fingerprint"] == packed["fingerprint"]


@pytest.mark.tensorflow
@pytest.mark.skipif(
    not FASHION_MNIST.is_dir(), reason="Debian's package dataset-fashion-mnist is not installed"
)
def test_real_fashion_mnist_of_debians_package(tf_python: str, tmp_path: Path) -> None:
    for packed in FASHION_MNIST.glob("*.gz"):
        (tmp_path / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    package, own, wrong = look(
        tf_python,
        {"name": "fashion-mnist", "folder": "nowhere", "fetch": {"train": [*range(10)]}},
        {"name": "fashion-mnist", "folder": tmp_path},
        {"name": "mnist", "folder": tmp_path},
    )
    assert package["sizes"] == [60000, 10000]
    assert package["train"]["labels"] == [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]
    assert own["fingerprint"] == package["fingerprint"]
    assert wrong["error"] == (
        f"{tmp_path}/t10k-labels-idx1-ubyte belongs to fashion-mnist, not to mnist: "
        "give another folder"
    )


@pytest.mark.tensorflow
def test_missing_files_say_where_and_how_to_get_them(tf_python: str, tmp_path: Path) -> None:
    patch = f"""
from training.data import published
published.DEBIAN_FOLDERS = {{"fashion-mnist": Path({str(tmp_path / "package")!r})}}
"""
    some = tmp_path / "some"
    write_mnist(some)
    (some / "t10k-images-idx3-ubyte.gz").unlink()
    fashion, mnist, part = look(
        tf_python,
        {"name": "fashion-mnist", "folder": tmp_path / "own"},
        {"name": "mnist", "folder": tmp_path / "own"},
        {"name": "mnist", "folder": some},
        patch=patch,
    )
    assert (
        f"not in {tmp_path}/own nor in {tmp_path}/package; install Debian's package"
        in (fashion["error"])
    )
    assert "dataset-fashion-mnist, or bring them from http" in fashion["error"]
    assert f"not in {tmp_path}/own; bring them from https://" in mnist["error"]
    assert mnist["error"].endswith("or add --download")
    assert part["error"] == f"mnist: {some} lacks t10k-images-idx3-ubyte (or .gz of it)"


def damaged_mnist(folder: Path, name: str, content: bytes) -> Path:
    write_mnist(folder)
    (folder / name).write_bytes(content)
    return folder


@pytest.mark.tensorflow
def test_damaged_idx_files_are_named(tf_python: str, tmp_path: Path) -> None:
    images, labels = "train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"
    write_mnist(tmp_path / "whole")
    packed = (tmp_path / "whole" / images).read_bytes()
    plain = gzip.decompress(packed)
    cases = [
        (images, packed[:-20], "damaged, cut short or of another kind"),
        (images, b"<html>not found</html>", "damaged, cut short or of another kind"),
        (images, gzip.compress(plain[:-1]), "4703 bytes of data, but 6 x 28 x 28 are announced"),
        (images, gzip.compress(plain + b"x"), "4705 bytes of data, but 6 x 28 x 28"),
        (labels, gzip.compress(plain), "no IDX file of bytes with 1 axes; it begins with 00 00 08"),
        (labels, gzip.compress(b"\0\0\x08\x01\0\0\0\2\1\2"), "3 images, but 2 labels"),
        (labels, gzip.compress(b"\0\0\x08\x01\0\0\0\3\1\2\x0a"), "label 10 is none of"),
    ]
    found = look(
        tf_python,
        *(
            {"name": "mnist", "folder": damaged_mnist(tmp_path / str(number), name, content)}
            for number, (name, content, _) in enumerate(cases)
        ),
    )
    for number, (name, _, error) in enumerate(cases):
        assert error in found[number]["error"]
        if "label" not in error:
            assert f"{tmp_path}/{number}/{name}" in found[number]["error"]


# ---------------------------------------------------------------------------------- download


@dataclass
class Server:
    """A web server of a folder; ``asked`` is what it was asked for."""

    folder: Path
    address: str
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "published"
    folder.mkdir()
    port = free_port()
    known = Server(folder, f"http://127.0.0.1:{port}/")

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(folder))  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None:
            known.asked.append(self.path)

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield known
        listening.shutdown()


def published(server: Server, name: str, hashes: dict[str, str] | None = None) -> str:
    """Return the code that has ``name`` published on the server, with the hashes of its files."""
    real = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in server.folder.iterdir()
    }
    return f"""
import os
from training.data import published
for variable in ("http_proxy", "HTTP_PROXY"):
    os.environ.pop(variable, None)
hashes = {real | (hashes or {})!r}
published.PUBLISHED[{name!r}] = [
    published.Published(known.file, {server.address!r}, hashes.get(known.file, ""))
    for known in published.PUBLISHED[{name!r}]
]
"""


@pytest.mark.tensorflow
def test_download_fetches_what_is_missing_and_only_if_asked(
    tf_python: str, tmp_path: Path, server: Server
) -> None:
    write_mnist(server.folder)
    own = tmp_path / "own" / "folder"
    wanted = {"name": "mnist", "folder": own}
    patch = published(server, "mnist")
    (refused,) = look(tf_python, wanted, patch=patch)
    assert "add --download" in refused["error"]
    assert (server.asked, own.exists()) == ([], False)

    (found,) = look(tf_python, {**wanted, "download": True}, patch=patch)
    assert found["sizes"] == [6, 3]
    assert {path.name: path.read_bytes() for path in own.iterdir()} == {
        path.name: path.read_bytes() for path in server.folder.iterdir()
    }
    assert len(server.asked) == 4

    (own / "t10k-labels-idx1-ubyte.gz").unlink()
    look(tf_python, {**wanted, "download": True}, {**wanted, "download": True}, patch=patch)
    assert server.asked[4:] == ["/t10k-labels-idx1-ubyte.gz"]


@pytest.mark.tensorflow
def test_download_keeps_nothing_but_the_published_file(
    tf_python: str, tmp_path: Path, server: Server
) -> None:
    write_mnist(server.folder)
    name = "train-images-idx3-ubyte.gz"
    wanted = {"name": "mnist", "folder": tmp_path / "own", "download": True}
    (other,) = look(tf_python, wanted, patch=published(server, "mnist", {name: "0" * 64}))
    assert f"{server.address}{name} gave something else than the published file" in other["error"]
    assert list((tmp_path / "own").iterdir()) == []

    (server.folder / name).unlink()
    (missing,) = look(tf_python, wanted, patch=published(server, "mnist"))
    assert f"{server.address}{name} cannot be fetched: " in missing["error"]
    assert "404" in missing["error"]

    server.address = f"http://127.0.0.1:{free_port()}/"
    (refused,) = look(tf_python, wanted, patch=published(server, "mnist"))
    assert "cannot be fetched: " in refused["error"]
    assert "refused" in refused["error"]
    assert list((tmp_path / "own").iterdir()) == []


# ---------------------------------------------------------------------------------- CIFAR-10, npz


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
