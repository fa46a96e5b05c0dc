#!/usr/bin/python
"""Ansible module: facts about a host that decide which environment it gets.

Standard library only, Python 3.8 or newer: it runs with the host's python3.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: tensorflow_host
short_description: Describe a host and its environments
description:
  - Reports facts, which the role tensorflow evaluates. Nothing is changed.
options:
  root:
    description: Folder of the environments and of the links. C(~) is expanded on the host.
    type: path
    required: true
  link:
    description: Name of the link under O(root) that will lead to an environment.
    type: str
    required: true
  python:
    description: The host's Python, a name on its PATH or a path. C(~) is expanded on the host.
    type: path
    default: python3
  wheelhouse:
    description: Folder with wheels on the host. Empty for none.
    type: path
    default: ""
attributes:
  check_mode:
    description: Nothing is changed in any mode.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Describe the host
  tensorflow_ansible.cluster.tensorflow_host:
    root: ~/train
    link: venv
  register: found
"""

RETURN = r"""
root:
  description: The folder O(root), with an absolute path.
  type: str
  returned: success
folder:
  description: >-
    The folder O(root) or the first one above it that exists (C(path)), whether it is a folder that
    the user may write to (C(writable)), and the free space there in units of 10^6 bytes
    (C(free_mb)).
  type: dict
  returned: success
environments:
  description: >-
    The environments under C(ROOT/venvs), by name. Each value is the environment's marker, or an
    empty dictionary if the environment is unfinished or its Python no longer exists.
  type: dict
  returned: success
links:
  description: The links under O(root) to environments. Names of links, with names of environments.
  type: dict
  returned: success
link_is_taken:
  description: Whether something that is not a link is at O(link).
  type: bool
  returned: success
python:
  description: >-
    The host's Python. C(program) is the path that was found for O(python), or empty. C(path) is the
    interpreter without symbolic links, and C(version) its version. Both are empty if it is not a
    complete Python 3; C(returncode) and the last lines of C(errors) then show why.
  type: dict
  returned: success
nvidia:
  description: Whether there is an NVIDIA driver.
  type: bool
  returned: success
driver:
  description: >-
    The driver's C(version), empty if it is unknown, and the number of C(gpus) that it shows. Null
    if it shows none.
  type: dict
  returned: success
device_files:
  description: Number of the GPUs' device files.
  type: int
  returned: success
cuda_visible_devices:
  description: CUDA_VISIBLE_DEVICES in the environment of the login, or null.
  type: str
  returned: success
programs:
  description: Programs that the role has sent, as paths under C(ROOT/venvs/.bin).
  type: list
  elements: str
  returned: success
has_wheelhouse:
  description: Whether O(wheelhouse) is a folder.
  type: bool
  returned: success
machine:
  description: Architecture of the processor.
  type: str
  returned: success
glibc:
  description: Version of the GNU C library. Empty if the C library is another one.
  type: str
  returned: success
"""

import glob
import os
import platform
import re
import shutil
import subprocess
from contextlib import suppress
from typing import Any, Dict, Optional

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.tensorflow_setup import environments

#: Resolves symbolic links, because an environment that uv makes through one may not find the
#: standard library. Without the module venv, most of that is missing, as in python3-minimal.
PROBE = """\
import os, platform, sys, venv
print(os.path.realpath(sys.executable))
print(platform.python_version())
"""
#: The driver's files. In a container, they show only its GPUs.
PROC = "/proc/driver/nvidia"
DEV = "/dev"


def python(command: str) -> Dict[str, Any]:
    """Return the interpreter for a name or path; see the module's result."""
    program = shutil.which(command) or ""
    found: Dict[str, Any] = {"program": program, "path": "", "version": ""}
    if program:
        done = subprocess.run([program, "-I", "-c", PROBE], capture_output=True, check=False)
        answer = done.stdout.decode(errors="replace").splitlines()
        if not done.returncode and len(answer) == 2:
            found["path"], found["version"] = answer
        found["returncode"] = done.returncode
        found["errors"] = done.stderr.decode(errors="replace").splitlines()[-10:]
    return found


def folder(root: str) -> Dict[str, Any]:
    """Return the first existing folder at or above a path; see the module's result."""
    path = os.path.join(root, "venvs")
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    writable = os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)
    disk = os.statvfs(path)
    return {"path": path, "writable": writable, "free_mb": disk.f_bavail * disk.f_frsize // 10**6}


def device_files() -> int:
    """Return the number of device files of GPUs."""
    return len(glob.glob(os.path.join(DEV, "nvidia[0-9]*")))


def driver() -> Optional[Dict[str, Any]]:
    """Return the version of the driver and the number of its GPUs, or None without GPUs.

    Only files are read: no GPU is opened.
    """
    try:
        gpus = len(os.listdir(os.path.join(PROC, "gpus")))
    except OSError:
        gpus = device_files()
    version = None
    with suppress(OSError), open(f"{PROC}/version", encoding="utf-8", errors="replace") as stream:
        pattern = r"^NVRM version:.*?\s([0-9]+\.[0-9]+(?:\.[0-9]+)?)\s"
        version = re.search(pattern, stream.read(), re.M)
    return {"version": version.group(1) if version else "", "gpus": gpus} if gpus else None


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "link": {"type": "str", "required": True},
            "python": {"type": "path", "default": "python3"},
            "wheelhouse": {"type": "path", "default": ""},
        },
        supports_check_mode=True,
    )
    root, wheelhouse = module.params["root"], module.params["wheelhouse"]
    link, venvs = (os.path.join(root, name) for name in (module.params["link"], "venvs"))
    libc, glibc = platform.libc_ver()
    module.exit_json(
        changed=False,
        root=root,
        folder=folder(root),
        environments={
            name: environments.usable_marker(os.path.join(venvs, name))
            for name in environments.names(venvs)
        },
        links=environments.links(root),
        link_is_taken=os.path.lexists(link) and not os.path.islink(link),
        python=python(module.params["python"]),
        nvidia=any(os.path.exists(path) for path in (f"{DEV}/nvidia0", f"{PROC}/version")),
        driver=driver(),
        device_files=device_files(),
        cuda_visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        programs=[
            os.path.relpath(path, f"{venvs}/.bin") for path in glob.glob(f"{venvs}/.bin/*/*")
        ],
        has_wheelhouse=os.path.isdir(wheelhouse),
        machine=platform.machine(),
        glibc=glibc if libc == "glibc" else "",
    )


if __name__ == "__main__":
    main()
