#!/usr/bin/python
"""Ansible module: training data on a host, verified by hash and put in place in one step.

Standard library only, Python 3.8 or newer: it runs with the host's python3.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: training_data
short_description: Verify training data on a host and put it in place
description:
  - Other modules copy or download the files to C(ROOT/.training_data/NAME/tree). This module
    verifies them, unpacks an archive without following paths out of its folder, and puts the data
    in place by renaming the folder.
  - Files in the folder that the role did not place are kept.
options:
  root:
    description: Folder of all data on the host.
    type: path
    required: true
  entries:
    description: The entries that the role's filters return for C(training_data).
    type: list
    elements: dict
    default: []
  state:
    description:
      - V(checked) returns the names of missing data and changes nothing.
      - V(placed) verifies the files of the entries and puts copied files in place.
      - V(absent) removes all files that were ever placed below O(root), and no others.
    type: str
    choices: [checked, placed, absent]
    default: checked
  verify:
    description: Whether to read existing data and compare it with its hashes.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Check which data is missing
  tensorflow_ansible.cluster.training_data:
    root: ~/train/data
    entries: "{{ __training_data_entries }}"
"""

RETURN = r"""
root:
  description: O(root) as an absolute path.
  type: str
  returned: O(state) is V(checked) or V(absent)
missing:
  description: Names of missing or wrong data, each with the reason.
  type: dict
  returned: O(state) is V(checked)
unplaced:
  description: Names of data that the role has never placed at this destination.
  type: list
  elements: str
  returned: O(state) is V(checked)
paths:
  description: The path of the data on the host, by name.
  type: dict
  returned: O(state) is V(checked)
left:
  description: Folders with other files, which were not removed.
  type: list
  elements: str
  returned: O(state) is V(absent)
"""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any, Dict, Iterable, List

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.data_unpacking import (
    UnpackingError,
    unpack,
)

#: Size, time in ns and SHA-256 of each file; the hash is empty for a broken link.
Notes = Dict[str, List[Any]]


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for data in iter(lambda: stream.read(2**20), b""):
            digest.update(data)
    return digest.hexdigest()


def signature(path: Path) -> List[Any]:
    """Return size and time of a file, or of a broken link."""
    found = path.stat() if path.is_file() else path.lstat()
    return [found.st_size, found.st_mtime_ns]


def notes_of(folder: Path, paths: Iterable[str]) -> Notes:
    """Return the notes on files; this reads every file."""
    files = {path: folder / path for path in paths}
    return {p: [*signature(f), sha256_of(f) if f.is_file() else ""] for p, f in files.items()}


def tree_hash(notes: Notes) -> str:
    """Return a folder's SHA-256: that of the lines that ``sha256sum`` prints, sorted by path."""
    lines = [(os.fsencode(path), sha256.encode()) for path, (*_, sha256) in notes.items() if sha256]
    return hashlib.sha256(b"".join(b"%s  %s\n" % (h, p) for p, h in sorted(lines))).hexdigest()


def walk(folder: Path) -> List[str]:
    """Return the paths below a folder, except folders; links are not followed."""
    found = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return [str(path.relative_to(folder)) for path in found]


def remove(folder: Path, paths: Iterable[str]) -> None:
    """Remove files below a folder, and folders that are empty afterwards."""
    for path in paths:
        (folder / path).unlink(missing_ok=True)
    for current, _, _ in os.walk(folder, topdown=False):
        if not os.listdir(current):
            os.rmdir(current)


