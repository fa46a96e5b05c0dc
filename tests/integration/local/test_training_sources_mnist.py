"""The training program's data: MNIST's and Fashion-MNIST's files, and how they are fetched."""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.lab import free_port
from tests.support.training_sources import look, write_mnist

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")


# ---------------------------------------------------------------------------------- IDX files


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
