"""The role ``training_data``: known data sets, and hashes of what the control node has."""

from __future__ import annotations

import gzip
import hashlib
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail

from roles.training_data.control.datasets import DATASETS, Published
from roles.training_data.control.entries import SHA256
from tests.training_data_role import Make, content, sha256

pytest_plugins = ("tests.training_data_role",)


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A known data set of two files, in the published form."""
    folder = tmp_path / "idx"
    folder.mkdir()
    files = {}
    for name, text in (("images.gz", b"images" * 300), ("labels.gz", b"labels")):
        (folder / name).write_bytes(gzip.compress(text, mtime=1))
        files[name] = Published(sha256(folder / name), hashlib.sha256(text).hexdigest())
    monkeypatch.setitem(DATASETS, "tiny", files)
    return folder


def test_a_known_data_set(make: Make, published: Path) -> None:
    (published / "README").write_text("is not brought")
    entry = {"name": "tiny", "src": "idx", "dataset": "tiny"}
    action = make(entry)
    action.act()
    assert sorted(content(action.root / "tiny")) == ["images.gz", "labels.gz"]
    # The same data, compressed anew, as distributions do.
    packed = published / "images.gz"
    packed.write_bytes(gzip.compress(gzip.decompress(packed.read_bytes()), 1, mtime=2))
    assert not make(entry).act()["changed"]
    (action.root / "tiny" / "images.gz").unlink()
    make(entry).act()
    assert content(action.root / "tiny")["images.gz"] == packed.read_bytes()


def test_a_known_data_set_with_other_content(make: Make, published: Path) -> None:
    wanted = DATASETS["tiny"]["labels.gz"]
    (published / "labels.gz").write_bytes(gzip.compress(b"others", mtime=1))
    with pytest.raises(AnsibleActionFail) as error:
        make({"name": "tiny", "src": "idx", "dataset": "tiny"}).act()
    found = sha256(published / "labels.gz")
    for words in ("labels.gz", found, wanted.sha256, wanted.content, "again"):
        assert words in str(error.value)
    (published / "labels.gz").unlink()
    with pytest.raises(AnsibleActionFail, match=r"labels\.gz is not there"):
        make({"name": "tiny", "src": "idx", "dataset": "tiny"}).act()


def test_published_hashes_are_whole() -> None:
    for files in DATASETS.values():
        for file in files.values():
            for value in filter(None, (file.sha256, file.content)):
                assert SHA256.fullmatch(value)


def test_the_hash_of_a_folder_is_that_of_sha256sum(make: Make, source: Path) -> None:
    recipe = (
        "find -L . -type f -printf '%P\\n' | LC_ALL=C sort | xargs -d '\\n' sha256sum | sha256sum"
    )
    done = subprocess.run(["sh", "-c", recipe], cwd=source, capture_output=True, check=True)
    digest = done.stdout.decode().split()[0]
    entry = {"name": "data", "src": "source", "sha256": digest}
    assert make(entry).act()["changed"]
    assert not make({"name": "data", "src": "source"}).act()["changed"]
    (source / "large").write_bytes(b"another")
    assert not make(entry).act()["changed"]  # the hosts have what was asked for
    (source.parent / "host" / "data" / "large").unlink()
    with pytest.raises(AnsibleActionFail, match=f"expected {digest}"):
        make(entry).act()


def test_sources_are_read_once(make: Make, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    digest = hashlib.file_digest

    def counting(*args: Any) -> Any:
        read.append(args)
        return digest(*args)

    monkeypatch.setattr(hashlib, "file_digest", counting)
    entry = {"name": "data", "src": "source"}
    make(entry).act()
    assert len(read) == 13
    make(entry).act()  # in a later run, unchanged files are known
    assert len(read) == 13
    (source / "large").write_bytes(b"another")
    make(entry).act()
    assert len(read) == 15  # it, and the link to it
