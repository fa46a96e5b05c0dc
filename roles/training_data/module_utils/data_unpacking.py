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

from .data import DataError

#: What reading a broken archive raises; KeyError for a hard link to nothing, RuntimeError for a zip
#: file with a password.
BROKEN_ARCHIVE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    KeyError,
    RuntimeError,
)
#: What leads out of the folder, and what that means.
OUTSIDE = (
    "%s in the archive points outside of the data's folder: the archive is broken or malicious."
    " Nothing of it was put in place."
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
                unpack_tar(packed_tar, folder)
        else:
            with gzip.GzipFile(archive) as unzipped:
                write_file(unzipped, inside(folder, name[:-3]))
    except BROKEN_ARCHIVE as error:
        raise DataError(
            "%s cannot be unpacked: %s. Set 'unpack: false' to have it as it is." % (name, error)
        ) from None


def unpack_tar(packed: tarfile.TarFile, folder: str) -> None:
    """Unpack a tar archive: first files, then links, so that nothing is written through one.

    Raises:
        DataError: a member is no file, folder or link, or wants to be outside of the folder.
    """
    links = {}
    for member in packed:
        path = inside(folder, member.name)
        if member.isdir():
            os.makedirs(path, exist_ok=True)
        elif member.issym():
            links[path] = member
        else:
            stream = packed.extractfile(member)
            if stream is None:
                what = "%s in the archive is neither file nor folder nor link"
                raise DataError(what % member.name)
            with stream:
                write_file(stream, path)
    for path, member in links.items():
        inside(folder, member.name)
        check_link(folder, path, member)
        if os.path.lexists(path):
            raise DataError("%s in the archive is a link and something else, too" % member.name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(member.linkname, path)
    for path, member in links.items():
        check_link(folder, path, member)  # it may lead over others that were made after it


def check_link(folder: str, path: str, member: tarfile.TarInfo) -> None:
    """Raise DataError where a link leads out of the folder, over other links, too."""
    end = os.path.realpath(os.path.join(os.path.dirname(path), member.linkname))
    if not (end + "/").startswith(os.path.realpath(folder) + "/"):
        raise DataError(OUTSIDE % ("the link " + member.name))


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
        raise DataError(OUTSIDE % name)
    return path


def write_file(stream: Readable, path: str) -> None:
    """Write a member to its place."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as out:
        shutil.copyfileobj(stream, out, 2**20)