class PlacedData:
    """The data of an entry, their location, and the notes from when they were placed."""

    def __init__(self, root: Path, entry: Dict[str, Any]) -> None:
        self.entry, self.name, self.target = entry, entry["name"], root / entry["dest"]
        self.staging = root / ".training_data" / self.name
        self.old, self.notes = self.staging / "old", root / ".training_data" / f"{self.name}.json"
        try:
            notes = json.loads(self.notes.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            notes = {}
        if notes.get("dest") != entry["dest"]:
            notes = {}
        self.identity = notes.get("identity")
        self.noted: Notes = {path: note for path, *note in notes.get("files", [])}

    def why_missing(self, verify: bool) -> str:
        """Return the reason why the data are missing or wrong, or an empty string."""
        if self.entry["mounted"] and not self.entry["sha256"]:
            return ""
        if self.identity is None:
            return "was not placed yet"
        if self.identity != self.entry["identity"]:
            return "differs from the entry"
        for path, (*noted, sha256) in self.noted.items():
            full = self.target / path
            if not os.path.lexists(full):
                return f"{full} is missing"
            if signature(full) != noted:
                return f"{full} was changed"
            if verify and sha256 and sha256_of(full) != sha256:
                return f"{full} does not have the SHA-256 {sha256}"
        return ""

    def place(self) -> bool:
        """Verify copied or mounted data; put copied data in place in one step."""
        new = self.staging / "tree"
        if self.entry["mounted"]:
            notes = notes_of(self.target, walk(self.target))
            self.check_hashes(notes)
            self.write_notes(self.entry["identity"], notes)
            return False
        remove(new, set(walk(new)) - set(self.entry["files"]))  # from an earlier run
        notes = notes_of(new, self.entry["files"])
        self.check_hashes(notes)
        if self.entry["unpack"]:
            archive, new = new / next(iter(notes)), self.staging / "unpacked"
            unpack(str(archive), str(new))
            notes = notes_of(new, walk(new))
        self.recover()
        for path in walk(self.target):
            if path not in self.noted and not os.path.lexists(new / path):
                (new / path).parent.mkdir(parents=True, exist_ok=True)
                os.link(self.target / path, new / path, follow_symlinks=False)
        shutil.rmtree(self.old, ignore_errors=True)
        # With these notes, anything that an interrupted run leaves at the target is the role's.
        self.write_notes("", {**self.noted, **notes})
        self.target.parent.mkdir(parents=True, exist_ok=True)
        if self.target.is_dir():
            self.target.rename(self.old)
        new.rename(self.target)
        self.write_notes(self.entry["identity"], notes)
        shutil.rmtree(self.staging)
        return True

    def check_hashes(self, notes: Notes) -> None:
        """Raise UnpackingError if data do not have the known hashes."""
        found = {path: note[2] for path, note in notes.items()}
        wanted = {path: sha256 for path, sha256 in self.entry.get("files", {}).items() if sha256}
        if self.entry["sha256"] and not wanted:
            wanted, found = {"the folder": self.entry["sha256"]}, {"the folder": tree_hash(notes)}
        for path, sha256 in wanted.items():
            if found[path] != sha256:
                raise UnpackingError(
                    f"{self.name}: {path} has SHA-256 {found[path]}, expected {sha256}. Download it"
                    " again, or correct sha256 in training_data."
                )

    def write_notes(self, identity: str, notes: Notes) -> None:
        """Write the notes atomically, after all data have been written to the disk."""
        files = [[path, *note] for path, note in notes.items()]
        text = json.dumps({"dest": self.entry["dest"], "identity": identity, "files": files})
        self.notes.parent.mkdir(parents=True, exist_ok=True)
        new = self.notes.with_suffix(".new")
        new.write_text(text, encoding="utf-8")
        os.sync()
        new.replace(self.notes)

    def recover(self) -> None:
        """Restore the data if a run was interrupted between its two renames."""
        if self.old.is_dir() and not os.path.lexists(self.target):
            self.old.rename(self.target)


def remove_all(root: Path, dry: bool) -> Dict[str, Any]:
    """Remove all data that were ever placed, according to the notes, and the notes themselves.

    Mounted data and other files in the folders stay.
    """
    state, left = root / ".training_data", []
    there = state.is_dir()
    if there and not dry:
        for notes in sorted(state.glob("*.json")):
            dest = json.loads(notes.read_text(encoding="utf-8"))["dest"]
            data = PlacedData(root, {"name": notes.stem, "dest": dest})
            if not dest.startswith("/"):  # mounted data stay
                data.recover()
                remove(data.target, data.noted)
                left += [str(data.target)] if data.target.is_dir() else []
        shutil.rmtree(state)
        if not os.listdir(root):
            root.rmdir()
    return {"changed": there, "root": str(root), "left": left}


def run(params: Dict[str, Any], dry: bool) -> Dict[str, Any]:
    """Return the module's result."""
    root = Path(params["root"]).absolute()
    if params["state"] == "absent":
        return remove_all(root, dry)
    data = [PlacedData(root, entry) for entry in params["entries"]]
    if params["state"] == "checked":
        missing = {one.name: one.why_missing(params["verify"]) for one in data}
        return {
            "root": str(root),
            "missing": {name: why for name, why in missing.items() if why},
            "unplaced": [one.name for one in data if one.identity is None],
            "paths": {one.name: str(one.target) for one in data},
        }
    (one,) = data
    states = {"before": one.identity or "nothing", "after": one.entry["identity"]}
    return {
        "changed": not one.entry["mounted"] if dry else one.place(),
        "diff": {key: f"{one.target}: {state}\n" for key, state in states.items()},
    }


def main() -> None:
    """Run as an Ansible module."""
    states = ["checked", "placed", "absent"]
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "entries": {"type": "list", "elements": "dict", "default": []},
            "state": {"type": "str", "choices": states, "default": "checked"},
            "verify": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    # The long lists of files are not shown.
    shown = {key: value for key, value in module.params.items() if key != "entries"}
    try:
        result = run(module.params, module.check_mode)
        module.exit_json(invocation={"module_args": shown}, **result)
    except (UnpackingError, OSError, ValueError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
