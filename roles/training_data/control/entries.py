"""What was asked for: the entries of ``training_data``, checked."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail

from roles.training_data.control.datasets import DATASETS, KERAS

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


@dataclass(frozen=True)
class Entry:
    """An entry of ``training_data``, checked.

    Attributes:
        src: folder or file on this machine; None for data that are mounted on the host.
        mounted: folder on the host; empty for data that are brought.
        unpack: how the file is to be unpacked; empty for not at all.
        keras: whether ``keras.datasets`` is to find it.
    """

    name: str
    src: Path | None
    mounted: str
    dataset: str
    sha256: str
    dest: str
    unpack: str
    keras: bool

    @property
    def keras_links(self) -> dict[str, str]:
        """What is to be below ~/.keras/datasets, and which of the data it leads to."""
        return KERAS[self.dataset] if self.keras else {}

    def identity(self, sha256: str = "") -> str:
        """Return what tells these data from others, by the given hash if they have none."""
        what = f"dataset:{self.dataset}" if self.dataset else f"sha256:{self.sha256 or sha256}"
        return what + (";unpacked" if self.unpack else "")

    @property
    def needs_source(self) -> bool:
        """Whether the source must be read to tell what the data are."""
        return self.src is not None and not self.dataset and not self.sha256


def check_entries(entries: list[Any], resolve: Callable[[str], str]) -> list[Entry]:
    """Return the entries, checked.

    Args:
        entries: as they stand in ``training_data``.
        resolve: makes a path of this machine absolute.

    Raises:
        AnsibleActionFail: one is wrong, or two are at odds.
    """
    checked: list[Entry] = []
    for number, entry in enumerate(entries):
        where = f"training_data[{number}]"
        if isinstance(entry, dict) and entry.get("name"):
            where = f"training_data {entry['name']!r}"
        try:
            checked.append(check_entry(entry, resolve))
        except ValueError as error:
            raise AnsibleActionFail(f"{where}: {error} Nothing was changed.") from None
    for one in checked:
        for other in checked:
            if one is other:
                continue
            if one.name == other.name:
                raise AnsibleActionFail(f"training_data has two entries {one.name!r}: rename one.")
            if f"{one.dest}/".startswith(f"{other.dest}/"):
                raise AnsibleActionFail(
                    f"training_data: {one.name!r} would lie in {other.name!r} ({one.dest} in"
                    f" {other.dest}): set dest of one of them."
                )
    return checked


def check_entry(entry: Any, resolve: Callable[[str], str]) -> Entry:
    """Return one entry, checked; see `check_entries`.

    Raises:
        ValueError: with what is wrong, and the remedy.
    """
    known = {"name", "src", "mounted", "dataset", "sha256", "dest", "unpack", "keras"}
    if not isinstance(entry, dict) or set(entry) - known:
        raise ValueError(f"an entry has the keys {', '.join(sorted(known))} and no others.")
    given = {key: value for key, value in entry.items() if value not in (None, "")}
    name, src = str(given.get("name", "")), str(given.get("src", ""))
    dataset, sha256 = str(given.get("dataset", "")), str(given.get("sha256", "")).lower()
    dest = os.path.normpath(str(given.get("dest", name)))
    if not NAME.fullmatch(name):
        raise ValueError("name must be letters, digits and the characters ._- .")
    if ("src" in given) == ("mounted" in given):
        raise ValueError(
            "it needs either src (a folder or file on the control node) or mounted (a folder on the"
            " hosts)."
        )
    if re.match(r"[a-z][a-z0-9+.-]*://", src):
        raise ValueError(
            f"src is an address ({src}), and nothing is fetched from a network: bring the file to"
            " the control node (curl -LO) and name it."
        )
    if dataset and (dataset not in DATASETS or "mounted" in given):
        raise ValueError(f"dataset goes with src and is one of {', '.join(DATASETS)}.")
    if sha256 and not SHA256.fullmatch(sha256):
        raise ValueError("sha256 must be 64 hexadecimal digits.")
    if dataset and sha256:
        raise ValueError("with dataset, sha256 is known: leave it out.")
    if dest.startswith(("/", "..", ".training_data")) or dest == ".":
        raise ValueError("dest must be a path below training_data_root.")
    mounted = str(given.get("mounted", ""))
    if mounted and (not mounted.startswith("/") or "dest" in given or "unpack" in given):
        raise ValueError("mounted must be an absolute path, and goes without dest and unpack.")
    archive = next(iter(DATASETS[dataset])) if dataset else src
    kind = next((kind for suffix, kind in ARCHIVES.items() if archive.endswith(suffix)), "")
    keras = is_true(given.get("keras", False))
    wanted = is_true(given.get("unpack", kind in ("tar", "zip") and not keras))
    if keras and (dataset not in KERAS or wanted):
        raise ValueError(f"keras goes without unpack, and with dataset: one of {', '.join(KERAS)}.")
    if wanted and (not kind or len(DATASETS.get(dataset, [None])) > 1):
        raise ValueError(f"unpack is for one file with the ending {', '.join(ARCHIVES)}.")
    return Entry(
        name=name,
        src=Path(resolve(src)) if src else None,
        mounted=mounted,
        dataset=dataset,
        sha256=sha256,
        dest=dest,
        unpack=kind if wanted else "",
        keras=keras,
    )


def is_true(value: Any) -> bool:
    """Return whether a value of a variable means yes."""
    return value if isinstance(value, bool) else str(value).lower() in ("true", "yes", "on", "1")
