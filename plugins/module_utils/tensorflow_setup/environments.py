"""Names, markers and links of the environments in ``venvs/``, and the lock for changes."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterable, Iterator, List, Set

#: File in the folder of a finished environment that describes it.
MARKER = "tensorflow-venv.json"
#: Names of the role's environments; other folders are ignored.
NAMES = re.compile(r"((tensorflow-[^/]+|jax-[^/]+|bare)-py[0-9]+\.[0-9]+|extra)-[0-9a-f]{12}")
#: Folder under venvs/ in which uv keeps the unpacked wheels of scripts' packages.
CACHE = ".cache"
#: Longest wait for another installation on the same machine, in seconds.
LOCK_WAIT_S = 3600.0


class SetupError(Exception):
    """The installation cannot continue. The message becomes the module's ``msg``."""


def read_marker(folder: str) -> Dict[str, Any]:
    """Return the marker of a finished environment, or an empty dictionary for any other folder."""
    try:
        with open(os.path.join(folder, MARKER), encoding="utf-8") as stream:
            marker = json.load(stream)
    except (OSError, ValueError):
        return {}
    return marker if isinstance(marker, dict) and "requirements_sha256" in marker else {}


def usable_marker(folder: str) -> Dict[str, Any]:
    """Return the marker as ``read_marker``, but only if the Python interpreter still exists."""
    return read_marker(folder) if os.access(os.path.join(folder, "bin/python"), os.X_OK) else {}


def names(folder: str) -> List[str]:
    """Return the names of the role's environments in a folder, including unfinished ones."""
    found = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    paths = {name: os.path.join(folder, name) for name in found if NAMES.fullmatch(name)}
    return [
        name for name, path in paths.items() if os.path.isdir(path) and not os.path.islink(path)
    ]


def links(root: str) -> Dict[str, str]:
    """Return for each link in ``root`` the name of the environment to which it leads."""
    folder = os.path.realpath(os.path.join(root, "venvs"))
    found = {}
    for name in sorted(os.listdir(root)) if os.path.isdir(root) else []:
        path = os.path.join(root, name)
        target = os.path.realpath(path)
        if os.path.islink(path) and os.path.dirname(target) == folder:
            found[name] = os.path.basename(target)
    return found


def with_bases(folder: str, chosen: Iterable[str]) -> Set[str]:
    """Return the names of environments and of the base environments that they extend."""
    markers = [read_marker(os.path.join(folder, name)) for name in chosen]
    return {*chosen, *(marker["base"] for marker in markers if "base" in marker)}


def discard(folder: str) -> None:
    """Remove an environment, its marker first, so that remains do not count as finished."""
    marker = os.path.join(folder, MARKER)
    if os.path.lexists(marker):
        os.unlink(marker)
    if os.path.lexists(folder):
        shutil.rmtree(folder)


@contextmanager
def exclusive(folder: str) -> Iterator[int]:
    """Hold the lock file of a folder and yield its descriptor.

    Child processes that inherit the descriptor hold the lock, too. If the module is killed, uv
    keeps the lock until it exits.

    Raises:
        SetupError: another process still holds the lock after LOCK_WAIT_S seconds.
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
                        f"Another installation on this host has held {path} for "
                        f"{LOCK_WAIT_S / 60:.0f} minutes. Find its process with `sudo lslocks "
                        f"--notruncate | grep {path}`, end that process, and run the playbook "
                        "again."
                    ) from None
            time.sleep(0.2)
        yield stream.fileno()
