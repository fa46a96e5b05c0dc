"""The role ``training_data``: what it brings is found by ``keras.datasets``."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.training_data_role import Make, filters, sha256

pytest_plugins = ("tests.training_data_role",)

NAMES = ("cifar-10-batches-py-target_archive", "cifar-10-batches-py.tar.gz")
ENTRY = {"name": "cifar", "src": "a.tar.gz", "dataset": "cifar-10-python", "keras": True}


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive in place of CIFAR-10's, and a home folder."""
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz") as packed:
        info = tarfile.TarInfo("cifar-10-batches-py/test_batch")
        info.size = 4
        packed.addfile(info, io.BytesIO(b"data"))
    published = {"cifar-10-python.tar.gz": {"sha256": sha256(path)}}
    monkeypatch.setitem(filters.DATASETS, "cifar-10-python", published)
    return path


def test_links_are_made_kept_and_removed(make: Make, archive: Path, tmp_path: Path) -> None:
    action = make(ENTRY)
    assert action.act()["changed"]
    links = [tmp_path / "user/.keras/datasets" / name for name in NAMES]
    for link in links:
        assert link.read_bytes() == archive.read_bytes()
    assert not make(ENTRY).act()["changed"]
    links[0].unlink()
    links[1].unlink()
    links[1].symlink_to("/nowhere")
    assert make(ENTRY, check_mode=True).act()["changed"]
    assert not links[0].exists()
    assert make(ENTRY).act()["changed"]
    assert links[0].samefile(links[1])
    links[1].unlink()
    links[1].write_text("the user's own")
    make().run("absent")
    assert not links[0].is_symlink()
    assert links[1].read_text() == "the user's own"


def test_a_file_in_the_way_is_kept(make: Make, archive: Path, tmp_path: Path) -> None:
    own = tmp_path / "user/.keras/datasets" / NAMES[1]
    own.parent.mkdir(parents=True)
    own.write_text("half of it")
    result = make(ENTRY).act()
    assert (
        f"{own} is there, and is not the published file of 'cifar': move it away" in result["msg"]
    )
    assert own.read_text() == "half of it"
    own.write_bytes(archive.read_bytes())
    assert "msg" not in make(ENTRY).act()
    assert not own.is_symlink()
    assert not make(ENTRY).act()["changed"]


@pytest.mark.parametrize(
    "changes", [{"unpack": True}, {"dataset": "cifar-10-binary"}, {"dataset": None}]
)
def test_what_keras_cannot_find(make: Make, archive: Path, changes: dict[str, object]) -> None:
    result = make({**ENTRY, **changes, "sha256": "" if changes.get("dataset") else None}).act()
    assert "keras goes without unpack, and with dataset: one" in result["msg"]


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("package", "options"),
    [("keras", "fname='cifar-10-batches-py-target', extract=True"),
     ("tf_keras", "'cifar-10-batches-py', untar=True")],
)  # fmt: skip
def test_keras_downloads_nothing(
    tf_python: str, make: Make, archive: Path, package: str, options: str
) -> None:
    make(ENTRY).act()
    program = f"""
import os, {package}
source = os.path.join(os.path.dirname({package}.__file__), "src/datasets")
text = open(os.path.join(source, "mnist.py")).read()
assert {filters.DATASETS["mnist-npz"]["mnist.npz"]["sha256"]!r} in text
assert 'path="mnist.npz"' in text
text = open(os.path.join(source, "fashion_mnist.py")).read()
assert 'os.path.join("datasets", "fashion-mnist")' in text
for name in {list(filters.KERAS["fashion-mnist"].values())}:
    assert name in text
text = open(os.path.join(source, "cifar10.py")).read()
assert {options.split("'")[1]!r} in text
path = {package}.utils.get_file(
    {options}, origin="http://127.0.0.1:9/a", file_hash={sha256(archive)!r})
print([name for _, _, names in os.walk(path) for name in names])
"""
    done = subprocess.run([tf_python, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "['test_batch']\n", done.stderr
