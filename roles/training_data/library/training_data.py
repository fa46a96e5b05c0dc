#!/usr/bin/python
"""Ansible module: the host's half of bringing training data.

Standard library only, Python 3.8 and newer: it runs under the host's plain python3.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: training_data
short_description: Have training data on a host, verified by hash
description:
  - Brings folders, archives and known data sets from the control node to C(ROOT/DEST), once. The
    action plugin of the same name reads the sources and sends what is missing; this module looks,
    plans, verifies, unpacks and puts in place.
  - Data lie beside their place until they are complete and verified; then one rename puts them
    there. What a broken run has sent is used by the next one.
  - Files that others put into the folder stay.
options:
  root:
    description: Folder of all data on the host. C(~) is expanded there.
    type: path
    required: true
  entries:
    description:
      - The data. Each has C(name); one of C(src), a folder or file on the control node, and
        C(mounted), a folder on the host that is mounted there; and as needed C(dataset), C(sha256),
        C(dest) and C(unpack). The action plugin replaces them by what it found.
    type: list
    elements: dict
    default: []
  verify:
    description: Whether data that are there are read and compared with their hashes.
    type: bool
    default: false
  step:
    description:
      - What to do. V(look) compares and has the action plugin bring what is missing, for which it
        uses V(plan) and V(take). V(remove) removes all files that were ever brought into O(root).
    type: str
    choices: [look, plan, take, remove]
    default: look
  manifest:
    description: File on the host that tells what to bring. Set by the action plugin.
    type: path
  batch:
    description: Numbers of the files that came, in O(manifest). Set by the action plugin.
    type: list
    elements: int
    default: []
  last:
    description: Whether all files are there now. Set by the action plugin.
    type: bool
    default: false
attributes:
  check_mode:
    description: Reads the sources, compares, counts what would be sent, and changes nothing.
    support: full
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Bring a folder and an archive
  training_data:
    root: ~/train/data
    entries:
      - name: digits
        src: /srv/digits
      - name: cifar-10
        src: /srv/archives/cifar-10-python.tar.gz
        dataset: cifar-10-python
"""

RETURN = r"""
paths:
  description: Where each of the data lies on the host, by name.
  type: dict
  returned: success
  sample: {digits: /home/train/train/data/digits}
left:
  description: Folders that have files of others, which were not removed.
  type: list
  elements: str
  returned: when O(step=remove)
brought:
  description: What was brought (in check mode, would be), each with what of it was sent.
  type: list
  elements: dict
  returned: success
  contains:
    name:
      description: Name of the entry.
      type: str
      returned: always
    bytes:
      description: Size of what was missing on the host.
      type: int
      returned: always
    sent:
      description: Bytes sent. Less than C(bytes) where a broken run had sent some.
      type: int
      returned: always
"""

import ctypes
import gzip
import hashlib
import json
import lzma
import os
import shutil
import stat
import subprocess
import tarfile
import time
import zipfile
import zlib
from typing import IO, Any, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple, Union

from ansible.module_utils.basic import AnsibleModule

#: Unit of what is sent and of the hashes by which a broken transfer is taken up, in bytes. The
#: action plugin has the same.
CHUNK = 16 * 2**20
#: Files are sent together up to this size, in bytes; a larger one comes alone. The action plugin
#: has the same.
BATCH = 256 * 2**20
#: Room that is left free beside the data, in bytes.
RESERVE = 16 * 10**6
MOUNTS = "/proc/mounts"
#: Longest wait for a mounted filesystem to answer, in seconds.
ANSWER_LIMIT_S = 10.0
#: What reading a broken archive raises; RuntimeError for a zip file with a password.
BROKEN_ARCHIVE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    RuntimeError,
)
#: Folder for what is under way, in the root.
STATE = ".training_data"


