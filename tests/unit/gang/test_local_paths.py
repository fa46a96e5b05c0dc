"""Paths of this machine, as users type them."""

from __future__ import annotations

from pathlib import Path

import pytest

from train.gang.errors import UserError
from train.gang.local_paths import absolute


def test_a_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/anna")
    assert absolute("a/b") == tmp_path / "a/b"
    assert absolute("~/a") == Path("/home/anna/a")
    assert absolute(Path("/a/../b")) == Path("/a/../b"), "a may be a link"


def test_an_unknown_home_directory_and_a_removed_folder_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"^~nobody-here/a: ~nobody-here is not .* \./~nobody-here"):
        absolute("~nobody-here/a")
    removed = tmp_path / "removed"
    removed.mkdir()
    monkeypatch.chdir(removed)
    removed.rmdir()
    assert absolute("/a") == Path("/a")
    with pytest.raises(UserError, match="the current folder was removed"):
        absolute("a")
