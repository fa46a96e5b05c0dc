"""Ansible action plugin: the control node's half of the module ``tensorflow_venv``.

It reads the lock files, lets the module look, and sends pip and the lock file only to a host that
lacks something: a host that is finished costs one call of the module.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase
from packaging.specifiers import SpecifierSet

#: What is imported once in a new environment, where the lock has it: distribution to module.
CHECKED_IMPORTS = {"tf-keras": "tf_keras", "tensorboard": "tensorboard", "scikit-learn": "sklearn"}
PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE)


def describe_lock(path: str) -> dict[str, Any]:
    """What a lock file locks, as the module's option ``locks`` wants it.

    Raises:
        AnsibleActionFail: when it cannot be read or does not lock exactly one TensorFlow.
    """
    try:
        text = Path(path).read_bytes()
        pins = {re.sub(r"[-_.]+", "-", n).lower(): v for n, v in PIN.findall(text.decode())}
    except (OSError, ValueError) as error:
        raise AnsibleActionFail(f"tensorflow_requirements: cannot read {path}: {error}") from error
    found = [name for name in ("tensorflow", "tensorflow-cpu") if name in pins]
    if len(found) != 1:
        raise AnsibleActionFail(
            f"tensorflow_requirements: {path} locks {' and '.join(found) or 'no TensorFlow'}; it"
            " has to lock one of tensorflow==VERSION and tensorflow-cpu==VERSION. Make it with a"
            " tool that writes versions and hashes (uv pip compile --generate-hashes)."
        )
    has_cuda = found == ["tensorflow"] and any(name.startswith("nvidia-") for name in pins)
    imports = [module for name, module in CHECKED_IMPORTS.items() if name in pins]
    return {
        "path": path,
        "variant": "gpu" if has_cuda else "cpu",
        "version": pins[found[0]],
        "sha256": hashlib.sha256(text).hexdigest(),
        "imports": ["tensorflow", *imports],
    }


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


class ActionModule(ActionBase):  # type: ignore[misc]
    """Look first; send and install where something is missing."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> Any:
        """The module's result: of its look, or of its work."""
        super().run(tmp, task_vars)
        args = dict(self._task.args)
        args["locks"] = self._describe_locks(args.get("locks") or [])
        result = self._call(args, task_vars)
        if result.get("failed") or not result["changed"] or self._task.check_mode:
            return result
        pip_zip = pack_pip(constants.DEFAULT_LOCAL_TMP, result["python_version"])
        lock = next(lock for lock in args["locks"] if lock["variant"] == result["variant"])
        shell = self._connection._shell
        if shell.tmpdir is None:
            self._make_tmp_path()
        args["pip_zip"] = shell.join_path(shell.tmpdir, "pip.zip")
        args["lock_file"] = shell.join_path(shell.tmpdir, "requirements.txt")
        self._transfer_file(pip_zip, args["pip_zip"])
        self._transfer_file(lock["path"], args["lock_file"])
        self._fixup_perms2((shell.tmpdir, args["pip_zip"], args["lock_file"]))
        return self._call(args, task_vars)

    def _call(self, args: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        result: dict[str, Any] = self._execute_module(
            module_name="ansible.legacy.tensorflow_venv", module_args=args, task_vars=task_vars
        )
        return result

    def _describe_locks(self, names: list[str]) -> list[dict[str, Any]]:
        locks: dict[str, dict[str, Any]] = {}
        for name in names:
            try:
                path = self._find_needle("files", str(Path(name).expanduser()))
            except AnsibleError as error:
                raise AnsibleActionFail(
                    f"tensorflow_requirements: there is no lock file {name} on the control node"
                    " (a relative path starts at the playbook's folder)."
                ) from error
            lock = describe_lock(path)
            for other in locks.values():
                if other["version"] != lock["version"]:
                    raise AnsibleActionFail(
                        f"{other['path']} locks TensorFlow {other['version']}, {path} locks"
                        f" {lock['version']}: ranks of one job need one version. Make both again."
                    )
            locks[lock["variant"]] = lock
        return list(locks.values())
