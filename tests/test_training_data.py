"""The role ``training_data``: what is copied, verified, put in place, refused and removed."""

from __future__ import annotations

import gzip
import hashlib
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.training_data_role import Make, content, data, filters, sha256

pytest_plugins = ("tests.training_data_role",)
ENTRY = {"name": "data", "src": "source"}


def test_a_folder_comes_once_and_then_what_differs(make: Make, source: Path) -> None:
    checked = make(ENTRY, check_mode=True)
    assert checked.act()["changed"]
    assert not checked.root.exists()
    first = make(ENTRY)
    result = first.act()
    assert (result["changed"], result["paths"]) == (True, {"data": str(first.root / "data")})
    assert content(first.root / "data") == content(source)
    assert os.listdir(first.root / ".training_data") == ["data.json"]
    second = make(ENTRY)
    assert (second.act()["changed"], second.sent) == (False, [])

    place = first.root / "data"
    (place / "cache").mkdir()
    (place / "cache" / "own.tfrecord").write_text("of the user")
    kept = (place / "large").stat().st_ino
    (source / "sub" / "1 ä.bin").write_bytes(os.urandom(50))
    (source / "sub" / "2 ä.bin").unlink()
    (source / "new").write_bytes(b"new")
    third = make(ENTRY)
    third.act()
    assert sorted(third.sent) == ["new", "sub/1 ä.bin"]
    assert content(place) == {**content(source), "cache/own.tfrecord": b"of the user"}
    assert (place / "large").stat().st_ino == kept
    assert make(ENTRY).act()["changed"] is False


