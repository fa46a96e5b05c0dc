"""Taking: making files of what came, and putting complete data in place in one step."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, Dict, List, Set

from . import keras
from .files import flush, link, regular, remove, sha256_of, walk
from .places import DataError, File, Manifest, Place, noted, read_marker, write_marker
from .unpacking import unpack


def take(manifest: Manifest, root: str, batch: List[int], last: bool) -> Dict[str, Any]:
    """Verify the files that came, and with the last of them put the data in place.

    Raises:
        DataError: a file is not as it should be, or the data cannot be put in place.
    """
    place = Place(root, manifest.name, manifest.dest)
    split([manifest.files[number] for number in batch], place)
    if last:
        finish(manifest, place)
    return {"path": place.target}


def split(files: List[File], place: Place) -> None:
    """Make files of what came, from the last one to the first, so that a break loses nothing.

    Raises:
        DataError: a hash differs; what came is then removed.
    """
    if not files:
        return
    size = os.path.getsize(place.part) if os.path.exists(place.part) else 0
    wanted = sum(file.size for file in files)
    if size != wanted:
        raise DataError(
            "%d bytes of %s came in place of %d. Does another run bring it to this host? Let it"
            " end, then run again." % (size, place.name, wanted)
        )
    if not wanted:
        open(place.part, "ab").close()
    for file in reversed(files):
        size -= file.size
        path = os.path.join(place.tree, file.path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        whole = file is files[0]  # then nothing else is left in it, and it need not be copied
        found = sha256_of(place.part) if whole else copy_tail(place.part, size, path + ".new")
        if found != file.sha256:
            os.unlink(place.part)
            raise DataError(
                "%s of %s came with SHA-256 %s, expected %s. What came was removed: run again; if"
                " that does not help, look at the disks and the memory of both machines."
                % (file.path, place.name, found, file.sha256)
            )
        os.chmod(place.part if whole else path + ".new", 0o644)
        os.replace(place.part if whole else path + ".new", path)
        if not whole:
            os.truncate(place.part, size)


def copy_tail(source: str, offset: int, target: str) -> str:
    """Copy a file from an offset on and return the SHA-256 of that."""
    digest = hashlib.sha256()
    with open(source, "rb") as stream, open(target, "wb") as out:
        stream.seek(offset)
        for data in iter(lambda: stream.read(2**20), b""):
            digest.update(data)
            out.write(data)
    return digest.hexdigest()


def finish(manifest: Manifest, place: Place) -> None:
    """Put complete data in place in one step, and note it.

    Raises:
        DataError: an archive cannot be unpacked.
    """
    marker = read_marker(place)
    known = noted(marker)
    hashes = {file.path: file.sha256 for file in manifest.files}
    new = place.tree
    if manifest.unpack:
        remove(place.unpacked)
        new = place.unpacked
        try:
            unpack(os.path.join(place.tree, manifest.files[0].path), manifest.unpack, new)
        except BaseException:
            remove(new)  # it may have filled the disk
            raise
        hashes = {path: sha256_of(os.path.join(new, path)) for path in regular(new)}
    elif os.path.isdir(place.target):
        for file in manifest.files:
            path = os.path.join(new, file.path)
            if not os.path.exists(path):
                link(os.path.join(place.target, file.path), path)
    if os.path.isdir(place.target):
        for path in foreign(place, manifest, set(known)):
            if not os.path.lexists(os.path.join(new, path)):
                link(os.path.join(place.target, path), os.path.join(new, path))
    notes = []
    for path, sha256 in hashes.items():
        found = os.stat(os.path.join(new, path))
        notes.append((path, found.st_size, found.st_mtime_ns, sha256))
    remove(place.old)
    os.makedirs(os.path.dirname(place.target), exist_ok=True)
    links = list(keras.paths(place, manifest.keras))
    write_marker(place, manifest.identity, notes, place.next_marker, os.path.basename(new), links)
    flush(place.root)
    if os.path.isdir(place.target):
        os.rename(place.target, place.old)
    os.rename(new, place.target)
    os.replace(place.next_marker, place.marker)
    keras.make_links(place, manifest.keras)
    remove(place.staging)


def foreign(place: Place, manifest: Manifest, known: Set[str]) -> List[str]:
    """Return the files at the target that are neither wanted there nor noted as the role's own."""
    wanted = set() if manifest.unpack else {file.path for file in manifest.files}
    return [path for path in walk(place.target) if path not in wanted and path not in known]


def recover(place: Place) -> None:
    """Go on from where a run broke off while it put data in place."""
    if os.path.isdir(place.old) and not os.path.lexists(place.target):
        os.rename(place.old, place.target)
    elif os.path.exists(place.next_marker):
        with open(place.next_marker, encoding="utf-8") as stream:
            new = json.load(stream)["new"]
        if not os.path.isdir(os.path.join(place.staging, new)):
            os.replace(place.next_marker, place.marker)
