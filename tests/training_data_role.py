"""What the tests of the role ``training_data`` share; a pytest plugin.

Both halves of the role run together; the host is a folder of this machine.

PYTEST_DONT_REWRITE: test modules import this one before pytest knows that it is a plugin.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from ansible import constants

from roles.training_data.action_plugins import training_data as action
from roles.training_data.module_utils.data_setup import shared
from tests import host_roles

ROLE = Path(__file__).resolve().parents[1] / "roles" / "training_data"
CHUNK, BATCH = 1000, 4000
#: Bytes of the folder that the fixture `source` makes.
SIZE = 10 * 900 + 2 * 9000


def part(name: str) -> ModuleType:
    """A part of what the role's module does on a host."""
    return host_roles.part(f"data_setup.{name}")


module = importlib.import_module("roles.training_data.library.training_data")


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    for half in (shared, part("shared")):
        monkeypatch.setattr(half, "CHUNK", CHUNK)
        monkeypatch.setattr(half, "BATCH", BATCH)
    monkeypatch.setattr(action, "GROWING_S", 0.01)
    # What others have not written yet is on this disk, too.
    monkeypatch.setattr(part("taking"), "flush", lambda _: None)


class CutError(Exception):
    """The connection broke."""


class Action(action.ActionModule):
    """The action, with the module run in this process and the host's shell on this machine."""

    def __init__(self, folder: Path, entries: list[dict[str, Any]], **arguments: Any) -> None:
        self.root = folder / "host"
        self._folder = folder
        args = {"root": str(self.root), "entries": entries, **arguments}
        check_mode = bool(args.pop("check_mode", False))
        self._task = SimpleNamespace(args=args, check_mode=check_mode, async_val=0)
        self._loader = SimpleNamespace(path_dwim=lambda name: str(folder / name))
        shell = SimpleNamespace(tmpdir=str(folder), join_path=os.path.join)
        self._connection = SimpleNamespace(_shell=shell)
        self._vars: dict[str, Any] = {}
        self._args: dict[str, Any] = {}
        self._parent = os.getppid()
        self.calls: list[str] = []
        self.sent = 0
        #: Bytes after which the connection breaks.
        self.cut_after = 10**9
        self.before_sending: Callable[[], None] = lambda: None

    def act(self) -> dict[str, Any]:
        result: dict[str, Any] = self.run()
        return result

    def _execute_module(self, **call: Any) -> dict[str, Any]:
        params: dict[str, Any] = {
            "verify": False,
            "step": "look",
            "batch": [],
            "last": False,
            "entries": [],
        }
        params.update(json.loads(json.dumps(call["module_args"])))
        self.calls.append(params["step"])
        try:
            return {"changed": False, **module.run(params, self._task.check_mode)}
        except module.DataError as error:
            return {"failed": True, "msg": str(error)}

    def _low_level_execute_command(
        self, cmd: str, in_data: bytes | None = None, **_: Any
    ) -> dict[str, Any]:
        if in_data:
            self.before_sending()
            left = self.cut_after - self.sent
            self.sent += min(left, len(in_data))
            if left < len(in_data):
                subprocess.run(["sh", "-c", cmd], input=in_data[:left], check=True)
                raise CutError
        done = subprocess.run(["sh", "-c", cmd], input=in_data, capture_output=True, check=False)
        return {"rc": done.returncode, "stdout": done.stdout.decode(), "stderr": ""}

    def _transfer_data(self, remote_path: str, data: str) -> str:
        Path(remote_path).write_text(data)
        return remote_path

    def _fixup_perms2(self, *_: Any) -> None:
        pass


Make = Callable[..., Action]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_units: None) -> Make:
    """Return a factory of actions; each is a run of Ansible of its own."""
    runs = iter(range(1000))

    def factory(*entries: dict[str, Any], **arguments: Any) -> Action:
        run_folder = tmp_path / f"run-{next(runs)}"
        run_folder.mkdir()
        monkeypatch.setattr(constants, "DEFAULT_LOCAL_TMP", str(run_folder))
        monkeypatch.setattr(constants, "ANSIBLE_HOME", str(tmp_path / "home"))
        return Action(tmp_path, list(entries), **arguments)

    return factory


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder of 10 files with 900 bytes each, one of 9000, an empty one, and a link."""
    folder = tmp_path / "source"
    (folder / "sub").mkdir(parents=True)
    for number in range(10):
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
