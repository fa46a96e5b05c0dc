"""Folders of data that tests place or serve."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.support.lab import REPOSITORY

#: The handwritten digits, one per line: 64 numbers from 0 to 16, and the digit.
DIGITS = REPOSITORY / "train/training/data/digits.csv.gz"
PUBLISHED = json.loads((REPOSITORY / "roles/training_data/files/published.json").read_text())


def make_source(folder: Path) -> Path:
    source = folder / "source"
    (source / "sub").mkdir(parents=True)
    for name in ("sub/1 ä.bin", "sub/2 ä.bin", "large"):
        (source / name).write_bytes(os.urandom(900))
    (source / ".empty").touch()
    (source / "link").symlink_to("large")
    return source


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Provide a file system of 1 MiB."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "small", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextmanager
def serving(folder: Path) -> Iterator[int]:
    """Serve a folder's files over HTTP; yield the port."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
