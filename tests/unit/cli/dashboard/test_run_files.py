"""Files that can be downloaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from train.cli.dashboard import run_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "runs/night"
    (folder / "model").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    for name in (
        "result.json",
        "connection.json",
        "variables.json",
        ".followed",
        "model/a b.keras",
    ):
        (folder / name).write_text("12345")
    (folder / ".hidden/file").write_text("")
    (tmp_path / "secret").write_text("")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "folder").symlink_to(tmp_path)
    return folder


def test_files_that_may_be_secret_or_lie_elsewhere_are_not_listed(folder: Path) -> None:
    assert run_files.list_files(folder) == {"result.json": 5, "model/a b.keras": 5}
    assert run_files.find(folder, "model/a b.keras") == folder / "model/a b.keras"


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "link", "folder/secret", "../night/result.json", "connection.json", "model",
     "/etc/passwd", "./result.json", "model/../result.json", ".followed", ".hidden/file", "model/",
     "a\0b", "n" * 300],
)  # fmt: skip
def test_other_names_are_not_found(folder: Path, name: str) -> None:
    assert run_files.find(folder, name) is None
