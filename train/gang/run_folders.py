"""Job folders on the control node, with logs and measurements: private unless opened."""

from __future__ import annotations

from pathlib import Path

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
    """Let all users of the control node read a job's folder and enter ``runs/``."""
    for path in (folder.parent, folder):
        if path.is_dir() and path.owner() == folder.owner():
            path.chmod(path.stat().st_mode | _OPEN)
