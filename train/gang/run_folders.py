"""Job folders on the control node, with logs and measurements: private unless opened."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path

from train.gang import job_records, suggestions
from train.gang.errors import UserError
from train.gang.job_records import MANIFEST_FILE, Manifest
from train.host import records

#: Modes of a private folder and of one that all users can read.
_PRIVATE, _OPEN = 0o700, 0o755


def create(folder: Path, *, exist_ok: bool) -> None:
    """Create a folder, and its missing parents, readable only by the user.

    Raise FileExistsError if it exists, unless ``exist_ok`` is set.
    """
    for parent in reversed(folder.parents):
        if not parent.exists():
            parent.mkdir(mode=_PRIVATE, exist_ok=True)
    folder.mkdir(mode=_PRIVATE, exist_ok=exist_ok)


def open_to_all(folder: Path) -> None:
    """Let all users of the control node read a job's folder and the folder that contains it.

    The latter is left as it is if it has another owner.
    """
    for path in (folder.parent, folder):
        if path.is_dir() and path.owner() == folder.owner():
            path.chmod(path.stat().st_mode | _OPEN)


def check_id(job: str) -> None:
    """Raise UserError if a job id, which names folders, is invalid."""
    if not records.JOB_PATTERN.fullmatch(job):
        raise UserError(
            f"train_job_id {job!r} is not a valid job id: use 1 to 64 letters, digits, '.', "
            "'_' or '-', starting with a letter or digit"
        )


#: Script names that do not describe what they train.
_GENERAL_NAMES = ("main", "train", "run", "__main__")


def choose_job(job: str, script: Path, runs_dir: Path) -> tuple[str, Path]:
    """Return the job's id and its new, empty folder on the control node.

    If ``job`` is empty, the id consists of the script's name and the time. Instead of a generic
    name such as main.py, the name of the script's folder is used. Raise UserError if the id is
    invalid, or if its folder already contains a job.
    """
    if job:
        check_id(job)
        run_dir = runs_dir / job
        if (run_dir / MANIFEST_FILE).exists():
            raise UserError(
                f"{run_dir} already contains job {job}, which is running or has ended: "
                f"attach to it with `{suggestions.command('attach', job=job)}`, or choose "
                "another id (--job, train_job_id)"
            )
        create(run_dir, exist_ok=True)
        return job, run_dir
    names = [script.stem, script.absolute().parent.name]
    if script.stem.lower() in _GENERAL_NAMES:
        names.reverse()
    plain = (re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:40].strip("-") for name in names)
    stem = next(filter(None, plain), "job")
    while True:
        job = f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
        with contextlib.suppress(FileExistsError):
            create(runs_dir / job, exist_ok=False)
            return job, runs_dir / job
        time.sleep(0.2)


def read_manifest(job: str, runs_dir: Path) -> Manifest:
    """Return the manifest of an earlier attempt of ``job``. Raise UserError if there is none."""
    check_id(job)
    manifest = job_records.read_manifest(runs_dir / job)
    if manifest is None:
        raise UserError(
            f"{runs_dir / job / MANIFEST_FILE} does not exist, but a further attempt "
            "(train_job_attempt) needs the manifest of an earlier one: attach to the job first "
            f"with `{suggestions.command('attach', job=job)}`"
        )
    return manifest
