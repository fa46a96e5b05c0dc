"""Files and folders of this host: reading, walking, linking, removing."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import stat
from typing import Iterator, Optional


def sha256_of(path: str, limit: Optional[int] = None, offset: int = 0) -> str:
    """Return the SHA-256 of a file, or of ``limit`` bytes from ``offset``."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        stream.seek(offset)
        left = limit
        while left is None or left > 0:
            data = stream.read(2**20 if left is None else min(2**20, left))
            if not data:
                break
            digest.update(data)
            left = None if left is None else left - len(data)
    return digest.hexdigest()


def walk(folder: str) -> Iterator[str]:
    """Yield the paths below a folder of all that is no folder, in no order."""

    def stop(error: OSError) -> None:
        raise error

    for current, folders, names in os.walk(folder, onerror=stop):
        links = [name for name in folders if os.path.islink(os.path.join(current, name))]
        for name in names + links:
            yield os.path.relpath(os.path.join(current, name), folder)


def regular(folder: str) -> Iterator[str]:
    """Yield the paths of the regular files below a folder."""
    for path in walk(folder):
        if stat.S_ISREG(os.lstat(os.path.join(folder, path)).st_mode):
            yield path


def link(source: str, target: str) -> None:
    """Have a file in a second place without a copy, where the filesystem can."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def remove(path: str) -> None:
    """Remove a folder with all that is in it, if it is there."""
    if os.path.isdir(path):
        shutil.rmtree(path)


def flush(path: str) -> None:
    """Have all of a filesystem on disk, before a marker says that it is there."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        ctypes.CDLL(None).syncfs(descriptor)
    finally:
        os.close(descriptor)
