"""Whether files and folders are there as they are wanted."""

from __future__ import annotations

import os
import pwd
import stat
from typing import Any, Dict, List


def for_user(wanted: Dict[str, Any], user: str) -> Dict[str, Any]:
    """Return what is wanted of a path, with the user's name in it."""
    named = {
        name: wanted[name].replace("{user}", user) for name in ("path", "owner") if wanted.get(name)
    }
    return dict(wanted, **named)


def check_path(wanted: Dict[str, Any], folder: bool) -> List[str]:
    """Return what differs of a file or folder.

    Raises:
        OSError: it cannot be read.
    """
    path = os.path.expanduser(wanted["path"])
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return ["%s is not there" % path]
    if stat.S_ISDIR(found.st_mode) != folder:
        return ["%s is %s folder" % (path, "no" if folder else "a")]
    differences = []
    if wanted.get("mode") and stat.S_IMODE(found.st_mode) != int(str(wanted["mode"]), 8):
        differences.append("%s has mode %04o" % (path, stat.S_IMODE(found.st_mode)))
    if wanted.get("owner"):
        try:
            owner = pwd.getpwuid(found.st_uid).pw_name
        except KeyError:
            owner = str(found.st_uid)
        if owner != wanted["owner"]:
            differences.append("%s belongs to %s" % (path, owner))
    if folder or (wanted.get("content") is None and not wanted.get("lines")):
        return differences
    with open(path, "rb") as stream:
        content = stream.read()
    if wanted.get("content") is not None and content != wanted["content"].encode():
        differences.append("%s has another content" % path)
    there = {line.strip() for line in content.decode(errors="replace").splitlines()}
    missing = [line for line in wanted.get("lines") or [] if line.strip() not in there]
    if missing:
        differences.append("%s lacks %d line(s)" % (path, len(missing)))
    return differences
