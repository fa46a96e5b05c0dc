"""Unpacks archives from hosts: only regular files, under known names and within limits."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import tarfile
import tempfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from train.host import plain_text

#: Bytes of headers and padding to allow for each member.
_PER_MEMBER = 10_240


class ArchiveError(Exception):
    """An archive was rejected. The message explains why."""


class _Limited:
    """A stream that rejects reads beyond a limit of unpacked bytes."""

    def __init__(self, stream: gzip.GzipFile, limit: int) -> None:
        self._stream, self._left = stream, limit

    def read(self, size: int) -> bytes:
        if size > self._left:
            raise ArchiveError("the archive exceeds its size limit")
        data = self._stream.read(size)
        self._left -= len(data)
        return data


@contextlib.contextmanager
def _opened(archive: Path, limit: int) -> Iterator[tarfile.TarFile]:
    """Open a ``.tar.gz``. Raise ArchiveError if it is broken or unpacks to over ``limit`` bytes."""
    try:
        with gzip.open(archive) as packed:
            stream: Any = _Limited(packed, limit)
            with tarfile.open(fileobj=stream, mode="r|", bufsize=tarfile.RECORDSIZE) as tar:
                yield tar
    except (tarfile.TarError, EOFError, zlib.error, ValueError, gzip.BadGzipFile) as error:
        raise ArchiveError(f"the archive is corrupt: {error}") from error


def unpack(archive: Path, folder: Path, names: Collection[str], limit: int, files: int) -> None:
    """Unpack the folders ``names`` of a ``.tar.gz`` into ``folder``, replacing existing ones.

    A folder that the archive lacks is left as it is. Raise ArchiveError, and change nothing, if the
    archive is broken, unpacks to more than ``limit`` bytes or more than ``files`` files and
    folders, or contains a link, a device or anything outside the folders ``names``.
    """
    room = limit + files * _PER_MEMBER + tarfile.RECORDSIZE
    with tempfile.TemporaryDirectory(
        prefix=".unpacking-", dir=folder, ignore_cleanup_errors=True
    ) as temporary:
        fresh = Path(temporary)
        with _opened(archive, room) as tar:
            left = limit
            for number, member in enumerate(tar):
                left -= member.size
                _check(member, names)
                if left < 0 or member.size < 0:
                    raise ArchiveError(
                        "the files are larger than train_job_results_limit_mb allows"
                    )
                if number >= files:
                    raise ArchiveError(
                        "there are more files than train_job_results_limit_files allows"
                    )
                extract(tar, member, fresh)
        for name in names:
            if (fresh / name).is_dir():
                with contextlib.suppress(FileNotFoundError):
                    (folder / name).rename(fresh / f"{name}.old")  # removed with the fresh folder
                (fresh / name).rename(folder / name)


def extract(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Extract a file or folder into ``folder``, without its owner and special permissions.

    Raise ArchiveError if it would be outside of ``folder``, or is a link or a device.
    """
    place = Path(os.path.realpath(folder / member.name))
    if not place.is_relative_to(folder.resolve()) or not (member.isfile() or member.isdir()):
        raise ArchiveError(
            f"{plain_text.clean(member.name, 200)} is neither a file nor a folder in it"
        )
    if hasattr(tarfile, "data_filter"):
        tar.extract(member, folder, filter="data")
        return
    # Python before 3.11.4, as in Debian 12.
    member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
    member.mode = member.mode & 0o755 | (0o700 if member.isdir() else 0o600)
    tar.extract(member, folder)


def digest(archive: Path, limit: int) -> str:
    """Return the SHA-256 of the file names and contents in a ``.tar.gz``.

    ``script_files.pack`` returns the same hash for the archive that it writes.

    Raise ArchiveError if the archive is broken, unpacks to more than ``limit`` bytes, or contains
    anything other than regular files.
    """
    found = hashlib.sha256()
    with _opened(archive, limit) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isreg() else None
            if content is None:
                raise ArchiveError(
                    f"the archive contains {plain_text.clean(member.name, 200)}, which is not a "
                    "regular file"
                )
            found.update(member.name.encode("utf-8", "surrogateescape") + b"\0")
            while block := content.read(1 << 20):
                found.update(block)
    return found.hexdigest()


def _check(member: tarfile.TarInfo, names: Collection[str]) -> None:
    shown = plain_text.clean(member.name, 200)
    parts = member.name.split("/")
    if parts[0] not in names or {"", ".", ".."} & set(parts) or "\0" in member.name:
        raise ArchiveError(f"the archive contains {shown}, which is not in {' or '.join(names)}")
    if not (member.isdir() or (member.isreg() and len(parts) > 1)):
        raise ArchiveError(
            f"the archive contains {shown}, which is neither a folder nor a file inside one"
        )
