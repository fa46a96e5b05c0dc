"""Files that are replaced in one step, and synced first."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from train.host import (
    json_files,
)


def test_a_file_is_written_whatever_lies_at_names_that_others_can_guess(tmp_path: Path) -> None:
    path, victim = tmp_path / "state.json", tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f"state.json.{os.getpid()}.tmp").symlink_to(victim)
    before = os.umask(0o022)
    try:
        json_files.write_text(str(path), "new", mode=0o640)
    finally:
        os.umask(before)
    assert (path.read_text(), victim.read_text()) == ("new", "precious")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_temporary_file_is_new_and_has_another_name_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, replace = [], os.replace

    def noted(source: str, target: str) -> None:
        names.append(source)
        replace(source, target)

    monkeypatch.setattr(os, "replace", noted)
    for _ in range(2):
        json_files.write_text(str(tmp_path / "a"), "text")
    assert len(set(names)) == 2
    assert all(name.startswith(f"{tmp_path}/a.") and name.endswith(".tmp") for name in names)
    # An existing file of that name is neither followed nor overwritten.
    monkeypatch.setattr(os, "urandom", bytes)
    taken = tmp_path / f"a.{bytes(8).hex()}.tmp"
    taken.write_text("another's")
    with pytest.raises(FileExistsError):
        json_files.write_text(str(tmp_path / "a"), "newer")
    assert ((tmp_path / "a").read_text(), taken.read_text()) == ("text", "another's")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    json_files.write_text(str(tmp_path / "a"), "old")

    def fail(_: int) -> None:
        raise OSError("full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="full"):
        json_files.write_text(str(tmp_path / "a"), "new")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_files_are_synced_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.json"
    synced: list[tuple[bool, int]] = []

    def fsync(descriptor: int) -> None:
        synced.append((path.exists(), os.fstat(descriptor).st_size))

    monkeypatch.setattr(os, "fsync", fsync)
    json_files.write_json(str(path), {"phase": "running"})
    assert synced == [(False, path.stat().st_size)]
    json_files.write_json(str(path), {}, durable=False)
    assert len(synced) == 1


def test_only_a_large_file_is_not_indented(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    for count, lines in ((10, 15), (100_000, 1)):
        value = {"b": list(range(count)), "a": {}}
        json_files.write_json(str(path), value)
        assert json_files.read_json(str(path)) == value
        assert len(path.read_text().splitlines()) == lines
