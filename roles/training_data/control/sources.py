"""What is on this machine: the sources, read, hashed and compared once in a run of Ansible."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import json
import os
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail

from roles.training_data.control.datasets import DATASETS
from roles.training_data.control.entries import Entry
from roles.training_data.control.hashes import Hashes, content_hash
from roles.training_data.module_utils.data_setup.shared import tree_hash


@dataclass(frozen=True)
class File:
    """A file of the data: where it is here, its path among the data, size and SHA-256."""

    source: str
    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Source:
    """What an entry has to bring."""

    sha256: str
    files: list[File]
    unpacked_bytes: int = 0
    unpacked_files: int = 0


class Sources:
    """The sources of this machine; each is read once in a run of Ansible, for all hosts."""

    def __init__(self, run_folder: Path, notes_folder: Path) -> None:
        self._run_folder = run_folder
        self._notes_folder = notes_folder

    def get(self, entry: Entry) -> Source:
        """Return what an entry brings.

        Raises:
            AnsibleActionFail: it is not there, or not what was asked for.
        """
        key = hashlib.sha256(repr(entry).encode()).hexdigest()[:16]
        noted = self._run_folder / f"training_data-{key}.json"
        with (self._run_folder / f"training_data-{key}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not noted.exists():
                new = noted.with_suffix(".new")
                new.write_text(json.dumps(self._read(entry)), encoding="utf-8")
                new.replace(noted)
        data = json.loads(noted.read_text(encoding="utf-8"))
        if "error" in data:
            raise AnsibleActionFail(f"training_data {entry.name!r}: {data['error']}")
        return Source(**{**data, "files": [File(**file) for file in data["files"]]})

    def _read(self, entry: Entry) -> dict[str, Any]:
        key = hashlib.sha256(str(entry.src).encode()).hexdigest()[:16]
        hashes = Hashes(self._notes_folder / f"{key}.json")
        try:
            source = read_source(entry, hashes)
        except (ValueError, OSError) as error:
            return {"error": str(error)}
        hashes.save()
        return asdict(source)


def read_source(entry: Entry, hashes: Hashes) -> Source:
    """Return what an entry brings, with all of it hashed and compared.

    Raises:
        ValueError: it is not there, or not what was asked for.
    """
    assert entry.src is not None
    if not entry.src.exists():
        raise ValueError(f"src is {entry.src}, which is not there: correct it, or bring the file.")
    if entry.dataset:
        files = read_dataset(entry, hashes)
    elif entry.src.is_dir():
        files = [
            File(str(entry.src / path), path, *hashes.of(str(entry.src / path)))
            for path in walk(str(entry.src))
        ]
        if not files:
            raise ValueError(f"the folder {entry.src} is empty.")
        if entry.unpack:
            raise ValueError(f"{entry.src} is a folder: leave unpack out, or set it to false.")
    else:
        files = [File(str(entry.src), entry.src.name, *hashes.of(str(entry.src)))]
    whole = (
        files[0].sha256
        if len(files) == 1 and entry.src.is_file()
        else tree_hash({file.path: file.sha256 for file in files})
    )
    if not entry.dataset and entry.src.is_file() and not entry.sha256:
        raise ValueError(
            f"an archive or file needs sha256. Take it from where {entry.src.name} is published;"
            f" this copy has {whole}."
        )
    if entry.sha256 and whole != entry.sha256:
        hint = "a folder's hash is described in the role's README" if entry.src.is_dir() else ""
        raise ValueError(
            f"{entry.src} has SHA-256 {whole}, expected {entry.sha256}. Bring it to the control"
            f" node again, or correct sha256{hint and f' ({hint})'}."
        )
    return Source(whole, files, *(unpacked_size(entry, files[0]) if entry.unpack else (0, 0)))


def read_dataset(entry: Entry, hashes: Hashes) -> list[File]:
    """Return the files of a known data set, each compared with what is published.

    Raises:
        ValueError: one is missing or another.
    """
    assert entry.src is not None
    published = DATASETS[entry.dataset]
    files = []
    for name, wanted in published.items():
        path = entry.src if entry.src.is_file() and len(published) == 1 else entry.src / name
        if not path.is_file():
            raise ValueError(
                f"{path} is not there: src of {entry.dataset} must have {', '.join(published)}."
            )
        size, found = hashes.of(str(path))
        if found != wanted.sha256:
            content = content_hash(path) if wanted.content else ""
            if content != wanted.content or not content:
                inside = f" (and holds {content}, expected {wanted.content})" if content else ""
                raise ValueError(
                    f"{path} has SHA-256 {found}, expected {wanted.sha256}{inside}: it is not the"
                    f" published file of {entry.dataset}. Bring it to the control node again."
                )
        files.append(File(str(path), name, size, found))
    return sorted(files, key=lambda file: os.fsencode(file.path))


def walk(folder: str) -> Iterator[str]:
    """Yield the paths of all files below a folder, sorted; links are followed.

    Raises:
        ValueError: something cannot be read as a file, or links go round in a circle.
    """

    def stop(error: OSError) -> None:
        raise ValueError(f"{error.filename} cannot be read: {error.strerror}.")

    paths = []
    for current, folders, names in os.walk(folder, onerror=stop, followlinks=True):
        for name in folders:
            full = Path(current, name)
            if full.is_symlink() and Path(current).resolve().is_relative_to(full.resolve()):
                raise ValueError(f"{full} leads to a folder that it is in: remove the link.")
        for name in names:
            full = Path(current, name)
            if "\n" in name or "\\" in name:
                raise ValueError(
                    f"{str(full)!r} has a character in its name that is not supported."
                )
            if not full.is_file():
                raise ValueError(f"{full} is no file (a broken link, a socket?): remove it.")
            paths.append(os.path.relpath(full, folder))
    yield from sorted(paths, key=os.fsencode)


def unpacked_size(entry: Entry, file: File) -> tuple[int, int]:
    """Return bytes and files that come out of an archive.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        if entry.unpack == "zip":
            with zipfile.ZipFile(file.source) as packed:
                sizes = [info.file_size for info in packed.infolist()]
        elif entry.unpack == "tar":
            with tarfile.open(file.source) as packed_tar:
                sizes = [member.size for member in packed_tar]
        else:
            with gzip.open(file.source) as stream:
                sizes = [sum(len(data) for data in iter(lambda: stream.read(2**20), b""))]
    except (tarfile.TarError, zipfile.BadZipFile, OSError, EOFError) as error:
        raise ValueError(
            f"{file.source} cannot be unpacked: {error}. Set 'unpack: false' to have it as it is."
        ) from error
    return sum(sizes), len(sizes)