def test_damage_is_fixed(make: Make, source: Path) -> None:
    first = make(ENTRY)
    first.act()
    large = first.root / "data" / "large"
    large.unlink()
    again = make(ENTRY)
    again.act()
    assert again.sent == ["large"]
    before = large.stat()
    large.write_bytes(b"x" * 9000)
    os.utime(large, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert make(ENTRY).act()["changed"] is False
    verified = make(ENTRY, verify=True)
    verified.act()
    assert verified.sent == ["large"]
    assert content(first.root / "data") == content(source)


class BrokenError(Exception):
    """The run broke."""


def test_a_break_while_it_is_copied(make: Make, source: Path) -> None:
    broken = make(ENTRY)

    def dying(entry: dict[str, Any], staging: Path) -> None:
        (staging / "large").write_bytes((source / "large").read_bytes())
        raise BrokenError

    broken.copy = dying  # type: ignore[method-assign]
    with pytest.raises(BrokenError):
        broken.act()
    assert not (broken.root / "data").exists()
    again = make(ENTRY)
    again.act()
    assert "large" not in again.sent
    assert content(again.root / "data") == content(source)


@pytest.mark.parametrize("step", range(3))
def test_a_break_while_data_are_put_in_place(
    step: int, make: Make, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The three moments: before, between and after the two renames."""
    make(ENTRY).act()
    (source / "large").write_bytes(os.urandom(9000))
    place = source.parent / "host" / "data"
    (place / "own").write_text("of the user")
    rename, replace, count = os.rename, os.replace, iter(range(100))

    def dying(move: Any) -> Any:
        def moving(source: str, target: str) -> None:
            if str(target).endswith(("/data", "/old", "/data.json")) and next(count) == step:
                raise BrokenError
            move(source, target)

        return moving

    monkeypatch.setattr(os, "rename", dying(rename))
    monkeypatch.setattr(os, "replace", dying(replace))
    with pytest.raises(BrokenError):
        make(ENTRY).act()
    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(os, "replace", replace)
    make(ENTRY).act()
    assert content(place) == {**content(source), "own": b"of the user"}
    assert make(ENTRY).act()["changed"] is False


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"src": "source"}, "name must be"),
        ({"name": "../x", "src": "source"}, "name must be"),
        ({"name": "x"}, "either src"),
        ({"name": "x", "src": "source", "mounted": "/mnt"}, "either src"),
        ({"name": "x", "src": "https://example.org/a.tgz"}, "an address needs sha256"),
        ({"name": "x", "src": "source", "dest": "../y"}, "below training_data_root"),
        ({"name": "x", "src": "source", "dest": "/y"}, "below training_data_root"),
        ({"name": "x", "src": "source", "sha256": "abc"}, "64 hexadecimal"),
        ({"name": "x", "src": "source", "dataset": "imagenet"}, "fashion-mnist"),
        ({"name": "x", "src": "source", "unpack": True}, "unpack is for one file"),
        ({"name": "x", "mounted": "mnt"}, "absolute path"),
        ({"name": "x", "src": "nowhere"}, "is not there"),
        ({"name": "x", "src": "source/large"}, "needs sha256"),
        ({"name": "x", "src": "source", "dest": "good/y"}, "in the folder of good"),
        ({"name": "good", "src": "source", "dest": "y"}, "two entries"),
    ],
)
def test_bad_input_is_refused(entry: dict[str, Any], words: str, make: Make, source: Path) -> None:
    action = make({"name": "good", "src": "source"}, entry)
    assert words in action.act()["msg"]
    assert not action.root.exists(), "a bad entry stops before the good one comes"


def test_odd_files_in_a_folder(make: Make, source: Path) -> None:
    (source / "sub" / "up").symlink_to("..")
    assert "that it is in" in make(ENTRY).act()["msg"]
    (source / "sub" / "up").unlink()
    (source / "dead").symlink_to("nowhere")
    assert "dead is no file" in make(ENTRY).act()["msg"]


def test_data_of_others_are_not_replaced(make: Make, source: Path) -> None:
    action = make(ENTRY)
    (action.root / "data").mkdir(parents=True)
    (action.root / "data" / "precious").write_text("mine")
    message = action.act()["msg"]
    assert "precious" in message
    assert "Move it away" in message
    assert action.sent == []
    # Without it, files that are there already are not copied.
    (action.root / "data" / "precious").unlink()
    (action.root / "data" / "large").write_bytes((source / "large").read_bytes())
    again = make(ENTRY)
    again.act()
    assert "large" not in again.sent


def test_too_little_space(make: Make, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=100, f_frsize=1))
    for check_mode in (True, False):
        action = make(ENTRY, check_mode=check_mode)
        assert "Too little space for data" in action.act()["msg"]
        assert not action.root.exists()


def test_a_file_with_another_hash_is_refused(make: Make, source: Path) -> None:
    action = make({"name": "data", "src": "source/large", "sha256": "0" * 64})
    message = action.act()["msg"]
    assert f"has SHA-256 {sha256(source / 'large')}, expected {'0' * 64}" in message
    assert not (action.root / "data").exists()
    assert content(action.root / ".training_data/data/tree") == {}


def test_a_known_data_set(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "idx"
    folder.mkdir()
    files = {}
    for name, text in (("images.gz", b"images" * 300), ("labels.gz", b"labels")):
        (folder / name).write_bytes(gzip.compress(text, mtime=1))
        known = hashlib.sha256(text).hexdigest()
        files[name] = {"sha256": sha256(folder / name), "content": known}
    monkeypatch.setitem(filters.DATASETS, "tiny", files)
    (folder / "README").write_text("is not copied")
    entry = {"name": "tiny", "src": "idx", "dataset": "tiny"}
    action = make(entry)
    action.act()
    assert sorted(content(action.root / "tiny")) == ["images.gz", "labels.gz"]
    # The same data, compressed again, as distributions do.
    packed = folder / "images.gz"
    packed.write_bytes(gzip.compress(gzip.decompress(packed.read_bytes()), 1, mtime=2))
    assert not make(entry).act()["changed"]
    (action.root / "tiny" / "images.gz").unlink()
    make(entry).act()
    assert content(action.root / "tiny")["images.gz"] == packed.read_bytes()

    (folder / "labels.gz").write_bytes(gzip.compress(b"others", mtime=1))
    (action.root / "tiny" / "labels.gz").unlink()
    message = make(entry).act()["msg"]
    for words in ("labels.gz", files["labels.gz"]["sha256"], files["labels.gz"]["content"]):
        assert words in message
    assert "it is not the published file of tiny" in message
    (folder / "labels.gz").unlink()
    assert "labels.gz is not there" in make(entry).act()["msg"]


def test_the_hash_of_a_folder_is_that_of_sha256sum(make: Make, source: Path) -> None:
    recipe = (
        "find -L . -type f -printf '%P\\n' | LC_ALL=C sort | xargs -d '\\n' sha256sum | sha256sum"
    )
    done = subprocess.run(["sh", "-c", recipe], cwd=source, capture_output=True, check=True)
    digest = done.stdout.decode().split()[0]
    entry = {**ENTRY, "sha256": digest}
    assert make(entry).act()["changed"]
    (source / "large").write_bytes(b"another")
    assert not make(entry).act()["changed"]  # the hosts have what was asked for
    (source.parent / "host" / "data" / "large").unlink()
    assert f"expected {digest}" in make(entry).act()["msg"]


def test_mounted_data(make: Make, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"name": "data", "mounted": str(source)}
    assert "nothing is mounted" in make(entry).act()["msg"]
    assert not make(entry, check_mode=True).act()["changed"]
    monkeypatch.setattr(data, "mount_point_of", lambda _: str(source.parent))
    result = make(entry).act()
    assert (result["changed"], result["paths"]) == (False, {"data": str(source)})
    assert "expected 000000" in make({**entry, "sha256": "0" * 64}).act()["msg"]
    hashes = {path: hashlib.sha256(read).hexdigest() for path, read in content(source).items()}
    known = {**entry, "sha256": data.tree_hash(hashes)}
    assert "msg" not in make(known).act()
    monkeypatch.setattr(data, "tree_hash", lambda *_: pytest.fail("read again"))
    assert "msg" not in make(known).act()


def test_mount_points(tmp_path: Path) -> None:
    table = tmp_path / "mounts"
    table.write_text(f"/dev/vda / ext4 rw 0 0\nnas:/x {tmp_path} nfs4 rw 0 0\n")
    assert data.mount_point_of(str(tmp_path / "a" / "b"), str(table)) == str(tmp_path)
    assert data.mount_point_of(str(tmp_path) + "b", str(table)) == "/"


def test_removal_leaves_what_is_of_others(make: Make, source: Path) -> None:
    make({"name": "one", "src": "source"}, {"name": "two", "src": "source", "dest": "a/b"}).act()
    root = source.parent / "host"
    (root / "one" / "sub" / "own").write_text("of the user")
    assert make(check_mode=True).run("absent")["changed"]
    assert (root / "one" / "large").exists()
    removed = make().run("absent")
    assert (removed["changed"], removed["left"]) == (True, [str(root / "one")])
    assert content(root) == {"one/sub/own": b"of the user"}
    assert not make().run("absent")["changed"]
