"""What was asked for in ``training_data``: checked, completed, and compared with what is here."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError

#: Known data sets, as their authors publish them: the hash of each file, and of what a .gz holds,
#: by which a copy that was compressed again is known.
DATASETS: dict[str, dict[str, dict[str, str]]] = {
    "fashion-mnist": {
        "train-images-idx3-ubyte.gz": {
            "sha256": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "content": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        },
        "train-labels-idx1-ubyte.gz": {
            "sha256": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "content": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        },
        "t10k-images-idx3-ubyte.gz": {
            "sha256": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "content": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        },
        "t10k-labels-idx1-ubyte.gz": {
            "sha256": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            "content": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        },
    },
    "mnist": {
        "train-images-idx3-ubyte.gz": {
            "sha256": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "content": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        },
        "train-labels-idx1-ubyte.gz": {
            "sha256": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "content": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        },
        "t10k-images-idx3-ubyte.gz": {
            "sha256": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "content": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        },
        "t10k-labels-idx1-ubyte.gz": {
            "sha256": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            "content": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        },
    },
    "mnist-npz": {
        "mnist.npz": {"sha256": "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"},
    },
    "cifar-10-python": {
        "cifar-10-python.tar.gz": {
            "sha256": "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
        },
    },
    "cifar-10-binary": {
        "cifar-10-binary.tar.gz": {
            "sha256": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
        },
    },
}

#: Where below ~/.keras/datasets Keras looks for a data set, and for which of its files.
KERAS: dict[str, dict[str, str]] = {
    "fashion-mnist": {f"fashion-mnist/{name}": name for name in DATASETS["fashion-mnist"]},
    "mnist-npz": {"mnist.npz": "mnist.npz"},
    "cifar-10-python": {
        "cifar-10-batches-py-target_archive": "cifar-10-python.tar.gz",  # Keras 3
        "cifar-10-batches-py.tar.gz": "cifar-10-python.tar.gz",  # Keras 2 (tf-keras)
    },
}

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
SHA256 = re.compile(r"[0-9a-f]{64}")
ARCHIVES = {
    ".tar": "tar",
    ".tar.gz": "tar",
    ".tgz": "tar",
    ".tar.bz2": "tar",
    ".tar.xz": "tar",
    ".zip": "zip",
    ".gz": "gz",
}


def check(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry with all of its keys.

    Raises:
        ValueError: with what is wrong.
    """
    name, src, mounted = (str(entry.get(key) or "") for key in ("name", "src", "mounted"))
    dataset, sha256 = str(entry.get("dataset") or ""), str(entry.get("sha256") or "").lower()
    dest = os.path.normpath(str(entry.get("dest") or name))
    is_url = bool(re.match(r"https?://", src))
    if not NAME.fullmatch(name):
        raise ValueError("name must be letters, digits and ._-, and begin with a letter or digit.")
    if bool(src) == bool(mounted):
        raise ValueError(
            "give either src (here, or http(s)://) or mounted (a folder on the hosts)."
        )
    if dataset and (dataset not in DATASETS or mounted or sha256):
        raise ValueError(f"dataset goes with src, without sha256: {', '.join(DATASETS)}.")
    if sha256 and not SHA256.fullmatch(sha256):
        raise ValueError("sha256 must be 64 hexadecimal digits.")
    if is_url and not sha256 and len(DATASETS.get(dataset, "two")) != 1:
        raise ValueError("an address needs sha256, or the dataset that this one file is.")
    if dest.startswith(("/", "..", ".training_data")) or dest == ".":
        raise ValueError("dest must be a path below training_data_root.")
    if mounted and (not mounted.startswith("/") or "dest" in entry or "unpack" in entry):
        raise ValueError("mounted must be an absolute path, and goes without dest and unpack.")
    archive = next(iter(DATASETS[dataset])) if dataset else src
    kind = next((kind for suffix, kind in ARCHIVES.items() if archive.endswith(suffix)), "")
    keras = entry.get("keras", False)
    wanted = entry.get("unpack", kind in ("tar", "zip") and not keras)
    if keras and (dataset not in KERAS or wanted):
        raise ValueError(f"keras goes without unpack, and with dataset: one of {', '.join(KERAS)}.")
    if wanted and (not kind or len(DATASETS.get(dataset, [None])) > 1):
        raise ValueError(f"unpack is for one file with the ending {', '.join(ARCHIVES)}.")
    return {
        "name": name,
        "src": src,
        "url": src if is_url else "",
        "mounted": mounted,
        "dataset": dataset,
        "sha256": sha256,
        "dest": dest,
        "unpack": kind if wanted else "",
        "keras": KERAS[dataset] if keras else {},
        "identity": (f"dataset:{dataset}" if dataset else sha256) + (";unpacked" if wanted else ""),
    }


