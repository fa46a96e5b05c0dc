#!/usr/bin/python
"""Ansible module: keeps the wheels that the control node has sent, whole ones alone.

Standard library only, Python 3.8 and newer: it runs under the host's plain python3.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: tensorflow_wheels
short_description: Keep the wheels that the control node has sent
description:
  - Makes a folder hold nothing but the wanted wheels, takes in those that have arrived, and says
    which are missing. What was sent before a connection broke need not be sent again.
options:
  folder:
    description: Folder of the wheels on the host. C(~) is expanded there.
    type: path
    required: true
  wheels:
    description:
      - The wanted wheels, each with C(name), C(size) and C(sha256). An empty list removes the
        folder.
    type: list
    elements: dict
    required: true
  arrived:
    description:
      - Folder on the host in which wheels have arrived. Those that are whole are moved. The folder
        of the wheels is then trusted as far as the sizes are right; without it, hashes are looked
        at.
    type: path
attributes:
  check_mode:
    support: none
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Take in a wheel
  tensorflow_wheels:
    folder: ~/train/wheels/node-1
    arrived: /tmp/arrived
    wheels:
      - name: six-1.17.0-py2.py3-none-any.whl
        size: 11050
        sha256: 4721f391ed90541fddacab5acf947aa0d3dc7d27b2e1e8eda2be8970586c3274
"""

RETURN = r"""
missing:
  description: Names of the wheels that are not there.
  type: list
  elements: str
  returned: success
"""

import hashlib
import os
import shutil
from typing import Any, Dict, List

from ansible.module_utils.basic import AnsibleModule

CHUNK = 1024 * 1024


def whole(path: str, wheel: Dict[str, Any], hashed: bool) -> bool:
    """Whether a file is the wheel, by its size and, if wanted, its hash."""
    if not os.path.isfile(path) or os.path.getsize(path) != wheel["size"]:
        return False
    if not hashed:
        return True
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for chunk in iter(lambda: stream.read(CHUNK), b""):
            digest.update(chunk)
    return digest.hexdigest() == str(wheel["sha256"])


def take_in(source: str, target: str) -> None:
    """Move a file, in one step where it is seen, also from another filesystem."""
    new = target + ".new"
    shutil.move(source, new)
    os.replace(new, target)


def run(folder: str, wheels: List[Dict[str, Any]], arrived: str) -> List[str]:
    """Do the module's work; returns the names of the wheels that are missing.

    Raises:
        OSError: the folder cannot be written.
    """
    if not wheels:
        if os.path.isdir(folder):
            shutil.rmtree(folder)
        above = os.path.dirname(folder)
        if os.path.isdir(above) and not os.listdir(above):
            os.rmdir(above)
        return []
    os.makedirs(folder, exist_ok=True)
    wanted = {wheel["name"] for wheel in wheels}
    for name in set(os.listdir(folder)) - wanted:
        os.unlink(os.path.join(folder, name))
    missing = []
    for wheel in wheels:
        path = os.path.join(folder, wheel["name"])
        if arrived:
            source = os.path.join(arrived, wheel["name"])
            if whole(source, wheel, hashed=True):
                take_in(source, path)
        if not whole(path, wheel, hashed=not arrived):
            missing.append(wheel["name"])
    return missing


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "required": True},
            "wheels": {"type": "list", "elements": "dict", "required": True},
            "arrived": {"type": "path"},
        },
    )
    folder: str = module.params["folder"]
    wheels: List[Dict[str, Any]] = module.params["wheels"]
    need_mb = sum(wheel["size"] for wheel in wheels) // 10**6
    try:
        missing = run(folder, wheels, module.params["arrived"] or "")
    except OSError as error:
        module.fail_json(
            msg=f"{error}. {need_mb} MB of wheels have to lie in {folder} while they are installed:"
            " it must be a folder that this user may write to, with so much space. Or set"
            " tensorflow_root to another."
        )
    module.exit_json(changed=bool(module.params["arrived"]), missing=missing)


if __name__ == "__main__":
    main()
