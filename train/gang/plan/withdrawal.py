"""Sets the control node's files about an attempt aside when the next attempt is planned.

If the next attempt does not start, these files are restored.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from train.gang.job_records import EVENTS_FILE, LOAD_DIR, MANIFEST_FILE, PACKAGES_DIR, RESULT_FILE
from train.host import rank_files

#: Files that each attempt rewrites. EVENTS_FILE is not one of them, because it covers all attempts.
_OF_ATTEMPT = ("logs", "progress", LOAD_DIR, RESULT_FILE, "ansible.log")


def _folder_of(run_dir: Path, attempt: int) -> Path:
    return run_dir / rank_files.ATTEMPTS_DIR / str(attempt)


def set_aside(run_dir: Path, attempt: int) -> None:
    """Move an attempt's files to ``attempts/<number>/`` in ``run_dir``, and copy the manifest."""
    folder = _folder_of(run_dir, attempt)
    folder.mkdir(parents=True, exist_ok=True)
    for name in _OF_ATTEMPT:
        if (run_dir / name).exists():
            shutil.rmtree(folder / name, ignore_errors=True)  # from an interrupted start
            (run_dir / name).replace(folder / name)
    if (run_dir / MANIFEST_FILE).exists():
        shutil.copy2(run_dir / MANIFEST_FILE, folder / MANIFEST_FILE)


def withdraw(run_dir: Path, attempt: int) -> None:
    """Undo the plan of an ``attempt`` that did not start. Concurrent calls are safe."""
    if attempt == 1:
        forget(run_dir)
        return
    folder = _folder_of(run_dir, attempt - 1)
    for name in _OF_ATTEMPT:
        if not (run_dir / name).exists():
            _move(folder / name, run_dir / name)
    _move(folder / MANIFEST_FILE, run_dir / MANIFEST_FILE)
    for path in (folder, folder.parent):
        with contextlib.suppress(OSError):  # not empty
            path.rmdir()


def _move(path: Path, target: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.replace(target)


def forget(run_dir: Path) -> None:
    """Remove the files of a job that never started, so that its id can be used again."""
    for name in (MANIFEST_FILE, rank_files.ARCHIVE_FILE, EVENTS_FILE):
        (run_dir / name).unlink(missing_ok=True)
    shutil.rmtree(run_dir / PACKAGES_DIR, ignore_errors=True)
    with contextlib.suppress(OSError):  # not empty
        run_dir.rmdir()
