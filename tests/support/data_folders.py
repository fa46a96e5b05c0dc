"""Folders of data that tests place."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from tests.support.lab import REPOSITORY

PUBLISHED = json.loads((REPOSITORY / "roles/training_data/files/published.json").read_text())


def make_source(folder: Path) -> Path:
    source = folder / "source"
    (source / "sub").mkdir(parents=True)
    for name in ("sub/0 ä.bin", "sub/1 ä.bin", "sub/2 ä.bin", "large"):
        (source / name).write_bytes(os.urandom(900))
    (source / ".empty").touch()
    (source / "link").symlink_to("large")
    return source


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
