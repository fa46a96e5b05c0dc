"""The control node's files of an attempt when the next one is planned, and when that is undone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from train.gang.plan import withdrawal

FILES = {
    "manifest.json": "1",
    "code.tar.gz": "code",
    "events.jsonl": "1",
    "logs/worker-0.log": "1",
    "progress/worker-0.jsonl": "1",
    "result.json": "1",
}


def files_of(folder: Path) -> dict[str, str]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in paths}


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "runs/night"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_job_that_never_started_leaves_its_id_free(run_dir: Path) -> None:
    for name in ("logs", "progress", "result.json"):  # nothing of it ran
        remove(run_dir / name)
    (run_dir / "packages").mkdir()
    (run_dir / "packages/pylock.toml").write_text("")
    withdrawal.withdraw(run_dir, 1)
    assert not run_dir.exists()


def test_the_plan_of_a_later_attempt_is_undone(run_dir: Path) -> None:
    withdrawal.set_aside(run_dir, 1)
    (run_dir / "manifest.json").write_text("2")
    (run_dir / "events.jsonl").write_text("1 2")
    kept = {
        f"attempts/1/{name}": "1" for name in FILES if name not in ("code.tar.gz", "events.jsonl")
    }
    others = {"manifest.json": "2", "code.tar.gz": "code", "events.jsonl": "1 2"}
    assert files_of(run_dir) == {**kept, **others}
    for _ in range(2):  # a second host does the same
        withdrawal.withdraw(run_dir, 2)
        assert files_of(run_dir) == {**FILES, "events.jsonl": "1 2"}
        assert not (run_dir / "attempts").exists()


def test_attempts_before_the_last_one_stay(run_dir: Path) -> None:
    withdrawal.set_aside(run_dir, 1)
    (run_dir / "result.json").write_text("2")
    withdrawal.set_aside(run_dir, 2)
    withdrawal.withdraw(run_dir, 3)
    assert (run_dir / "result.json").read_text() == "2"
    assert (run_dir / "attempts/1/result.json").read_text() == "1"
    assert not (run_dir / "attempts/2").exists()


def test_a_first_attempt_leaves_nothing(run_dir: Path) -> None:
    for name in ("logs", "progress"):
        next((run_dir / name).iterdir()).unlink()
        (run_dir / name).rmdir()
    (run_dir / "result.json").unlink()
    withdrawal.withdraw(run_dir, 1)
    assert not run_dir.exists()