def list_folder(folder: Path) -> dict[str, list[int]]:
    """Return size and time of each file below a folder; links are followed.

    Raises:
        ValueError: something cannot be read as a file, or links go round in a circle.
    """
    found = {}
    for current, folders, names in os.walk(folder, followlinks=True):
        for path in (Path(current, name) for name in folders):
            if path.is_symlink() and Path(current).resolve().is_relative_to(path.resolve()):
                raise ValueError(f"{path} leads to a folder that it is in: remove the link.")
        for path in (Path(current, name) for name in names):
            if not path.is_file():
                raise ValueError(f"{path} is no file (a broken link, a socket?): remove it.")
            stat = path.stat()
            found[str(path.relative_to(folder))] = [stat.st_size, stat.st_mtime_ns]
    if not found:
        raise ValueError(f"the folder {folder} is empty.")
    return found


def read_source(entry: dict[str, Any], folder: str) -> dict[str, Any]:
    """Return what an entry brings: ``files`` with their known hashes, where they are, and ``size``.

    Raises:
        ValueError: it is not there.
    """
    known = DATASETS.get(entry["dataset"], {})
    src = Path(folder, entry["src"]).expanduser()
    if entry["url"]:
        name = next(iter(known), entry["url"].split("?")[0].rsplit("/", 1)[-1])
        return {"files": {name: known.get(name, {"sha256": entry["sha256"]})}, "size": 0}
    if not src.exists():
        raise ValueError(f"src is {src}, which is not there: correct it, or copy the file there.")
    if known:
        single = src.is_file() and len(known) == 1
        paths = {name: src if single else src / name for name in known}
        for path in paths.values():
            if not path.is_file():
                raise ValueError(
                    f"{path} is not there: src of {entry['dataset']} must have {', '.join(known)}."
                )
        sources, files = {name: str(path) for name, path in paths.items()}, known
        return {
            "files": files,
            "sources": sources,
            "size": sum(map(os.path.getsize, paths.values())),
        }
    if src.is_file():
        if not entry["sha256"]:
            raise ValueError(f"a file needs sha256: take it from where {src.name} is published.")
        files = {src.name: {"sha256": entry["sha256"]}}
        return {"files": files, "sources": {src.name: str(src)}, "size": src.stat().st_size}
    if entry["unpack"]:
        raise ValueError(f"{src} is a folder: leave unpack out, or set it to false.")
    found = list_folder(src)
    listing = hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()
    return {
        "folder": f"{src}/",
        "files": {path: {} for path in found},
        "size": sum(size for size, _ in found.values()),
        "identity": entry["identity"] or f"listing:{listing}",
    }


def training_data_entries(entries: list[dict[str, Any]], folder: str) -> list[dict[str, Any]]:
    """Return the entries, checked. A source with a known hash is not read."""
    checked: list[dict[str, Any]] = []
    for entry in entries:
        try:
            one = check(entry)
            for other in checked:
                if other["name"] == one["name"]:
                    raise ValueError("two entries have this name.")
                ours, theirs = f"{one['dest']}/", f"{other['dest']}/"
                if not one["mounted"] and (ours.startswith(theirs) or theirs.startswith(ours)):
                    raise ValueError(
                        f"it would lie in the folder of {other['name']}, or around it."
                    )
            if not one["mounted"] and not one["dataset"] and not one["sha256"]:
                one |= read_source(one, folder)  # what is there says what the data are
            checked.append(one)
        except ValueError as error:
            raise AnsibleFilterError(f"training_data {entry.get('name')!r}: {error}") from None
    return checked


def training_data_source(entry: dict[str, Any], folder: str) -> dict[str, Any]:
    """Return an entry with what it brings."""
    try:
        return entry if "files" in entry or entry["mounted"] else entry | read_source(entry, folder)
    except ValueError as error:
        raise AnsibleFilterError(f"training_data {entry['name']!r}: {error}") from None


class FilterModule:
    """The role's filters."""

    def filters(self) -> dict[str, Any]:
        """Return them by name."""
        return {f.__name__: f for f in (training_data_entries, training_data_source)}
