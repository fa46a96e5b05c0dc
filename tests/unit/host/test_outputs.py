"""Files that look like results in a script's working directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from train.host import outputs


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("12345")


def test_files_that_look_like_results(tmp_path: Path) -> None:
    write(tmp_path, "main.py", "data/train.csv", "__pycache__/main.pyc", "notes.txt", "old.h5")
    os.utime(tmp_path / "old.h5", (1000, 1000))  # it was copied with the script
    assert outputs.left_behind(str(tmp_path), 2000.0, []) == (0, 0, [])
    write(tmp_path, "model.h5", "a/b.keras", "outputs/x.txt", "ckpt/ckpt-1.data-00000-of-00001")
    (tmp_path / "link.h5").symlink_to("old.h5")
    count, size, names = outputs.left_behind(str(tmp_path), 2000.0, [])
    assert (count, size) == (4, 20)
    assert names == ["a/b.keras", "ckpt/ckpt-1.data-00000-of-00001", "model.h5"]
    assert outputs.left_behind(str(tmp_path), 2000.0, ["*.h5", "outputs", "**/*.keras"])[0] == 1


def test_compiled_files_of_a_package_are_not_results(tmp_path: Path) -> None:
    for name in ("models/__pycache__/net.cpython-311.pyc", "models/net.bin"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    assert outputs.left_behind(str(tmp_path), 0.0, []) == (1, 1, ["models/net.bin"])


@pytest.mark.parametrize(
    ("globs", "found"),
    [
        (["*.h5"], ["model.h5"]),
        (["outputs"], ["outputs"]),
        (["**/*.txt"], ["outputs/a/x.txt"]),
        (["outputs/a/*", "outputs/a/x.txt"], ["outputs/a/x.txt"]),
        (["../*", "/etc/*", "link", "link/*", "nothing"], []),
    ],
)
def test_patterns_stay_in_the_folder(tmp_path: Path, globs: list[str], found: list[str]) -> None:
    folder = tmp_path / "c[o]de"
    write(folder, "model.h5", "outputs/a/x.txt")
    write(tmp_path, "outside/secret.txt")
    (folder / "link").symlink_to(tmp_path / "outside")
    assert outputs.matching(str(folder), globs) == found
