from __future__ import annotations

from pathlib import Path

import pytest

from train.gang import run_folders
from train.gang.errors import UserError


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_only_its_user_can_read_a_new_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    run_folders.create(tmp_path / "runs/night-1", exist_ok=False)
    assert [mode(tmp_path / "runs/night-1"), mode(tmp_path / "runs")] == [0o700, 0o700]
    assert mode(tmp_path) == 0o755
    with pytest.raises(FileExistsError):
        run_folders.create(tmp_path / "runs/night-1", exist_ok=False)
    run_folders.create(tmp_path / "runs/night-1", exist_ok=True)


def test_all_can_read_and_reach_one_that_is_opened(tmp_path: Path) -> None:
    run_folders.create(tmp_path / "runs/night-1", exist_ok=False)
    run_folders.open_to_all(tmp_path / "runs/night-1")
    assert [mode(tmp_path / "runs/night-1"), mode(tmp_path / "runs")] == [0o755, 0o755]


def test_jobs_are_told_apart(tmp_path: Path) -> None:
    first, folder = run_folders.choose_job("", Path("/x/my train.py"), tmp_path)
    second, _ = run_folders.choose_job("", Path("/x/my train.py"), tmp_path)
    assert first.startswith("my-train-")
    assert first != second
    assert folder == tmp_path / first
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match="which is running or has ended"):
        run_folders.choose_job(first, Path("/x/main.py"), tmp_path)
    for name in ("../x", "a b", "-x", "x" * 65):
        with pytest.raises(UserError, match="is not a valid job id"):
            run_folders.choose_job(name, Path("/x/main.py"), tmp_path)