Readable = Union[IO[bytes], gzip.GzipFile]


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
    """

    name: str
    dest: str
    identity: str
    files: List[File]
    unpack: str
    unpacked_bytes: int
    unpacked_files: int


class Place(NamedTuple):
    """Where the data of an entry lie on this host, now and at last."""

    root: str
    name: str
    dest: str

    @property
    def target(self) -> str:
        return os.path.join(self.root, self.dest)

    @property
    def marker(self) -> str:
        return os.path.join(self.root, STATE, self.name + ".json")

    @property
    def staging(self) -> str:
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
        return os.path.join(self.staging, "unpacked")

    @property
    def next_marker(self) -> str:
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


def sha256_of(path: str, limit: Optional[int] = None, offset: int = 0) -> str:
    """Return the SHA-256 of a file, or of ``limit`` bytes from ``offset``."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        stream.seek(offset)
        left = limit
        while left is None or left > 0:
            data = stream.read(2**20 if left is None else min(2**20, left))
            if not data:
                break
            digest.update(data)
            left = None if left is None else left - len(data)
    return digest.hexdigest()


def tree_hash(files: List[File]) -> str:
    """Return the hash of a folder: of the lines that ``sha256sum`` prints, sorted by path."""
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda file: os.fsencode(file.path)):
        digest.update(b"%s  %s\n" % (file.sha256.encode(), os.fsencode(file.path)))
    return digest.hexdigest()


def walk(folder: str) -> Iterator[str]:
    """Yield the paths below a folder of all that is no folder, in no order."""

    def stop(error: OSError) -> None:
        raise error

    for current, folders, names in os.walk(folder, onerror=stop):
        links = [name for name in folders if os.path.islink(os.path.join(current, name))]
        for name in names + links:
            yield os.path.relpath(os.path.join(current, name), folder)


# Looking


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


def look_at(entry: Dict[str, Any], root: str, verify: bool) -> Dict[str, Any]:
    """Return what is there of an entry: ``name``, ``path``, ``ready`` and ``why`` not.

    Raises:
        DataError: it is mounted, and something is wrong with it.
    """
    place = Place(root, entry["name"], entry["dest"])
    mounted = entry.get("mounted")
    path = mounted or place.target
    result = {"name": entry["name"], "path": path, "ready": False}
    if mounted:
        check_mounted(entry["name"], mounted)
        if not entry.get("sha256"):
            return dict(result, ready=True, why="")
    marker = read_marker(place)
    if marker is None:
        return dict(result, why="it was not brought yet")
    if marker["identity"] != entry["identity"]:
        return dict(result, why="other data are there")
    why = differs(path, marker, verify)
    return dict(result, ready=not why, why=why)


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


