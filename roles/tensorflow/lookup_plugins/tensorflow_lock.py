"""Ansible lookup plugin: what lock files lock."""

from __future__ import annotations

DOCUMENTATION = r"""
name: tensorflow_lock
short_description: What lock files with hashes lock
description:
  - Reads lock files of C(uv pip compile --generate-hashes) and C(pip-compile --generate-hashes).
options:
  _terms:
    description: The files. A relative path starts at the role's or the playbook's folder.
    required: true
  extra:
    description: Whether they lock packages on top of TensorFlow, and need not lock TensorFlow.
    type: bool
    default: false
  python:
    description: Version of a host's Python. With it, the result has the packages for that Python.
    type: str
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Show the locked version
  ansible.builtin.debug:
    msg: "{{ lookup('tensorflow_lock', 'cpu.txt').version }}"
"""

RETURN = r"""
_raw:
  description:
    - For each file C(path), C(sha256) and, where it locks TensorFlow, C(variant), C(version) and
      C(imports), the modules that must be importable.
    - With O(python), C(pins), each with C(name), C(version) and C(line), the requirement with its
      hashes and without its condition.
  type: list
  elements: dict
"""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

#: What is imported once in a new environment, where the lock has it: distribution to module.
CHECKED_IMPORTS = {"tf-keras": "tf_keras", "tensorboard": "tensorboard", "scikit-learn": "sklearn"}


class LookupModule(LookupBase):  # type: ignore[misc]
    """See DOCUMENTATION."""

    def run(self, terms: list[str], variables: Any = None, **kwargs: Any) -> list[dict[str, Any]]:
        """Describe each file."""
        self.set_options(var_options=variables, direct=kwargs)
        extra: bool = self.get_option("extra")
        variable = "tensorflow_extra_requirements" if extra else "tensorflow_requirements"
        described = []
        for term in terms:
            name = str(Path(term).expanduser())
            path = self.find_file_in_search_path(variables, "files", name, ignore_missing=True)
            if not path:
                raise AnsibleLookupError(
                    f"{variable}: there is no lock file {term} on the control node (a relative path"
                    " starts at the playbook's folder)."
                )
            try:
                described.append(describe(path, extra, self.get_option("python")))
            except (OSError, ValueError) as error:
                options = f"--generate-hashes extra.in -o {path}"
                raise AnsibleLookupError(
                    f"{variable}: {path} is no lock file with hashes: {error}. Write what you"
                    " need into a file extra.in and lock it with one of"
                    f" `uv pip compile {options}`, `pip-compile {options}`."
                ) from error
        if len({lock["version"] for lock in described if not extra}) > 1:
            found = " and ".join(f"{lock['version']} ({lock['path']})" for lock in described)
            raise AnsibleLookupError(
                f"The locks have TensorFlow {found}: ranks of one job need one version. Lock both"
                " again."
            )
        return described


def describe(path: str, extra: bool, python: str | None) -> dict[str, Any]:
    """What a file locks, see RETURN; a ValueError if it is no lock file."""
    content = Path(path).read_bytes()
    packages = list(parse(content.decode()))
    if not packages:
        raise ValueError("it names no package")
    lock: dict[str, Any] = {"path": path, "sha256": hashlib.sha256(content).hexdigest()}
    if not extra:
        versions: dict[str, str] = {canonicalize_name(need.name): v for need, v, _ in packages}
        found = [name for name in ("tensorflow", "tensorflow-cpu") if name in versions]
        if len(found) != 1:
            raise ValueError(
                f"it locks {' and '.join(found) or 'no TensorFlow'} and has to lock one of"
                " tensorflow==VERSION and tensorflow-cpu==VERSION"
            )
        cuda = found == ["tensorflow"] and any(name.startswith("nvidia-") for name in versions)
        lock["variant"] = "gpu" if cuda else "cpu"
        lock["version"] = versions[found[0]]
        checked = [module for name, module in CHECKED_IMPORTS.items() if name in versions]
        lock["imports"] = ["tensorflow", *checked]
    if python:
        lock["pins"] = [
            {
                "name": canonicalize_name(need.name),
                "version": version,
                "line": " ".join([f"{need.name}=={version}", *hashes]),
            }
            for need, version, hashes in packages
            if need.marker is None or need.marker.evaluate(host_environment(python))
        ]
    return lock


def parse(text: str) -> Iterator[tuple[Requirement, str, list[str]]]:
    """The packages of a lock file: requirement, version, options with hashes."""
    held, start = "", 0
    for number, line in enumerate([*re.sub(r"(?m)(^|[ \t])#.*$", "", text).splitlines(), ""], 1):
        start = start if held else number
        held += line.rstrip().removesuffix("\\") + " "
        if line.rstrip().endswith("\\"):
            continue
        name, *hashes = re.split(r"\s(?=--hash[= ])", held.strip())
        held = ""
        if not name:
            continue
        where = f"line {start} ({name.strip():.60})"
        try:
            need = Requirement(name)
        except InvalidRequirement as error:
            raise ValueError(f"{where} is no NAME==VERSION") from error
        pinned = re.fullmatch(r"==([^*,]+)", str(need.specifier))
        if not pinned:
            raise ValueError(f"{where} locks no version")
        if not hashes:
            raise ValueError(f"{where} has no hash")
        yield need, str(Version(pinned[1])), [option.strip() for option in hashes]


def host_environment(python: str) -> dict[str, str]:
    """What conditions are compared with: Linux on x86_64 with this Python.

    pip would take the Python that it runs under, also with --python-version.
    """
    short = ".".join(python.split(".")[:2])
    return {
        "python_version": short,
        "python_full_version": python if python.count(".") > 1 else f"{short}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "platform_machine": "x86_64",
        "platform_system": "Linux",
        "sys_platform": "linux",
        "os_name": "posix",
    }
