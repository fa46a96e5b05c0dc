"""Planning: what has to be sent, and whether there is a place and room for it."""

from __future__ import annotations

import os
import stat
from typing import Any, Dict, List, Optional, Tuple

from . import shared
from .files import sha256_of, walk
from .places import DataError, File, Manifest, Place, noted, read_marker
from .taking import foreign, recover

#: Room that is left free beside the data, in bytes.
RESERVE = 16 * 10**6


def plan(manifest: Manifest, root: str, verify: bool, check_mode: bool) -> Dict[str, Any]:
    """Find out what has to be sent, and prepare the folders for it.

    Raises:
        DataError: the data cannot come here.
    """
    place = Place(root, manifest.name, manifest.dest)
    if not check_mode:
        recover(place)
    marker = read_marker(place)
    check_target(place, manifest, marker)
    missing = find_missing(place, manifest, {} if verify else noted(marker))
    hashes = part_hashes(place.part)
    check_space(place, manifest, missing, sum(size for size, _ in hashes))
    if not check_mode:
        os.makedirs(place.tree, exist_ok=True)
        wanted = {file.path for file in manifest.files}
        for path in list(walk(place.tree)):
            if path not in wanted:
                os.unlink(os.path.join(place.tree, path))
    return {"missing": missing, "part": place.part, "part_hashes": hashes, "path": place.target}


def check_target(place: Place, manifest: Manifest, marker: Optional[Dict[str, Any]]) -> None:
    """Raise DataError where the data's place holds what must not be replaced."""
    target = place.target
    if not os.path.lexists(target):
        return
    remedy = (
        "Move it away, or give the data another place (dest of %r in training_data)" % place.name
    )
    if os.path.islink(target) or not os.path.isdir(target):
        raise DataError("%s is no folder. %s." % (target, remedy))
    if os.path.ismount(target):
        raise DataError(
            "%s is a mount point, which cannot be replaced in one step. Set training_data_root to a"
            " folder on it, or name data that are on it already with 'mounted'." % target
        )
    if marker is None:
        others = foreign(place, manifest, set())
        if others:
            raise DataError(
                "%s was not made by this role and has %d file(s) that are not of these data, such"
                " as %s. %s." % (target, len(others), min(others), remedy)
            )


def find_missing(
    place: Place, manifest: Manifest, known: Dict[str, Tuple[int, int, str]]
) -> List[int]:
    """Return the numbers of the files that are neither at the target nor have come before."""
    missing = []
    for number, file in enumerate(manifest.files):
        in_place = not manifest.unpack and intact(
            os.path.join(place.target, file.path), file, known
        )
        if not in_place and not intact(os.path.join(place.tree, file.path), file, {}):
            missing.append(number)
    return missing


def intact(path: str, file: File, known: Dict[str, Tuple[int, int, str]]) -> bool:
    """Whether a path has the content of a file; what is noted is not read again."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISREG(found.st_mode) or found.st_size != file.size:
        return False
    if known.get(file.path) == (found.st_size, found.st_mtime_ns, file.sha256):
        return True
    return sha256_of(path) == file.sha256


def part_hashes(path: str) -> List[Tuple[int, str]]:
    """Return size and SHA-256 of each chunk that has come and is in no file yet."""
    try:
        size = os.path.getsize(path)
    except FileNotFoundError:
        return []
    hashes = []
    for offset in range(0, size, shared.CHUNK):
        length = min(shared.CHUNK, size - offset)
        hashes.append((length, sha256_of(path, length, offset)))
    return hashes


def check_space(place: Place, manifest: Manifest, missing: List[int], came: int) -> None:
    """Raise DataError where the data would fill the disk.

    Args:
        came: bytes of the missing files that lie on the disk already.
    """
    sizes = [manifest.files[number].size for number in missing]
    # Small files come together and are then written one by one: one more of them at a time.
    twice = (
        max((size for size in sizes if size <= shared.BATCH), default=0) if len(sizes) > 1 else 0
    )
    need = max(0, sum(sizes) - came) + twice + manifest.unpacked_bytes + RESERVE
    folder = nearest(place.root)
    disk = os.statvfs(folder)
    have = disk.f_bavail * disk.f_frsize
    if have < need:
        raise DataError(
            "Too little space for %s: the filesystem of %s has %d MB free, %d MB are needed. Free"
            " %d MB, or set training_data_root to a folder on another filesystem."
            % (place.name, folder, have // 10**6, need // 10**6 + 1, (need - have) // 10**6 + 1)
        )
    files = len(missing) + manifest.unpacked_files + 16
    if disk.f_files and disk.f_favail < files:
        raise DataError(
            "Too few inodes for %s: the filesystem of %s has %d free, %d are needed. Set"
            " training_data_root to a folder on another filesystem, or bring the data as one"
            " archive with 'unpack: false'." % (place.name, folder, disk.f_favail, files)
        )


def nearest(path: str) -> str:
    """Return the path, or the nearest folder above it that is there."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path