def silent(path: str, limit_s: float = ANSWER_LIMIT_S) -> str:
    """Return why a path does not answer; an empty string if it does.

    A process that asks a dead NFS server may not end even when it is killed: it is not waited for.
    """
    asking = subprocess.Popen(
        ["stat", "--", path],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + limit_s
    while asking.poll() is None:
        if time.monotonic() > deadline:
            asking.kill()
            return "it does not answer within %.0f s" % limit_s
        time.sleep(0.005)
    assert asking.stderr is not None
    error = asking.stderr.read().decode(errors="replace").strip()
    return error.rpartition(": ")[2] if asking.returncode else ""


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


def verify_mounted(entry: Dict[str, Any], root: str) -> None:
    """Compare data that are mounted with their hash, and note that they are as they should be.

    Raises:
        DataError: they are not.
    """
    path = entry["mounted"]
    files, notes = [], []
    for relative in sorted(walk(path)):
        full = os.path.join(path, relative)
        found = os.stat(full)
        if stat.S_ISREG(found.st_mode):
            files.append(File(relative, found.st_size, sha256_of(full)))
            notes.append((relative, found.st_size, found.st_mtime_ns, files[-1].sha256))
    found_hash = tree_hash(files)
    if found_hash != entry["sha256"]:
        raise DataError(
            "%s (%d files) has the hash %s, expected %s. Compare it with its source, or correct"
            " sha256 of %r in training_data."
            % (path, len(files), found_hash, entry["sha256"], entry["name"])
        )
    place = Place(root, entry["name"], entry["dest"])
    write_marker(place, entry["identity"], notes, place.marker, "")


# Planning


def foreign(place: Place, manifest: Manifest, known: Set[str]) -> List[str]:
    """Return the files at the target that are neither wanted there nor noted as the role's own."""
    wanted = set() if manifest.unpack else {file.path for file in manifest.files}
    return [path for path in walk(place.target) if path not in wanted and path not in known]


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
    for offset in range(0, size, CHUNK):
        length = min(CHUNK, size - offset)
        hashes.append((length, sha256_of(path, length, offset)))
    return hashes


def nearest(path: str) -> str:
    """Return the path, or the nearest folder above it that is there."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def check_space(place: Place, manifest: Manifest, missing: List[int], came: int) -> None:
    """Raise DataError where the data would fill the disk.

    Args:
        came: bytes of the missing files that lie on the disk already.
    """
    sizes = [manifest.files[number].size for number in missing]
    # Small files come together and are then written one by one: one more of them at a time.
    twice = max((size for size in sizes if size <= BATCH), default=0) if len(sizes) > 1 else 0
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


# Taking


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
    write_marker(place, manifest.identity, notes, place.next_marker, os.path.basename(new))
    flush(place.root)
    if os.path.isdir(place.target):
        os.rename(place.target, place.old)
    os.rename(new, place.target)
    os.replace(place.next_marker, place.marker)
    remove(place.staging)


def regular(folder: str) -> Iterator[str]:
    """Yield the paths of the regular files below a folder."""
    for path in walk(folder):
        if stat.S_ISREG(os.lstat(os.path.join(folder, path)).st_mode):
            yield path


def link(source: str, target: str) -> None:
    """Have a file in a second place without a copy, where the filesystem can."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def remove(path: str) -> None:
    """Remove a folder with all that is in it, if it is there."""
    if os.path.isdir(path):
        shutil.rmtree(path)


def flush(path: str) -> None:
    """Have all of a filesystem on disk, before a marker says that it is there."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        ctypes.CDLL(None).syncfs(descriptor)
    finally:
        os.close(descriptor)


def write_marker(
    place: Place, identity: str, notes: List[Tuple[str, int, int, str]], path: str, new: str
) -> None:
    """Note, in one step, what is complete.

    Args:
        path: the marker, or one that is to become it.
        new: name of the folder that is put in place.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    marker = {"dest": place.dest, "identity": identity, "new": new, "files": notes}
    with open(path + ".new", "w", encoding="utf-8") as stream:
        json.dump(marker, stream)
    os.replace(path + ".new", path)


def recover(place: Place) -> None:
    """Go on from where a run broke off while it put data in place."""
    if os.path.isdir(place.old) and not os.path.lexists(place.target):
        os.rename(place.old, place.target)
    elif os.path.exists(place.next_marker):
        with open(place.next_marker, encoding="utf-8") as stream:
            new = json.load(stream)["new"]
        if not os.path.isdir(os.path.join(place.staging, new)):
            os.replace(place.next_marker, place.marker)


# Unpacking


def unpack(archive: str, kind: str, folder: str) -> None:
    """Unpack an archive, or a .gz file, into a new folder.

    Raises:
        DataError: it is none, or wants to write outside of the folder.
    """
    os.makedirs(folder)
    name = os.path.basename(archive)
    try:
        if kind == "zip":
            with zipfile.ZipFile(archive) as packed:
                for info in packed.infolist():
                    if not info.is_dir():
                        with packed.open(info) as stream:
                            write_file(stream, inside(folder, info.filename))
        elif kind == "tar":
            with tarfile.open(archive) as packed_tar:
                for member in packed_tar:
                    unpack_member(packed_tar, member, folder)
        else:
            with gzip.GzipFile(archive) as unzipped:
                write_file(unzipped, inside(folder, name[:-3]))
    except BROKEN_ARCHIVE as error:
        raise DataError(
            "%s cannot be unpacked: %s. Set 'unpack: false' to have it as it is." % (name, error)
        ) from None


def unpack_member(packed: tarfile.TarFile, member: tarfile.TarInfo, folder: str) -> None:
    """Unpack one member of a tar archive.

    Raises:
        DataError: it is no file, folder or link, or wants to write outside of the folder.
    """
    path = inside(folder, member.name)
    if member.isdir():
        os.makedirs(path, exist_ok=True)
    elif member.issym():
        os.makedirs(os.path.dirname(path), exist_ok=True)
        where = os.path.relpath(os.path.realpath(os.path.dirname(path)), os.path.realpath(folder))
        inside(folder, os.path.join(where, member.linkname))
        os.symlink(member.linkname, path)
    else:
        stream = packed.extractfile(member)
        if stream is None:
            raise DataError("%s in the archive is neither file nor folder nor link" % member.name)
        with stream:
            write_file(stream, path)


def inside(folder: str, name: str) -> str:
    """Return the path of a member below the folder.

    Raises:
        DataError: it is outside.
    """
    path = os.path.normpath(os.path.join(folder, name))
    folder = os.path.normpath(folder)
    parent = os.path.realpath(os.path.dirname(path))
    top = os.path.realpath(folder)
    # A link that was unpacked before may lead out, too.
    within = path.startswith(folder + "/") and (parent + "/").startswith(top + "/")
    if path != folder and not within:
        raise DataError(
            "%s in the archive points outside of the data's folder: the archive is broken or"
            " malicious. Nothing of it was put in place." % name
        )
    return path


def write_file(stream: Readable, path: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as out:
        shutil.copyfileobj(stream, out, 2**20)


# Removing


def remove_all(root: str, check_mode: bool) -> Dict[str, Any]:
    """Remove all files that were brought, by the notes of them; files of others stay."""
    state, left, changed = os.path.join(root, STATE), [], os.path.isdir(os.path.join(root, STATE))
    for note in sorted(os.listdir(state)) if changed and not check_mode else []:
        if not note.endswith(".json"):
            continue
        with open(os.path.join(state, note), encoding="utf-8") as stream:
            marker = json.load(stream)
        if not marker["new"]:  # mounted
            continue
        target = os.path.join(root, marker["dest"])
        for path in noted(marker):
            if os.path.lexists(os.path.join(target, path)):
                os.unlink(os.path.join(target, path))
        if os.path.isdir(target):
            for current, _, _ in os.walk(target, topdown=False):
                if not os.listdir(current):
                    os.rmdir(current)
        if os.path.isdir(target):
            left.append(target)
    if changed and not check_mode:
        shutil.rmtree(state)
        if not os.listdir(root):
            os.rmdir(root)
    return {"changed": changed, "left": left}


def run(params: Dict[str, Any], check_mode: bool) -> Dict[str, Any]:
    """Return the module's result.

    Raises:
        DataError: with what is wrong.
        OSError: a file cannot be read or written.
    """
    root = os.path.abspath(os.path.expanduser(params["root"]))
    if params["step"] == "remove":
        return remove_all(root, check_mode)
    if params["step"] == "plan":
        return plan(read_manifest(params["manifest"]), root, params["verify"], check_mode)
    if params["step"] == "take":
        manifest = read_manifest(params["manifest"])
        return take(manifest, root, params["batch"], params["last"])
    found = []
    for entry in params["entries"]:
        try:
            seen = look_at(entry, root, params["verify"])
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
            verify_mounted(entry, root)
            seen["ready"] = True
        found.append(seen)
    return {"found": found}


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "entries": {"type": "list", "elements": "dict", "default": []},
            "verify": {"type": "bool", "default": False},
            "step": {
                "type": "str",
                "choices": ["look", "plan", "take", "remove"],
                "default": "look",
            },
            "manifest": {"type": "path"},
            "batch": {"type": "list", "elements": "int", "default": []},
            "last": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**{"changed": False, **run(module.params, module.check_mode)})
    except DataError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(
            msg="%s. What has come stays under %s and is used by the next run: free space or mend"
            " what the message names, and run again."
            % (error, os.path.join(module.params["root"], STATE))
        )


if __name__ == "__main__":
    main()
