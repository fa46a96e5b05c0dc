#!/usr/bin/python
"""Ansible module: takes TensorFlow's environments away from a host.

Standard library only, Python 3.8 and newer: it runs under the host's plain python3.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: tensorflow_remove
short_description: Take TensorFlow's environments away from a host
description:
  - Removes the links to environments of the module M(tensorflow_venv), the environments, and wheels
    that were sent. What a running process of the host uses stays, with the links to it.
  - The folder itself and everything else in it, such as jobs, stay.
options:
  root:
    description: Folder of the environments and of the links, on the host. C(~) is expanded there.
    type: path
    required: true
attributes:
  check_mode:
    support: full
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Remove TensorFlow
  tensorflow_remove:
    root: ~/train
"""

RETURN = r"""
removed:
  description: Paths that were removed (in check mode, would be).
  type: list
  elements: str
  returned: success
left:
  description: What stays under O(root), and why, each in one sentence.
  type: list
  elements: str
  returned: success
"""

import os
import shutil
from contextlib import suppress
from typing import Any, Dict, List

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.tensorflow_setup import cleanup, installation
from ansible.module_utils.tensorflow_setup.programs import SetupError


def run(root: str, look_only: bool) -> Dict[str, Any]:
    """Do the module's work; returns its result.

    Raises:
        SetupError: somebody installs for longer than one waits.
        OSError: something cannot be removed.
    """
    folder, wheels = os.path.join(root, "venvs"), os.path.join(root, "wheels")
    if not os.path.isdir(root):
        return {"changed": False, "removed": [], "left": []}
    removed = [wheels] if os.path.isdir(wheels) else []
    left: List[str] = []
    if os.path.isdir(folder):
        if look_only:
            removed += _remove(root, folder, left, look_only)
        else:
            with installation.exclusive(os.path.join(folder, ".lock")):
                removed += _remove(root, folder, left, look_only)
            # Who waits for the lock meanwhile makes the folder anew.
            if os.listdir(folder) == [".lock"]:
                with suppress(OSError):  # a mount point
                    shutil.rmtree(folder)
    if removed[:1] == [wheels] and not look_only:
        shutil.rmtree(wheels)
    gone = {os.path.basename(path) for path in removed}
    others = sorted(set(os.listdir(root)) - gone - {"venvs"})
    left += [f"{root} stays, with {', '.join(others)}."] if others else []
    return {"changed": bool(removed), "removed": sorted(removed), "left": left}


def _remove(root: str, folder: str, left: List[str], look_only: bool) -> List[str]:
    """Remove links and environments; adds to ``left`` what stays, and why."""
    names = sorted(cleanup.environments(folder))
    used = cleanup.in_use(root, names)
    used.update(dict.fromkeys(cleanup.bases(folder, set(used)), "an environment in use"))
    left += [f"{os.path.join(folder, name)} stays: {used[name]} uses it." for name in sorted(used)]
    strange = sorted(set(os.listdir(folder)) - set(names) - {".lock"})
    left += [f"{folder} stays, with {', '.join(strange)}."] if strange else []
    links = [path for path, name in cleanup.linked(root).items() if name not in used]
    gone = [name for name in names if name not in used]
    if not look_only:
        for path in links:
            os.unlink(path)
        gone, failures = cleanup.remove(folder, gone)
        left += failures
    return links + [os.path.join(folder, name) for name in gone]


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={"root": {"type": "path", "required": True}}, supports_check_mode=True
    )
    root: str = module.params["root"]
    if not os.path.isabs(root):
        module.fail_json(
            msg=f"tensorflow_root is {root!r}: write an absolute path, or one that begins with ~."
        )
    try:
        result = run(root, module.check_mode)
    except SetupError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error}. It has to be removed as the user that made it.")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
