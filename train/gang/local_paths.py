"""Paths of this machine, as users type them."""

from __future__ import annotations

from pathlib import Path

from train.gang.errors import UserError


def absolute(path: str | Path) -> Path:
    """Return a path as an absolute path, with ``~`` replaced by a home directory.

    Links and ``..`` are kept. Raise UserError if there is no such home directory, or if the path is
    relative and the current folder was removed.
    """
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError:
        user = Path(path).parts[0]
        raise UserError(
            f"{path}: {user} is not the home directory of a user of this machine. For a file whose "
            f"name begins with ~, use ./{path}"
        ) from None
    except FileNotFoundError:
        raise UserError(
            f"{path}: the current folder was removed: use an absolute path, or change to another "
            "folder"
        ) from None
