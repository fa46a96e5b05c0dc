"""Reads JSON files, and replaces files atomically."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Optional

#: Maximum length of an indented file in characters: Python needs 20 times as long to indent.
_INDENTED = 50_000


def write_json(path: str, value: Any, mode: int = 0o644, durable: bool = True) -> None:
    """Replace ``path`` with ``value`` as JSON, see ``write_text``. A large file has one line."""
    text = json.dumps(value, sort_keys=True)
    if len(text) <= _INDENTED:
        text = json.dumps(value, indent=1, sort_keys=True)
    write_text(path, text + "\n", mode, durable)


def write_text(path: str, text: str, mode: int = 0o644, durable: bool = True) -> None:
    """Replace ``path`` with ``text`` atomically: a reader sees the old or the new file.

    With ``durable``, this also holds after a power failure. After an OSError, the old file is
    unchanged. Other users of the folder cannot guess the name of the temporary file next to it,
    which remains only after SIGKILL.
    """
    temporary = "%s.%s.tmp" % (path, os.urandom(8).hex())
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read_json(path: str) -> Optional[Dict[str, Any]]:
    """Return the JSON object in ``path``, or None without the file. Raise ValueError if invalid."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, encoding="utf-8") as stream:
            value = json.load(stream)
    except FileNotFoundError:
        return None
    except RecursionError:
        raise ValueError("%s is nested too deeply" % path) from None
    if not isinstance(value, dict):
        raise ValueError("%s is not a JSON object" % path)
    return value


def read_whole(path: str) -> Optional[Dict[str, Any]]:
    """Return the JSON object in ``path``; None if the file is missing or invalid."""
    try:
        return read_json(path)
    except ValueError:
        return None
