"""The role ``training_data``: the host's filesystems, data that are mounted on it, and removal."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from roles.training_data.module_utils.data_setup.shared import tree_hash
from tests.training_data_role import Make, content, part

pytest_plugins = ("tests.training_data_role",)

mounted = part("mounted")


def test_a_filesystem_is_flushed(tmp_path: Path) -> None:
    part("files").flush(str(tmp_path))


def test_mounted_data(make: Make, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"name": "data", "mounted": str(source)}
    result = make(entry).act()
    assert "nothing is mounted" in result["msg"]
    assert not make(entry, check_mode=True).act()["changed"]
    monkeypatch.setattr(mounted, "mount_point_of", lambda _: str(source.parent))
    result = make(entry).act()
    assert (result["changed"], result["paths"]) == (False, {"data": str(source)})
    result = make({**entry, "sha256": "0" * 64}).act()
    assert "expected 000000" in result["msg"]
    (source / "link").unlink()
    hashes = {path: hashlib.sha256(data).hexdigest() for path, data in content(source).items()}
    known = {**entry, "sha256": tree_hash(hashes)}
    assert "failed" not in make(known).act()
    monkeypatch.setattr(mounted, "verify_mounted", lambda *_: pytest.fail("read again"))
    assert "failed" not in make(known).act()


def test_mount_points(tmp_path: Path) -> None:
    table = tmp_path / "mounts"
    table.write_text(f"/dev/vda / ext4 rw 0 0\nnas:/x {tmp_path} nfs4 rw 0 0\n")
    assert mounted.mount_point_of(str(tmp_path / "a" / "b"), str(table)) == str(tmp_path)
    assert mounted.mount_point_of(str(tmp_path) + "b", str(table)) == "/"


def test_removal_leaves_what_is_of_others(make: Make, source: Path) -> None:
    make({"name": "one", "src": "source"}, {"name": "two", "src": "source", "dest": "a/b"}).act()
    root = source.parent / "host"
    (root / "one" / "sub" / "own").write_text("of the user")
    checked = make(step="remove", check_mode=True).act()
    assert checked["changed"]
    assert (root / "one" / "large").exists()
    removed = make(step="remove").act()
    assert (removed["changed"], removed["left"]) == (True, [str(root / "one")])
    assert content(root) == {"one/sub/own": b"of the user"}
    assert not make(step="remove").act()["changed"]
