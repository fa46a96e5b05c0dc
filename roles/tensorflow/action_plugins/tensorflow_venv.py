"""Ansible action plugin: the control node's half of the module ``tensorflow_venv``.

It reads the lock files, lets the module look, and sends pip, the lock files and wheels only to a
host that lacks something: a host that is finished costs one call of the module.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from packaging.specifiers import SpecifierSet

# The repository: Ansible imports plugins without their surroundings.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from roles.tensorflow.control import locks, wheels

#: Wheels are sent in portions of this many bytes: what is cut off is sent again, not the rest.
PORTION = 64 * 1024 * 1024


def pack_pip(folder: str, host_python: str) -> str:
    """Zip the pip of this Python into ``folder``, once; returns the archive's path.

    Raises:
        AnsibleActionFail: where this Python has no pip, or one that is too new for the host's.
    """
    remedy = "Install requirements/control.txt into the control node's environment."
    try:
        pip = importlib.metadata.distribution("pip")
    except importlib.metadata.PackageNotFoundError as error:
        raise AnsibleActionFail(
            f"The control node's Python ({sys.executable}) has no pip to send to hosts. {remedy}"
        ) from error
    limits = pip.metadata["Requires-Python"]
    if not SpecifierSet(limits).contains(host_python):
        raise AnsibleActionFail(
            f"The control node's pip {pip.version} needs Python {limits}, the host has"
            f" {host_python}: take the pip that is locked, or set tensorflow_python. {remedy}"
        )
    archive = Path(folder, f"pip-{pip.version}.zip")
    if not archive.exists():
        package = Path(str(pip.locate_file("pip")))
        # Other hosts' processes do the same at the same time: a file of one's own, then a rename.
        descriptor, name = tempfile.mkstemp(dir=folder, suffix=".zip")
        with (
            os.fdopen(descriptor, "wb") as stream,
            zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed,
        ):
            for file in sorted(package.rglob("*")):
                # .exe: launchers for Windows
                if file.is_file() and file.suffix not in (".pyc", ".exe"):
                    packed.write(file, file.relative_to(package.parent))
        Path(name).replace(archive)
    return str(archive)


def source_folder(source: str, wheelhouse: str) -> Path | None:
    """The folder of wheels on the control node, None where none is named.

    Raises:
        AnsibleActionFail: it is no complete path, or wheels are on the host already.
    """
    if not source:
        return None
    if wheelhouse:
        raise AnsibleActionFail(
            "tensorflow_wheelhouse and tensorflow_wheelhouse_source are both set: the first is a"
            " folder on the host, the second one on the control node. Set one of them."
        )
    folder = Path(source).expanduser()
    if not folder.is_absolute():
        raise AnsibleActionFail(
            f"tensorflow_wheelhouse_source is {source!r}: write an absolute path, or one that"
            " begins with ~."
        )
    return folder


def portions(chosen: Iterable[wheels.Wheel]) -> Iterator[list[wheels.Wheel]]:
    """The wheels in groups of about PORTION bytes, small ones together."""
    group: list[wheels.Wheel] = []
    for wheel in sorted(chosen, key=lambda wheel: wheel.size):
        if group and sum(member.size for member in group) + wheel.size > PORTION:
            yield group
            group = []
        group.append(wheel)
    if group:
        yield group


class ActionModule(ActionBase):  # type: ignore[misc]
    """Look first; send and install where something is missing."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> Any:
        """The module's result: of its look, or of its work."""
        super().run(tmp, task_vars)
        self._task_vars = task_vars or {}
        args = dict(self._task.args)
        find = partial(self._find_needle, "files")
        args["locks"] = locks.describe_locks(args.get("locks") or [], find)
        extra = args.pop("extra_requirements", None)
        if extra:
            path = locks.find_lock(extra, find, "tensorflow_extra_requirements")
            args["extra_requirements"] = extra = locks.describe_extra(path)
        source = source_folder(args.pop("wheelhouse_source", ""), args.get("wheelhouse", ""))
        result = self._call("tensorflow_venv", args)
        if result.get("failed") or not result["changed"]:
            return result

        lock = next(lock for lock in args["locks"] if lock["variant"] == result["variant"])
        python = result["python_version"]
        if "extra" in result["parts"]:
            locks.refuse_conflicts(lock, extra, python)
        chosen: list[wheels.Wheel] = []
        if source and result["parts"]:
            of_part = {"tensorflow": lock, "extra": extra}
            paths = [of_part[part]["path"] for part in result["parts"]]
            pins = [pin for path in paths for pin in locks.read_pins(path, python)]
            chosen = wheels.select(source, pins, python)
        if self._task.check_mode:
            return result

        if chosen:
            # A folder for each inventory host: others may have the same home.
            own = re.sub(r"[^\w.-]", "_", self._task_vars["inventory_hostname"])
            folder = args["wheelhouse"] = f"{args['root']}/wheels/{own}"
            sent = self._send_wheels(folder, chosen)
            if sent.get("failed"):
                return sent
        self._send_files(args, lock["path"], extra["path"] if extra else None, python)
        result = self._call("tensorflow_venv", args)
        if chosen and not result.get("failed"):
            emptied = self._call("tensorflow_wheels", {"folder": folder, "wheels": []})
            result = result if not emptied.get("failed") else emptied
        return result

    def _send_files(
        self, args: dict[str, Any], lock: str, extra: str | None, host_python: str
    ) -> None:
        """Send pip and lock files, and add to the arguments where they are."""
        files = {
            "pip_zip": ("pip.zip", pack_pip(constants.DEFAULT_LOCAL_TMP, host_python)),
            "lock_file": ("requirements.txt", lock),
        }
        if extra:
            files["extra_file"] = ("extra.txt", extra)
        for option, (name, path) in files.items():
            args[option] = self._send(path, name)
        self._fixup_perms2((self._temporary(), *(args[option] for option in files)))

    def _send_wheels(self, folder: str, chosen: list[wheels.Wheel]) -> dict[str, Any]:
        """Bring wheels into a folder of the host; returns the last result of the module."""
        described = [{"name": w.name, "size": w.size, "sha256": w.sha256} for w in chosen]
        args = {"folder": folder, "wheels": described}
        result = self._call("tensorflow_wheels", args)
        if result.get("failed"):
            return result
        missing = set(result["missing"])
        for group in portions(wheel for wheel in chosen if wheel.name in missing):
            paths = [self._send(wheel.path, wheel.name) for wheel in group]
            self._fixup_perms2((self._temporary(), *paths))
            result = self._call("tensorflow_wheels", {**args, "arrived": self._temporary()})
            damaged = sorted({wheel.name for wheel in group} & set(result.get("missing", [])))
            if result.get("failed"):
                return result
            if damaged:
                raise AnsibleActionFail(
                    f"tensorflow_wheelhouse_source: {locks.listed(damaged)} did not arrive as"
                    " SHA256SUMS tells. If it happens again, the file is damaged on the control"
                    " node: run playbooks/wheelhouse.yml, which mends it."
                )
        return result

    def _temporary(self) -> str:
        shell = self._connection._shell
        if shell.tmpdir is None:
            self._make_tmp_path()
        return str(shell.tmpdir)

    def _send(self, path: str, name: str) -> str:
        target: str = self._connection._shell.join_path(self._temporary(), name)
        self._transfer_file(path, target)
        return target

    def _call(self, module: str, args: dict[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = self._execute_module(
            module_name=f"ansible.legacy.{module}", module_args=args, task_vars=self._task_vars
        )
        return result
