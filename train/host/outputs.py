"""Finds files in the working directory of a script that look like results."""

from __future__ import annotations

import glob
import os
import re
import stat
import time
from typing import Iterator, List, Sequence, Set, Tuple

#: Names of files and folders with models, checkpoints and results.
_RESULT = re.compile(
    r".*\.(?:h5|hdf5|keras|ckpt|tflite|onnx|pb|index|data-\d+-of-\d+|pt|pth|safetensors)$|"
    r"events\.out\.tfevents\..*|checkpoint$"
)
_FOLDER = re.compile(
    r"(?:outputs?|results?|models?|ckpts?|checkpoints?|saved_models?|exports?|weights)$", re.I
)
#: The folder with Python's own files next to a package, which may be named ``models``.
_COMPILED = "__pycache__"
#: Maximum number of files to examine, time limit in seconds, and number of names to keep.
_MOST, _SECONDS, _NAMED = 20_000, 2.0, 3


def _files(folder: str) -> Iterator[Tuple[str, os.stat_result]]:
    """Yield the relative path and the status of regular files below a folder, up to the limits."""
    deadline, number = time.monotonic() + _SECONDS, 0
    for place, folders, names in os.walk(folder):
        if _COMPILED in folders:
            folders.remove(_COMPILED)
        for name in sorted(names):
            number += 1
            if number > _MOST or time.monotonic() > deadline:
                return
            path = os.path.join(place, name)
            try:
                found = os.lstat(path)
            except OSError:
                continue
            if stat.S_ISREG(found.st_mode):
                yield os.path.relpath(path, folder), found


def _looks_like_result(path: str) -> bool:
    *folders, name = path.split(os.sep)
    return bool(_RESULT.match(name)) or any(map(_FOLDER.match, folders))


def matching(folder: str, globs: Sequence[str]) -> List[str]:
    """Return the relative paths of files and folders below ``folder`` that match ``globs``.

    Links, and patterns that lead out of the folder, match nothing.
    """
    found: Set[str] = set()
    top = os.path.realpath(folder)
    for pattern in globs:
        if os.path.isabs(pattern):
            continue
        for path in glob.glob(os.path.join(glob.escape(folder), pattern), recursive=True):
            within = os.path.relpath(path, folder)
            inside = os.path.realpath(path).startswith(top + os.sep)
            if inside and not within.startswith(os.pardir) and not os.path.islink(path):
                found.add(within)
    return sorted(found)


def left_behind(folder: str, since: float, fetched: Sequence[str]) -> Tuple[int, int, List[str]]:
    """Count the files below ``folder`` that look like results.

    Return their number, their total size in bytes and some of their relative paths.

    Args:
        since: Unix time; only files that were modified later count.
        fetched: patterns of files that are fetched anyway, and do not count.
    """
    wanted = matching(folder, fetched) if fetched else []
    count, size, names = 0, 0, []
    for path, found in _files(folder):
        is_fetched = any(path == one or path.startswith(one + os.sep) for one in wanted)
        if found.st_mtime >= since and _looks_like_result(path) and not is_fetched:
            count, size = count + 1, size + found.st_size
            names.append(path)
    return count, size, sorted(names)[:_NAMED]
