from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from train.gang.scratch import Scratch, remove_abandoned

HOLDER = """
import sys, time
from train.gang.scratch import Scratch
folder = Scratch("runner")
(folder.path / "password-0").write_text("secret")
print(folder.path, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def holder(temporary: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    environment = {**os.environ, "TMPDIR": str(temporary)}
    command = [sys.executable, "-c", HOLDER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_only_its_user_can_read_it_and_it_goes_at_the_end() -> None:
    with Scratch("logs") as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "inner").mkdir()
    assert not folder.exists()


def test_a_folder_is_kept_while_its_process_lives_and_removed_after_a_kill(
    holder: tuple[subprocess.Popen[str], Path],
) -> None:
    process, folder = holder
    remove_abandoned()
    assert (folder / "password-0").read_text() == "secret"
    process.send_signal(signal.SIGKILL)
    process.wait()
    Scratch("check").close()
    assert not folder.exists()


def test_a_folder_without_a_lock_stays(temporary: Path) -> None:
    (temporary / "train-runner-abcdefgh").mkdir()
    remove_abandoned()
    assert (temporary / "train-runner-abcdefgh").is_dir()


@pytest.mark.parametrize("name", ["train-runner-short", "train-other-abcdefgh", "abcdefgh"])
def test_other_folders_stay(temporary: Path, name: str) -> None:
    (temporary / name).mkdir()
    (temporary / name / "lock").touch()
    remove_abandoned()
    assert (temporary / name).is_dir()


def test_a_link_of_that_name_leads_nowhere(temporary: Path) -> None:
    precious = temporary / "precious"
    precious.mkdir()
    (precious / "file").touch()
    (precious / "lock").touch()
    (temporary / "train-runner-abcdefgh").symlink_to(precious)
    remove_abandoned()
    assert (precious / "file").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_folders_of_other_users_stay(temporary: Path) -> None:
    foreign = temporary / "train-runner-abcdefgh"
    foreign.mkdir()
    (foreign / "lock").touch()
    os.chown(foreign, 12345, 12345)
    remove_abandoned()
    assert foreign.is_dir()
