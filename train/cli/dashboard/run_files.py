"""The files of a job here that viewers may download."""

from __future__ import annotations

import os
from pathlib import Path

#: Maximum number of files to list.
_MOST = 2_000
#: Files that may contain secrets, and those of the watch.
_PRIVATE = ("connection.json", "variables.json")


def list_files(run_dir: Path) -> dict[str, int]:
    """Return the sizes of a job's files by their paths in its folder.

    Links, hidden files, and files that may contain secrets are left out.
    """
    found: dict[str, int] = {}
    for parent, folders, names in os.walk(run_dir):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(parent, name)
            hidden = name.startswith(".") or (path.parent == run_dir and name in _PRIVATE)
            if hidden or path.is_symlink() or not path.is_file():
                continue
            if len(found) == _MOST:
                return found
            found[str(path.relative_to(run_dir))] = path.stat().st_size
    return found


def find(run_dir: Path, name: str) -> Path | None:
    """Return a file by its path in the job's folder; None if viewers may not download it."""
    parts = name.split("/")
    if name in _PRIVATE or any(not part or part.startswith(".") for part in parts):
        return None
    path = run_dir
    try:
        for part in parts:
            path /= part
            if path.is_symlink():
                return None
        return path if path.is_file() else None
    except OSError:  # such as a name that is too long
        return None
