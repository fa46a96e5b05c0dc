"""Data on this host: which files they are, their hashes, and the notes of what was placed."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import stat
import subprocess
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

#: Folder below the root for notes and for what is under way.
STATE = ".training_data"
#: Seconds that a mounted filesystem may take to answer, and bytes that are left free.
ANSWER_LIMIT_S, RESERVE = 5.0, 16 * 10**6
Notes = Dict[str, Tuple[int, int, str]]


class DataError(Exception):
    """What is wrong, with the remedy; the module's ``msg``."""


class Place:
    """Where the data of an entry lie: at last, and on their way."""

    def __init__(self, root: str, name: str, dest: str) -> None:
        self.root, self.name, self.dest = root, name, dest
        self.target = os.path.join(root, dest)
        self.marker = os.path.join(root, STATE, name + ".json")
        self.staging = os.path.join(root, STATE, name)
        self.tree = os.path.join(self.staging, "tree")
        self.unpacked = os.path.join(self.staging, "unpacked")
        self.next_marker = os.path.join(self.staging, "marker.json")
        self.old = os.path.join(self.staging, "old")


def sha256_of(path: str, opened: Any = open) -> str:
    """Return the SHA-256 of a file, or of what ``opened`` reads in it."""
    digest = hashlib.sha256()
    with opened(path, "rb") as stream:
        for data in iter(lambda: stream.read(2**20), b""):
            digest.update(data)
    return digest.hexdigest()


def content_of(path: str) -> str:
    """Return the SHA-256 of what a .gz file holds; an empty string if it is none."""
    try:
        return sha256_of(path, gzip.open)
    except (OSError, EOFError):
        return ""


def tree_hash(hashes: Mapping[str, str]) -> str:
    """Return the hash of a folder: of the lines that ``sha256sum`` prints, sorted by path."""
    digest = hashlib.sha256()
    for path in sorted(hashes, key=os.fsencode):
        digest.update(b"%s  %s\n" % (hashes[path].encode(), os.fsencode(path)))
    return digest.hexdigest()


def walk(folder: str) -> Iterator[str]:
    """Yield the paths below a folder of all that is no folder."""

    def stop(error: OSError) -> None:
        raise error

    for current, folders, names in os.walk(folder, onerror=stop):
        links = [name for name in folders if os.path.islink(os.path.join(current, name))]
        for name in names + links:
            yield os.path.relpath(os.path.join(current, name), folder)


def link(source: str, target: str) -> None:
    """Have a file in a second place without a copy, where the filesystem can."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def read_marker(place: Place) -> Dict[str, Any]:
    """Return what was noted when the data were placed; nothing without, or for another place."""
    try:
        with open(place.marker, encoding="utf-8") as stream:
            marker: Dict[str, Any] = json.load(stream)
    except (OSError, ValueError):
        return {}
    return marker if marker.get("dest") == place.dest else {}


def noted(marker: Dict[str, Any]) -> Notes:
    """Return size, time and SHA-256 of the files that a marker knows."""
    return {path: (size, mtime, digest) for path, size, mtime, digest in marker.get("files", [])}


def write_marker(path: str, marker: Dict[str, Any]) -> None:
    """Note, in one step, what is complete."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as stream:
        json.dump(marker, stream)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(path + ".new", path)


def notes_of(folder: str, hashes: Mapping[str, str]) -> List[Tuple[str, int, int, str]]:
    """Return what is noted of files."""
    found = ((path, os.stat(os.path.join(folder, path)), digest) for path, digest in hashes.items())
    return [(path, stat.st_size, stat.st_mtime_ns, digest) for path, stat, digest in found]


def differs(folder: str, path: str, note: Optional[Tuple[int, int, str]], verify: bool) -> str:
    """Return how a file differs from what is noted of it; an empty string if it does not."""
    full = os.path.join(folder, path)
    try:
        found = os.stat(full)
    except (FileNotFoundError, NotADirectoryError):
        return "%s is missing" % full
    if (
        note is None
        or not stat.S_ISREG(found.st_mode)
        or (found.st_size, found.st_mtime_ns) != note[:2]
    ):
        return "%s was changed" % full
    if verify and sha256_of(full) != note[2]:
        return "%s has another content than SHA-256 %s" % (full, note[2])
    return ""


def foreign(place: Place, wanted: Mapping[str, Any], known: Notes) -> List[str]:
    """Return the files at the target that are neither wanted nor were placed by the role."""
    return [path for path in walk(place.target) if path not in wanted and path not in known]


def check_target(place: Place, wanted: Mapping[str, Any], marker: Dict[str, Any]) -> None:
    """Raise DataError where the data's place holds what must not be replaced."""
    target = place.target
    remedy = (
        "Move it away, or give the data another place (dest of %r in training_data)" % place.name
    )
    if os.path.lexists(target) and (os.path.islink(target) or not os.path.isdir(target)):
        raise DataError("%s is no folder. %s." % (target, remedy))
    if os.path.ismount(target):
        raise DataError(
            "%s is a mount point, which cannot be replaced in one step. Set training_data_root to a"
            " folder on it, or name data that are on it already with 'mounted'." % target
        )
    others = foreign(place, wanted, {}) if os.path.isdir(target) and not marker else []
    if others:
        raise DataError(
            "%s was not placed by this role and has %d file(s) that are not of these data, such as"
            " %s. %s." % (target, len(others), min(others), remedy)
        )


def check_space(place: Place, size: int) -> None:
    """Raise DataError where the data would fill the disk."""
    folder = place.root
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    disk = os.statvfs(folder)
    have, need = disk.f_bavail * disk.f_frsize, size + RESERVE
    if have < need:
        raise DataError(
            "Too little space for %s: the filesystem of %s has %d MB free, %d MB are needed. Free"
            " some, or set training_data_root to a folder on another filesystem."
            % (place.name, folder, have // 10**6, need // 10**6 + 1)
        )


def mount_point_of(path: str, table: str = "/proc/mounts") -> str:
    """Return the mount point that a path lies on."""
    with open(table, encoding="utf-8", errors="replace") as stream:
        points = [line.split()[1].replace("\\040", " ") for line in stream]
    path = os.path.realpath(path)
    inside = [p for p in points if path == p or path.startswith(p.rstrip("/") + "/")]
    return max(inside, key=len, default="/")


def check_mounted(name: str, path: str) -> None:
    """Raise DataError where data that are said to be mounted are not."""
    remedy = (
        "Mount it (training_host_nfs does), or correct 'mounted' of %r in training_data." % name
    )
    # A process that asks a dead NFS server may outlive its kill: it is not waited for.
    asking = subprocess.Popen(
        ["stat", "--file-system", "--", path], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        asking.wait(ANSWER_LIMIT_S)
    except subprocess.TimeoutExpired:
        asking.kill()
        raise DataError(
            "%s does not answer within %.0f s. %s" % (path, ANSWER_LIMIT_S, remedy)
        ) from None
    if asking.returncode:
        assert asking.stderr is not None
        reason = asking.stderr.read().decode(errors="replace").strip().rpartition(": ")[2]
        raise DataError("%s: %s. %s" % (path, reason, remedy))
    if mount_point_of(path) == "/":
        raise DataError(
            "%s is a folder of this host's own disk: nothing is mounted. %s" % (path, remedy)
        )
    if not os.listdir(path):
        raise DataError("%s is mounted, but empty. %s" % (path, remedy))
