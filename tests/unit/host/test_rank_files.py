"""Paths on a host, as a user writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from train.host import rank_files


@pytest.mark.parametrize(
    ("path", "expanded"),
    [
        ("~/train", "/home/anna/train"),
        ("$DATA/train", "/data/train"),
        ("${DATA}/../x/", "/x"),
        ("$UNKNOWN/train", "{here}/$UNKNOWN/train"),
        ("train", "{here}/train"),
        ("/a/./b//c", "/a/b/c"),
    ],
)
def test_a_path_is_made_absolute(
    path: str, expanded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/anna")
    monkeypatch.setenv("DATA", "/data")
    monkeypatch.delenv("UNKNOWN", raising=False)
    assert rank_files.expand(path) == expanded.format(here=tmp_path)
