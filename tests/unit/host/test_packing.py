"""The results of a rank that are packed for the control node."""

from __future__ import annotations

import tarfile
from pathlib import Path

from train.host import packing


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("12345")


def test_what_matches_is_packed_for_its_rank(tmp_path: Path) -> None:
    write(tmp_path / "code", "model.h5", "outputs/a/x.txt", "main.py")
    params = {"rank_dir": str(tmp_path), "task": "worker-1", "globs": ["*.h5", "outputs"]}
    packed = packing.collect_files(params)
    with tarfile.open(packed["archive"]) as tar:
        names = [member.name for member in tar if member.isfile()]
    assert sorted(names) == ["worker-1/model.h5", "worker-1/outputs/a/x.txt"]
    assert packing.collect_files({**params, "globs": ["*.txt"]}) == {"archive": None}
