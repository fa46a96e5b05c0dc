"""The folder for temporary files: its creation and its removal."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from train.host import temporary


@pytest.fixture
def rank_dir() -> Iterator[Path]:
    """Yield a folder with a short path."""
    folder = tempfile.mkdtemp(dir="/tmp")
    yield Path(folder)
    shutil.rmtree(folder)


def test_it_is_created_empty_and_removed_with_all_that_is_in_it(rank_dir: Path) -> None:
    for _ in range(2):
        path = Path(temporary.create(str(rank_dir)))
        assert path.parent == rank_dir
        assert list(path.iterdir()) == []
        assert path.stat().st_mode & 0o777 == 0o700
        (path / "deep").mkdir()
        (path / "deep/file").touch()
    temporary.remove(str(rank_dir))
    assert list(rank_dir.iterdir()) == []


def test_where_a_socket_has_no_room_the_script_does_not_get_it(rank_dir: Path) -> None:
    folder = rank_dir / ("x" * (67 - len(str(rank_dir)) - len("//.tmp")))
    for name, is_usable in ((folder, True), (folder.with_name(folder.name + "x"), False)):
        name.mkdir()
        assert bool(temporary.create(str(name))) is is_usable


def test_where_nothing_may_be_run_the_script_does_not_get_it(
    rank_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_NOEXEC))
    assert temporary.create(str(rank_dir)) == ""


def test_a_link_that_the_script_made_of_it_is_not_followed(rank_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    (rank_dir / temporary.NAME).symlink_to(tmp_path)
    temporary.remove(str(rank_dir))
    assert not (rank_dir / temporary.NAME).is_symlink()
    assert (tmp_path / "precious").exists()
