#!/usr/bin/python
"""Ansible module: a virtual environment with the locked TensorFlow.

Standard library only, Python 3.8 and newer: it runs under the host's plain python3.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: tensorflow_venv
short_description: Keep a virtual environment with the locked TensorFlow
description:
  - Makes C(ROOT/venvs/tensorflow-VERSION-VARIANT-pyX.Y-HASH) from a lock file with hashes, imports
    it once, and then switches the link C(ROOT/ENVIRONMENT) to it in one step. With packages on top,
    makes C(ROOT/venvs/extra-HASH) in the same way, which finds the first one's packages as well.
  - Where the driver shows GPUs, TensorFlow with CUDA has to see as many.
  - After a switch, environments that nobody needs any more are removed.
options:
  state:
    description: V(absent) removes all environments, the links to them and what was sent.
    type: str
    choices: [present, absent]
    default: present
  root:
    description: Folder of the environments and of the links. C(~) is expanded on the host.
    type: path
    required: true
  environment:
    description: Name of the link under O(root).
    type: str
    default: venv
  python:
    description: The host's Python, a name on its PATH or a path.
    type: str
    default: python3
  supported_python:
    description: Oldest and newest Python (X.Y) that the locked TensorFlow has wheels for.
    type: list
    elements: str
    default: ["3.10", "3.13"]
  variant:
    description: Which lock to use. V(auto) takes V(gpu) where the host has an NVIDIA driver.
    type: str
    choices: [auto, cpu, gpu]
    default: auto
  locks:
    description: What lock files lock, one for each variant; see the filter tensorflow_locks.
    type: list
    elements: dict
  extra:
    description: The same of the lock file of packages on top of TensorFlow. Empty for none.
    type: dict
  keep:
    description: How many environments stay after a switch, the one in use included. 0 keeps all.
    type: int
    default: 2
  space_mb:
    description: >-
      Free space in units of 10^6 bytes that an installation needs, for each variant: C(installed),
      and C(download) in addition without O(wheelhouse). Needed where something is installed.
    type: dict
  require_gpus:
    description: Whether it is an error if TensorFlow sees fewer GPUs than the driver shows.
    type: bool
    default: true
  driver_minimum:
    description: The oldest NVIDIA driver that the locked TensorFlow can use, for messages.
    type: str
    default: ""
  wheelhouse:
    description: Folder with wheels on the host, used in place of an index. Empty for an index.
    type: path
    default: ""
  index_url:
    description: >-
      Package index, given to uv by its environment. Empty for the one that the host's user has set,
      for uv or for pip.
    type: str
    default: ""
  sent:
    description: >-
      Folder on the host with the lock files as C(tensorflow.txt) and C(extra.txt). Needed where
      something is installed.
    type: path
    default: ""
  uv:
    description: The program uv on the host, which installs. Needed where something is installed.
    type: path
    default: uv
attributes:
  check_mode:
    description: Reports what would be done, with the same checks, and changes nothing.
    support: full
  diff_mode:
    description: Shows the link and the environments before and after.
    support: full
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Make the environment from wheels on the host
  tensorflow_venv:
    root: ~/train
    locks: "{{ ['/home/me/cpu.txt'] | tensorflow_locks }}"
    space_mb: {cpu: {installed: 1900, download: 500}, gpu: {installed: 7400, download: 3600}}
    wheelhouse: /srv/wheels
    sent: /home/train/sent
    uv: /home/train/.local/bin/uv

- name: Remove all environments
  tensorflow_venv:
    root: ~/train
    state: absent
"""

RETURN = r"""
version:
  description: The locked version of TensorFlow. Like all but the last two, for O(state=present).
  type: str
  returned: success
variant:
  description: The variant that the host has, V(cpu) or V(gpu).
  type: str
  returned: success
venv:
  description: The environment, to which the link points.
  type: str
  returned: success
link:
  description: The link that points to it.
  type: str
  returned: success
python_version:
  description: Version of the host's Python.
  type: str
  returned: success
parts:
  description: What was done (in check mode, would be); V(tensorflow), V(extra), V(trial), V(link).
  type: list
  elements: str
  returned: success
sizes_mb:
  description: >-
    About how much TensorFlow's wheels (C(wheels)) and the environment (C(installed)) take, in MB.
  type: dict
  returned: success
gpus:
  description: GPUs that the driver shows (C(driver)) and TensorFlow saw (C(tensorflow)), or null.
  type: dict
  returned: success
removed:
  description: What was removed (in check mode, would be).
  type: list
  elements: str
  returned: success
notes:
  description: What stays that would go, and why, each in one sentence.
  type: list
  elements: str
  returned: success
"""

