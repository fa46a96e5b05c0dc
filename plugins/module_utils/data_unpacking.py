"""Unpacks archives of training data, and writes no member outside of the target folder."""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import zipfile
from typing import Any


class UnpackingError(Exception):
    """The data are missing or wrong. The message becomes the module's ``msg``."""


def unpack(archive: str, folder: str) -> None:
    """Unpack an archive, or a .gz file, into a new folder.

    Raises:
        UnpackingError: the archive is invalid, or a member points outside of the folder. The
        folder is removed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    name = os.path.basename(archive)
    try:
        if name.endswith(".zip"):
            unpack_zip(archive, os.path.realpath(folder))
        elif name.endswith(".gz") and not name.endswith(".tar.gz"):
            write_file(gzip.GzipFile(archive), os.path.join(folder, name[:-3]))
        else:
            unpack_tar(archive, os.path.realpath(folder))
    except Exception as error:  # the libraries raise many kinds
        shutil.rmtree(folder)
        raise UnpackingError(
            "%s cannot be unpacked: %s. Get an intact archive, free space if the disk is full, or"
            " keep the archive packed with 'unpack: false'." % (name, error)
        ) from None


def unpack_zip(archive: str, folder: str) -> None:
    """Unpack a zip archive."""
    with zipfile.ZipFile(archive) as packed:
        for info in packed.infolist():
            if not info.is_dir():
                write_file(packed.open(info), inside(folder, info.filename))


def unpack_tar(archive: str, folder: str) -> None:
    """Unpack a tar archive: files first, then links, so that no file is written through a link."""
    links = {}
    with tarfile.open(archive) as packed:
        for member in packed:
            path = inside(folder, member.name)
            if member.issym():
                links[path] = member
            elif member.isdir():
                os.makedirs(path, exist_ok=True)
            elif member.isfile() or member.islnk():
                write_file(packed.extractfile(member), path)
            else:
                raise UnpackingError(
                    "%s in the archive is not a file, folder or link" % member.name
                )
    for path, member in links.items():
        inside(folder, member.name)
        if os.path.lexists(path):
            raise UnpackingError(
                "%s is in the archive both as a link and as another member" % member.name
            )
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(member.linkname, path)
    for member in links.values():
        inside(folder, member.name)  # checked again, because links may combine


def inside(folder: str, name: str) -> str:
    """Return the path of an archive's member in the folder.

    Raises:
        UnpackingError: the member's name or a link leads outside of the folder.
    """
    path = os.path.normpath(os.path.join(folder, name))
    for place in (path, os.path.realpath(path)):
        if not (place + "/").startswith(folder + "/"):
            raise UnpackingError("%s in the archive points outside the folder of the data" % name)
    return path


def write_file(stream: Any, path: str) -> None:
    """Write a member of an archive to a path."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with stream, open(path, "wb") as out:
        shutil.copyfileobj(stream, out, 2**20)
