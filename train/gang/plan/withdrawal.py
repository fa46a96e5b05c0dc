"""What is kept here of an attempt when another one is planned, and what undoes that if it is not
started: the job is then as it was, with its manifest and the result of its last attempt.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from train.gang.records import EVENTS_FILE, LOAD_DIR, MANIFEST_FILE, RESULT_FILE
from train.host import records

#: What each attempt writes again; a job's events are those of all attempts.
_OF_ATTEMPT = ("logs", "progress", LOAD_DIR, RESULT_FILE, "ansible.log")


def _folder_of(run_dir: Path, attempt: int) -> Path:
    return run_dir / records.ATTEMPTS_DIR / str(attempt)


def set_aside(run_dir: Path, attempt: int) -> None:
    """Move what an attempt left on the control node to ``attempts/<number>/``, with a copy of the
    manifest.
    """
    folder = _folder_of(run_dir, attempt)
    folder.mkdir(parents=True, exist_ok=True)
    for name in _OF_ATTEMPT:
        if (run_dir / name).exists():
            shutil.rmtree(folder / name, ignore_errors=True)  # of a start that was broken off
            (run_dir / name).replace(folder / name)
    if (run_dir / MANIFEST_FILE).exists():
        shutil.copy2(run_dir / MANIFEST_FILE, folder / MANIFEST_FILE)


def withdraw(run_dir: Path, attempt: int) -> None:
    """Undo the plan of an ``attempt`` that was not started. Several processes may do so at once."""
    if attempt == 1:
        forget(run_dir)
        return
    folder = _folder_of(run_dir, attempt - 1)
    for name in _OF_ATTEMPT:
        if not (run_dir / name).exists():
            _move(folder / name, run_dir / name)
    _move(folder / MANIFEST_FILE, run_dir / MANIFEST_FILE)
    for path in (folder, folder.parent):
        with contextlib.suppress(OSError):  # it holds something else
            path.rmdir()


def _move(path: Path, target: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.replace(target)


def forget(run_dir: Path) -> None:
    """Remove what was written of a job that was never started, so that its id is free again."""
    for name in (MANIFEST_FILE, records.ARCHIVE_FILE, EVENTS_FILE):
        (run_dir / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # it holds something else
        run_dir.rmdir()
