"""What the tests of the role ``training_data`` share; a pytest plugin.

Its filters and its module run in this process, as its tasks have them; the host is a folder of this
machine.

PYTEST_DONT_REWRITE: test modules import this one before pytest knows that it is a plugin.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

from tests import host_roles
from tests.conftest import REPOSITORY

filters = host_roles.load(REPOSITORY / "roles/training_data/filter_plugins/training_data.py")
data = host_roles.part("data_setup.data")
module = importlib.import_module("roles.training_data.library.training_data")


class Play:
    """The role's tasks, on this machine."""

    def __init__(self, folder: Path, entries: list[dict[str, Any]], **arguments: Any) -> None:
        self.folder, self.root = folder, folder / "host"
        self._entries = entries
        self._check = bool(arguments.pop("check_mode", False))
        self._arguments = {"root": str(self.root), "verify": False, **arguments}
        #: Paths of the files that were copied.
        self.sent: list[str] = []

    def run(self, state: str, *entries: dict[str, Any]) -> dict[str, Any]:
        """Run the module."""
        params = {**self._arguments, "entries": json.loads(json.dumps(entries)), "state": state}
        result: dict[str, Any] = module.run(params, self._check)
        return result

    def copy(self, entry: dict[str, Any], staging: Path) -> None:
        """Copy what differs, as ansible.builtin.copy does."""
        sources = entry.get("sources") or {path: entry["folder"] + path for path in entry["files"]}
        for path, source in sources.items():
            target, wanted = staging / path, Path(source).read_bytes()
            if not target.exists() or target.read_bytes() != wanted:
                target.parent.mkdir(parents=True, exist_ok=True)
                (new := staging / "copying").write_bytes(wanted)
                new.replace(target)
                self.sent.append(path)

    def act(self) -> dict[str, Any]:
        """Do what tasks/main.yml does; ``msg`` of the result is why it failed."""
        try:
            entries = filters.training_data_entries(self._entries, str(self.folder))
            checked = self.run("checked", *entries)
            missing = [entry for entry in entries if entry["name"] in checked["missing"]]
            missing = [filters.training_data_source(e, str(self.folder)) for e in missing]
            for entry in missing:
                if entry["mounted"]:
                    continue
                staged = self.run("staged", entry)
                if not self._check:
                    self.copy(entry, Path(staged["staging"]))
                checked["changed"] |= self.run("placed", entry)["changed"]
        except (AnsibleFilterError, data.DataError) as error:
            return {"msg": str(error)}
        return checked


Make = Callable[..., Play]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a factory of plays."""
    monkeypatch.setattr(os, "sync", lambda: None)
    return lambda *entries, **arguments: Play(tmp_path, list(entries), **arguments)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder of 3 files with 900 bytes each, one of 9000, an empty one, and a link."""
    folder = tmp_path / "source"
    (folder / "sub").mkdir(parents=True)
    for number in range(3):
        (folder / "sub" / f"{number} ä.bin").write_bytes(os.urandom(900))
    (folder / "large").write_bytes(os.urandom(9000))
    (folder / ".empty").touch()
    (folder / "link").symlink_to("large")
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
