"""Data on a filesystem that is mounted on this host: they are only verified."""

from __future__ import annotations

import os
import stat
from typing import Any, Dict

from ansible.module_utils.host_setup.mounts import silent

from .files import sha256_of, walk
from .places import DataError, Place, write_marker
from .shared import tree_hash

MOUNTS = "/proc/mounts"


def check_mounted(name: str, path: str) -> None:
    """Raise DataError where data that are said to be mounted are not."""
    remedy = (
        "Mount it (training_host_nfs does), or correct 'mounted' of %r in training_data." % name
    )
    reason = silent(path)
    if reason:
        raise DataError("%s: %s. %s" % (path, reason, remedy))
    if mount_point_of(path) == "/":
        raise DataError(
            "%s is a folder of this host's own disk: nothing is mounted. %s" % (path, remedy)
        )
    with os.scandir(path) as entries:
        if next(entries, None) is None:
            raise DataError("%s is mounted, but empty. %s" % (path, remedy))


def mount_point_of(path: str, table: str = MOUNTS) -> str:
    """Return the mount point that a path lies on."""
    points = []
    with open(table, encoding="utf-8", errors="replace") as stream:
        for line in stream:
            points.append(line.split()[1].replace("\\040", " "))
    path = os.path.realpath(path)
    inside = [
        point for point in points if path == point or path.startswith(point.rstrip("/") + "/")
    ]
    return max(inside, key=len, default="/")


def verify_mounted(entry: Dict[str, Any], root: str) -> None:
    """Compare data that are mounted with their hash, and note that they are as they should be.

    Raises:
        DataError: they are not.
    """
    path = entry["mounted"]
    hashes, notes = {}, []
    for relative in sorted(walk(path)):
        full = os.path.join(path, relative)
        found = os.stat(full)
        if stat.S_ISREG(found.st_mode):
            hashes[relative] = sha256_of(full)
            notes.append((relative, found.st_size, found.st_mtime_ns, hashes[relative]))
    found_hash = tree_hash(hashes)
    if found_hash != entry["sha256"]:
        raise DataError(
            "%s (%d files) has the hash %s, expected %s. Compare it with its source, or correct"
            " sha256 of %r in training_data."
            % (path, len(hashes), found_hash, entry["sha256"], entry["name"])
        )
    place = Place(root, entry["name"], entry["dest"])
    write_marker(place, entry["identity"], notes, place.marker, "")
