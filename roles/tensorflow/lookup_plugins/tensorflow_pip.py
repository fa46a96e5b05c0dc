"""Ansible lookup plugin: the control node's pip as an archive for hosts that have none."""

from __future__ import annotations

DOCUMENTATION = r"""
name: tensorflow_pip
short_description: The control node's pip as an archive
description:
  - Packs the pip of Ansible's Python into a zip file, once in a run, in Ansible's temporary folder.
    Any Python runs it from there.
options:
  _terms:
    description: Version of the host's Python, which the pip has to support.
    required: true
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Send pip
  ansible.builtin.copy:
    src: "{{ lookup('tensorflow_pip', '3.11.2') }}"
    dest: ~/pip.zip
    mode: "0600"
"""

RETURN = r"""
_raw:
  description: Path of the archive on the control node.
  type: list
  elements: path
"""

import importlib.metadata
import os
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase
from packaging.specifiers import SpecifierSet


class LookupModule(LookupBase):  # type: ignore[misc]
    """See DOCUMENTATION."""

    def run(self, terms: list[str], variables: Any = None, **kwargs: Any) -> list[str]:
        """Pack pip."""
        return [pack(Path(constants.DEFAULT_LOCAL_TMP), python) for python in terms]


def pack(folder: Path, python: str) -> str:
    """Zip pip into ``folder``, unless it is there; returns the path."""
    try:
        pip = importlib.metadata.distribution("pip")
    except importlib.metadata.PackageNotFoundError as error:
        raise AnsibleLookupError(
            f"The control node's Python ({sys.executable}) has no pip to send to hosts: install it."
        ) from error
    limits = pip.metadata["Requires-Python"]
    if not SpecifierSet(limits).contains(python):
        raise AnsibleLookupError(
            f"The control node's pip {pip.version} needs Python {limits}, the host has {python}:"
            " install an older pip on the control node, or set tensorflow_python."
        )
    archive = folder / f"pip-{pip.version}.zip"
    if not archive.exists():
        package = Path(str(pip.locate_file("pip")))
        # Other hosts' processes do the same at the same time: a file of its own, then a rename.
        descriptor, name = tempfile.mkstemp(dir=folder, suffix=".zip")
        with (
            os.fdopen(descriptor, "wb") as stream,
            zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed,
        ):
            for file in sorted(package.rglob("*")):
                if file.is_file() and file.suffix not in (".pyc", ".exe"):  # .exe: for Windows
                    packed.write(file, file.relative_to(package.parent))
        Path(name).replace(archive)
    return str(archive)
