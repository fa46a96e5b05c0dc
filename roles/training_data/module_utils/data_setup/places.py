"""What has to be brought, where it lies on this host, and what is noted about it."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

#: Folder for what is under way, in the root.
STATE = ".training_data"


class DataError(Exception):
    """What is wrong, with the remedy; the module's ``msg``."""


class File(NamedTuple):
    """A file of the data: its path below their folder, size and SHA-256."""

    path: str
    size: int
    sha256: str


class Manifest(NamedTuple):
    """What an entry has to bring.

    Attributes:
        identity: tells these data from others under the same name.
        unpack: how the one file is to be unpacked: ``tar``, ``zip``, ``gz``; empty for not at all.
        unpacked_bytes: what comes out of it; 0 without.
        unpacked_files: the same, in files.
        keras: what is to be below ~/.keras/datasets, and which of the data it leads to.
    """

    name: str
    dest: str
    identity: str
    files: List[File]
    unpack: str
    unpacked_bytes: int
    unpacked_files: int
    keras: Dict[str, str]


class Place(NamedTuple):
    """Where the data of an entry lie on this host, now and at last."""

    root: str
    name: str
    dest: str

    @property
    def target(self) -> str:
        """Where the data lie when they are complete."""
        return os.path.join(self.root, self.dest)

    @property
    def marker(self) -> str:
        """What the last complete run noted."""
        return os.path.join(self.root, STATE, self.name + ".json")

    @property
    def staging(self) -> str:
        """Folder for what is under way."""
        return os.path.join(self.root, STATE, self.name)

    @property
    def part(self) -> str:
        """What has come, files one after another."""
        return os.path.join(self.staging, "part")

    @property
    def tree(self) -> str:
        """Files that have come and were verified."""
        return os.path.join(self.staging, "tree")

    @property
    def unpacked(self) -> str:
        """What came out of the archive."""
        return os.path.join(self.staging, "unpacked")

    @property
    def next_marker(self) -> str:
        """What is to become the marker when the data are in place."""
        return os.path.join(self.staging, "marker.json")

    @property
    def old(self) -> str:
        """What was at the target, on its way out."""
        return os.path.join(self.staging, "old")


def read_manifest(path: str) -> Manifest:
    """Read a manifest as the action plugin has written it."""
    with open(path, encoding="utf-8") as stream:
        data = json.load(stream)
    return Manifest(**dict(data, files=[File(*file) for file in data["files"]]))


def read_marker(place: Place) -> Optional[Dict[str, Any]]:
    """Return what the last complete run noted; None without one, or for another place."""
    try:
        with open(place.marker, encoding="utf-8") as stream:
            marker: Dict[str, Any] = json.load(stream)
    except (OSError, ValueError):
        return None
    return marker if marker.get("dest") == place.dest else None


def noted(marker: Optional[Dict[str, Any]]) -> Dict[str, Tuple[int, int, str]]:
    """Return size, mtime and SHA-256 of the files that the marker knows, by path."""
    files = marker["files"] if marker else []
    return {path: (size, mtime, sha256) for path, size, mtime, sha256 in files}


def write_marker(
    place: Place,
    identity: str,
    notes: List[Tuple[str, int, int, str]],
    path: str,
    new: str,
    links: Sequence[str] = (),
) -> None:
    """Note, in one step, what is complete.

    Args:
        path: the marker, or one that is to become it.
        new: name of the folder that is put in place.
        links: that lead to the data from elsewhere.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    marker = {
        "dest": place.dest,
        "identity": identity,
        "new": new,
        "files": notes,
        "links": list(links),
    }
    with open(path + ".new", "w", encoding="utf-8") as stream:
        json.dump(marker, stream)
    os.replace(path + ".new", path)
