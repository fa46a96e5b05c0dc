"""Unpacking archives, without a way out of the data's folder."""

from __future__ import annotations

import gzip
import lzma
import os
import shutil
import tarfile
import zipfile
import zlib
from typing import IO, Union

from .places import DataError

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
Readable = Union[IO[bytes], gzip.GzipFile]


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
    """Write a member to its place."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as out:
        shutil.copyfileobj(stream, out, 2**20)
