"""The environments under ``venvs/``: names, markers, links, and the lock for changes."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterable, Iterator, List, Set

#: Describes a finished environment, in its folder.
MARKER = "tensorflow-venv.json"
#: Names that the role gives; other folders are left alone.
NAMES = re.compile(r"(tensorflow-[^/]+-py[0-9]+\.[0-9]+|extra)-[0-9a-f]{12}")
#: Folder under venvs/ in which uv keeps the unpacked wheels of scripts' packages.
CACHE = ".cache"
#: Longest wait for another installation on the same machine, in seconds.
LOCK_WAIT_S = 3600.0


class SetupError(Exception):
    """What the host cannot do, with the limit and the remedy; the module's ``msg``."""


def read_marker(folder: str) -> Dict[str, Any]:
    """Return the marker of a finished environment, empty for anything else."""
    try:
        with open(os.path.join(folder, MARKER), encoding="utf-8") as stream:
            marker = json.load(stream)
    except (OSError, ValueError):
        return {}
    return marker if isinstance(marker, dict) and "requirements_sha256" in marker else {}


def usable_marker(folder: str) -> Dict[str, Any]:
    """Return the same, empty also if the Python that the environment was made from is gone."""
    return read_marker(folder) if os.access(os.path.join(folder, "bin/python"), os.X_OK) else {}


def names(folder: str) -> List[str]:
    """Return the names of the role's environments in a folder, finished or not."""
    found = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    paths = {name: os.path.join(folder, name) for name in found if NAMES.fullmatch(name)}
    return [
        name for name, path in paths.items() if os.path.isdir(path) and not os.path.islink(path)
    ]


def links(root: str) -> Dict[str, str]:
    """Return the links in ``root`` to environments: by the link's name, the environment's."""
    folder = os.path.realpath(os.path.join(root, "venvs"))
    found = {}
    for name in sorted(os.listdir(root)) if os.path.isdir(root) else []:
        path = os.path.join(root, name)
        target = os.path.realpath(path)
        if os.path.islink(path) and os.path.dirname(target) == folder:
            found[name] = os.path.basename(target)
    return found


def with_bases(folder: str, chosen: Iterable[str]) -> Set[str]:
    """Return names of environments with those of the environments on which they were put."""
    markers = [read_marker(os.path.join(folder, name)) for name in chosen]
    return {*chosen, *(marker["base"] for marker in markers if "base" in marker)}


def discard(folder: str) -> None:
    """Remove an environment; first its marker: what is half removed must not pass for finished."""
    marker = os.path.join(folder, MARKER)
    if os.path.lexists(marker):
        os.unlink(marker)
    if os.path.lexists(folder):
        shutil.rmtree(folder)


@contextmanager
def exclusive(folder: str) -> Iterator[int]:
    """Hold the lock file of a folder; yields its descriptor.

    Children that inherit the descriptor hold the lock too: an uv that outlives a killed module
    still keeps others away.
    """
    path = os.path.join(folder, ".lock")
    deadline = time.monotonic() + LOCK_WAIT_S
    with open(path, "a", encoding="utf-8") as stream:
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise SetupError(
                        f"Another installation on this host has held {path} for"
                        f" {LOCK_WAIT_S / 60:.0f} minutes. See what it does (fuser -v {path}), end"
                        " it, and run again."
                    ) from None
            time.sleep(0.2)
        yield stream.fileno()
