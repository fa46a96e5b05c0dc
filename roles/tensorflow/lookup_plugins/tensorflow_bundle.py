"""Ansible lookup plugin: what a host needs to install, in one archive."""

from __future__ import annotations

DOCUMENTATION = r"""
name: tensorflow_bundle
short_description: The control node's pip and other files, in one archive
description:
  - Packs the pip of Ansible's Python and the files into a tar file, once in a run, in Ansible's
    temporary folder. Any Python runs that pip.
options:
  _terms:
    description: Dictionaries of files, a path on the control node by the name in the archive.
    required: true
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Send pip and a lock
  ansible.builtin.unarchive:
    src: "{{ lookup('tensorflow_bundle', {'tensorflow.txt': '/tmp/cpu.txt'}) }}"
    dest: ~/sent
"""

RETURN = r"""
_raw:
  description: Paths of the archives on the control node.
  type: list
  elements: path
"""

import fcntl
import hashlib
import importlib.util
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase


class LookupModule(LookupBase):  # type: ignore[misc]
    """See DOCUMENTATION."""

    def run(self, terms: list[dict[str, str]], variables: Any = None, **kwargs: Any) -> list[str]:
        """Pack each."""
        return [pack(Path(constants.DEFAULT_LOCAL_TMP), files) for files in terms]


def pack(folder: Path, files: dict[str, str]) -> str:
    """Pack pip and ``files`` into an archive in ``folder``, unless it is there."""
    pip = importlib.util.find_spec("pip")
    if pip is None or pip.origin is None:
        raise AnsibleLookupError(
            f"The control node's Python ({sys.executable}) has no pip to send to hosts: install it."
        )
    content = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
    archive, part = (folder / f"{content}.tar{end}" for end in ("", ".part"))
    with part.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # other hosts' processes want the same at the same time
        if not archive.exists():
            with tarfile.open(part, "w") as packed:
                packed.add(Path(pip.origin).parent, "pip", filter=_without_bytecode)
                for name, path in files.items():
                    packed.add(Path(path).resolve(), name)
            part.replace(archive)
    return str(archive)


def _without_bytecode(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if member.name.endswith(("__pycache__", ".exe")) else member
