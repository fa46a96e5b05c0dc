"""Folders on the control node with what jobs printed and measured: private, unless opened."""

from __future__ import annotations

from pathlib import Path

#: Modes of a folder that only its user can read, and of one that everybody can.
_PRIVATE, _OPEN = 0o700, 0o755


def create(folder: Path, *, exist_ok: bool) -> None:
    """Create a folder that only its user can read, and so those above it that do not exist.
    FileExistsError: it exists, and that is not ``exist_ok``.
    """
    for parent in reversed(folder.parents):
        if not parent.exists():
            parent.mkdir(mode=_PRIVATE, exist_ok=True)
    folder.mkdir(mode=_PRIVATE, exist_ok=exist_ok)


def open_to_all(folder: Path) -> None:
    """Let all users of the control node read a job's folder, and reach it in ``runs/``."""
    for path in (folder.parent, folder):
        if path.is_dir() and path.owner() == folder.owner():
            path.chmod(path.stat().st_mode | _OPEN)
