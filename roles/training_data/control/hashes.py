"""Hashes of files of this machine."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from pathlib import Path
from typing import Any


class Hashes:
    """SHA-256 of files of this machine, noted across runs by size, time and inode."""

    def __init__(self, notes: Path) -> None:
        self._path = notes
        try:
            self._known: dict[str, list[Any]] = json.loads(notes.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            self._known = {}
        self._seen: dict[str, list[Any]] = {}

    def of(self, path: str) -> tuple[int, str]:
        """Return size and SHA-256 of a file."""
        found = Path(path).stat()
        sign = [found.st_size, found.st_mtime_ns, found.st_ino]
        note = self._known.get(path, [])
        if note[:3] != sign:
            with Path(path).open("rb") as stream:
                note = [*sign, hashlib.file_digest(stream, "sha256").hexdigest()]
        self._seen[path] = note
        return found.st_size, note[3]

    def save(self) -> None:
        """Note what was seen; a place that cannot be written to only costs time."""
        if self._seen == self._known:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new = self._path.with_suffix(f".{os.getpid()}")
            new.write_text(json.dumps(self._seen), encoding="utf-8")
            new.replace(self._path)
        except OSError:
            pass


def content_hash(path: Path) -> str:
    """Return the SHA-256 of what a .gz file holds; an empty string if it is none."""
    try:
        with gzip.open(path) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except (OSError, EOFError):
        return ""
