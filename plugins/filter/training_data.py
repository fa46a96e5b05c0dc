"""Filters that complete the entries of ``training_data`` and describe their sources."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import re
import zlib
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError

ARCHIVE = re.compile(r"\.(tar|tar\.gz|tgz|tar\.bz2|tar\.xz|zip)$")


def wrong(entry: dict[str, Any], problem: str) -> AnsibleFilterError:
    """Return an error that names an entry."""
    return AnsibleFilterError(f"training_data {entry['name']!r}: {problem}")


def complete(entry: dict[str, Any], folder: str, published: dict[str, Any]) -> dict[str, Any]:
    """Return an entry of ``training_data`` in the form that the role uses, with all keys."""
    src, mounted, dataset = (entry.get(key) or "" for key in ("src", "mounted", "dataset"))
    sha256, keras = (entry.get("sha256") or "").lower(), entry.get("keras", False)
    files = published[dataset]["files"] if dataset else {}
    is_url = bool(re.match("https?://", src))
    unpack = entry.get("unpack", bool(ARCHIVE.search(next(iter(files), src))) and not keras)
    one = {
        "name": str(entry["name"]),
        "src": src if is_url else str(Path(folder, src).expanduser()),
        "url": is_url,
        "mounted": mounted,
        "dataset": dataset,
        "published": files,
        "sha256": sha256,
        "dest": mounted or os.path.normpath(entry.get("dest") or str(entry["name"])),
        "unpack": unpack,
        "keras": published[dataset]["keras"] if keras else {},
        "identity": (f"dataset:{dataset}" if dataset else sha256) + (";unpacked" if unpack else ""),
    }
    if not mounted and not dataset and not sha256:
        one["identity"] = f"listing:{training_data_source(one)['listing']}"
    return one


def training_data_entries(
    entries: list[dict[str, Any]], folder: str, published: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the entries with all keys, see ``complete``.

    Sources with a known hash are not read.
    """
    return [complete(entry, folder, published) for entry in entries]


def training_data_source(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry with its ``files``, their known hashes, and their total size in bytes.

    Raise AnsibleFilterError if a source is missing or wrong.
    """
    known, src = entry["published"], Path(entry["src"])
    if entry["mounted"]:
        return entry
    if entry["url"]:
        name = next(iter(known), entry["src"].split("?")[0].rsplit("/", 1)[-1])
        return {**entry, "files": {name: known.get(name, entry)["sha256"]}, "size": 0}
    if src.is_dir() and not known:
        return {**entry, "folder": f"{src}/", **list_folder(entry, src)}
    sources = {name: src / name if src.is_dir() else src for name in known or [src.name]}
    for path in sources.values():
        if not path.is_file():
            raise wrong(entry, f"{path} does not exist: correct src, or copy the file there.")
    if not known and not entry["sha256"]:
        raise wrong(
            entry, f"sha256 is required for a file: use the hash that is published with {src.name}."
        )
    return {
        **entry,
        "sources": {name: str(path) for name, path in sources.items()},
        "files": {
            name: published_hash(entry, path, known[name]) if known else entry["sha256"]
            for name, path in sources.items()
        },
        "size": sum(path.stat().st_size for path in sources.values()),
    }


def published_hash(entry: dict[str, Any], path: Path, known: dict[str, str]) -> str:
    """Return the SHA-256 of a published file, or of one with the same content compressed again.

    Raise AnsibleFilterError for any other file.
    """
    hashes = [hash_of(path, Path.open)]
    with contextlib.suppress(OSError, EOFError, zlib.error):
        hashes.append(hash_of(path, gzip.open))
    if not set(hashes) & set(known.values()):
        raise wrong(
            entry,
            f"{path} has SHA-256 {', and unpacked '.join(hashes)}, expected"
            f" {', or unpacked '.join(known.values())}: it is not the published file of"
            f" {entry['dataset']}. Download it again.",
        )
    return hashes[0]


def hash_of(path: Path, opened: Any) -> str:
    """Return the SHA-256 of the content that is read from a file."""
    with opened(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def list_folder(entry: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the files below a folder, their total size, and a hash of all sizes and times.

    Links are followed. Raise AnsibleFilterError if one is broken or circular, or if there are no
    files.
    """
    found = {}
    for current, folders, names in os.walk(folder, followlinks=True):
        for path in (Path(current, name) for name in folders + names):
            if path.is_file():
                stat = path.stat()
                found[str(path.relative_to(folder))] = [stat.st_size, stat.st_mtime_ns]
            elif not path.is_dir() or Path(current).resolve().is_relative_to(path.resolve()):
                raise wrong(
                    entry,
                    f"{path} is a broken or circular link, or a socket: remove it from the folder.",
                )
    if entry["unpack"] or not found:
        raise wrong(
            entry, f"{folder} is a folder: it must contain files, and unpack must be false."
        )
    return {
        "files": dict.fromkeys(found, ""),
        "size": sum(size for size, _ in found.values()),
        "listing": hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest(),
    }


class FilterModule:
    """The role's filters."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {f.__name__: f for f in (training_data_entries, training_data_source)}