import os
from contextlib import nullcontext
from typing import Any, Dict, List, Set
from urllib.parse import urlsplit

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.tensorflow_setup import cleanup, installation
from ansible.module_utils.tensorflow_setup.programs import SetupError
from ansible.module_utils.tensorflow_setup.wanted import Wanted


def make(params: Dict[str, Any], check_only: bool) -> Dict[str, Any]:
    """Do what the module's parameters want, or report what would be done; returns its result."""
    wanted = Wanted(params)
    before, there = wanted.target(), set(cleanup.environments(wanted.folder))
    parts = wanted.missing()
    removed: List[str] = []
    notes: List[str] = []
    if parts:
        installation.check_host(wanted)
        if not check_only:
            os.makedirs(wanted.folder, exist_ok=True)
        with nullcontext(0) if check_only else installation.exclusive(wanted.folder) as held:
            parts = wanted.missing()  # who held the lock before may have done it all
            if not check_only:
                apply(wanted, held)
            if "link" in parts:
                removed, notes = cleanup.remove_old(wanted, before, check_only)
    tried = wanted.tried()
    names = {each.name for each in wanted.environments}
    return {
        "changed": bool(parts),
        "parts": parts,
        "removed": removed,
        "notes": notes,
        "gpus": wanted.driver and {"driver": wanted.driver.gpus, "tensorflow": tried.get("gpus")},
        "version": wanted.lock["version"],
        "variant": wanted.lock["variant"],
        "venv": wanted.environment.folder,
        "link": wanted.link,
        "python_version": wanted.python_version,
        "sizes_mb": {
            "wheels": installation.WHEELS_MB[wanted.lock["variant"]],
            "installed": installation.UNPACKED_MB[wanted.lock["variant"]],
        },
        "warnings": [tried["problem"]] if tried.get("problem") else [],
        "diff": {
            "before": listing(wanted, before, there),
            "after": listing(wanted, wanted.environment.folder, there - {*removed} | names),
        },
    }


def apply(wanted: Wanted, held: int) -> None:
    """Install, try and link what is wanted.

    With a SetupError, the link and what it points to are as before.
    """
    for environment in wanted.environments:
        try:
            if not environment.finished():
                installation.install(environment, wanted, held)
                installation.accept(environment, wanted, held)
            elif environment is wanted.base and not wanted.accepted():
                installation.accept(environment, wanted, held)
        except SetupError:
            if not environment.finished():
                cleanup.discard(environment.folder)
            raise
    if not wanted.linked():
        wanted.switch_link()


def listing(wanted: Wanted, target: str, names: Set[str]) -> str:
    """The link and the environments, for the diff."""
    link = os.path.basename(wanted.link)
    text = f"{link} -> {os.path.basename(target)}\n" if target else ""
    return text + "".join(f"venvs/{name}\n" for name in sorted(names))


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "root": {"type": "path", "required": True},
            "environment": {"type": "str", "default": "venv"},
            "python": {"type": "str", "default": "python3"},
            "supported_python": {"type": "list", "elements": "str", "default": ["3.10", "3.13"]},
            "variant": {"type": "str", "choices": ["auto", "cpu", "gpu"], "default": "auto"},
            "locks": {"type": "list", "elements": "dict"},
            "extra": {"type": "dict"},
            "keep": {"type": "int", "default": 2},
            "space_mb": {"type": "dict"},
            "require_gpus": {"type": "bool", "default": True},
            "driver_minimum": {"type": "str", "default": ""},
            "wheelhouse": {"type": "path", "default": ""},
            "index_url": {"type": "str", "default": "", "no_log": True},
            "sent": {"type": "path", "default": ""},
            "uv": {"type": "path", "default": "uv"},
        },
        required_if=[("state", "present", ("locks", "space_mb"))],
        supports_check_mode=True,
    )
    params = module.params
    # uv hides passwords itself; this hides them in everything else.
    module.no_log_values.update(filter(None, [urlsplit(params["index_url"]).password]))
    try:
        if params["state"] == "present":
            result = make(params, module.check_mode)
        else:
            removed, notes = cleanup.remove_all(params["root"], module.check_mode)
            result = {"changed": bool(removed), "removed": removed, "notes": notes}
    except SetupError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(
            msg=f"{error}. tensorflow_root is {params['root']}: it must be a folder that this user"
            " may write to."
        )
    for warning in result.pop("warnings", []):
        module.warn(warning)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
