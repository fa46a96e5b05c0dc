"""Looking: which of the data are there, as they should be."""

from __future__ import annotations

import os
from typing import Any, Dict, List

from . import keras, mounted
from .files import sha256_of
from .places import DataError, Place, noted, read_marker


def look(
    entries: List[Dict[str, Any]], root: str, verify: bool, check_mode: bool
) -> List[Dict[str, Any]]:
    """Return what is there of each entry, as `look_at` does; mounted data are verified then.

    Raises:
        DataError: something is wrong with data that are mounted.
    """
    found = []
    for entry in entries:
        try:
            seen = look_at(entry, root, verify)
        except DataError:
            # What is to be mounted may be missing in check mode: then it was not mounted for real.
            if not check_mode:
                raise
            seen = {
                "name": entry["name"],
                "path": entry["mounted"],
                "ready": False,
                "why": "no mount",
            }
        if entry.get("mounted") and not seen["ready"] and not check_mode:
            mounted.verify_mounted(entry, root)
            seen["ready"] = True
        found.append(seen)
    return found


def look_at(entry: Dict[str, Any], root: str, verify: bool) -> Dict[str, Any]:
    """Return what is there of an entry: ``name``, ``path``, ``ready`` and ``why`` not.

    Raises:
        DataError: it is mounted, and something is wrong with it.
    """
    place = Place(root, entry["name"], entry["dest"])
    path = entry.get("mounted") or place.target
    result = {"name": entry["name"], "path": path, "ready": False}
    if entry.get("mounted"):
        mounted.check_mounted(entry["name"], path)
        if not entry.get("sha256"):
            return dict(result, ready=True, why="")
    marker = read_marker(place)
    if marker is None:
        return dict(result, why="it was not brought yet")
    if marker["identity"] != entry["identity"]:
        return dict(result, why="other data are there")
    why = differs(path, marker, verify)
    for link, target in keras.paths(place, entry.get("keras", {})).items():
        if not keras.leads_to(link, target):
            why = why or "%s does not lead to it" % link
    return dict(result, ready=not why, why=why)


def differs(folder: str, marker: Dict[str, Any], verify: bool) -> str:
    """Return what differs from what the marker knows; an empty string for nothing."""
    for path, (size, mtime, sha256) in noted(marker).items():
        full = os.path.join(folder, path)
        try:
            found = os.stat(full)
        except (FileNotFoundError, NotADirectoryError):
            return "%s is gone" % full
        if (found.st_size, found.st_mtime_ns) != (size, mtime):
            return "%s was changed" % full
        if verify and sha256_of(full) != sha256:
            return "%s has another content than SHA-256 %s" % (full, sha256)
    return ""
