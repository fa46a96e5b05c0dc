#!/usr/bin/python
"""Ansible module: give a host a virtual environment with the locked TensorFlow.

Standard library only, Python 3.8 and newer: it runs under the host's plain python3.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: tensorflow_venv
short_description: Give a host a virtual environment with the locked TensorFlow
description:
  - Makes C(ROOT/venvs/tensorflow-VERSION-VARIANT-pyX.Y-HASH) from a lock file with hashes, checks
    that what it has to bring can be imported, and then switches the link C(ROOT/venv) to it in one
    step.
  - With packages on top, makes C(ROOT/venvs/extra-HASH) in the same way, which finds the first
    one's packages as well, and switches the link to it.
  - All of it happens under a lock file on the host. Of two ranks on one machine the second waits
    and then finds the work done.
  - An environment is finished when its marker file is there, which is written last. A half-made
    one is removed and made again.
  - Where the driver shows GPUs, TensorFlow with CUDA has to see as many. What it saw is remembered
    until the driver's version or the number of its GPUs is another.
  - After a switch, environments that nobody needs any more are removed. What a running process has
    loaded stays.
  - Neither root nor ensurepip (Debian's python3-venv) is needed on the host. The action plugin of
    the same name sends pip and the lock file, and only to a host that lacks something.
options:
  root:
    description: Folder of the environments and of the links, on the host. C(~) is expanded there.
    type: path
    required: true
  environment:
    description: Name of the link under O(root) that has to point to the environment.
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
    required: true
  variant:
    description: Which lock to use. V(auto) takes V(gpu) where the host has an NVIDIA device.
    type: str
    choices: [auto, cpu, gpu]
    default: auto
  locks:
    description:
      - Lock files on the control node, at most one for each variant.
      - The action plugin replaces each path by a dictionary of what the file locks, with the keys
        C(path), C(variant), C(version), C(sha256) and C(imports), the modules that must be
        importable. The first of them carries the version.
    type: list
    elements: raw
    required: true
  extra_requirements:
    description:
      - Lock file on the control node, with hashes, of packages on top of TensorFlow. Empty for
        none.
      - The action plugin replaces it by a dictionary with the keys C(path) and C(sha256).
    type: raw
  wheelhouse_source:
    description:
      - Folder with wheels on the control node. The action plugin sends those that a host needs and
        does not hand this option on. Excludes O(wheelhouse).
    type: path
  keep:
    description:
      - How many environments stay after a switch, the one in use included. Those that another link
        or a running process uses stay in any case. 0 keeps all.
    type: int
    default: 2
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
    description:
      - Package index. Empty leaves it to pip's own configuration on the host.
      - Handed to pip by its environment, so that no password stands in a process list.
    type: str
    default: ""
  pip_zip:
    description:
      - Archive on the host with the package C(pip). Set by the action plugin.
      - Without it the module only looks, as in check mode.
    type: path
  lock_file:
    description: The lock file on the host. Set by the action plugin.
    type: path
  extra_file:
    description: The lock file of O(extra_requirements) on the host. Set by the action plugin.
    type: path
attributes:
  check_mode:
    description: Reports what would be done, with the same checks, and changes nothing.
    support: full
  diff_mode:
    description: Shows where the link points before and after.
    support: full
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Make the environment from the role's own locks
  tensorflow_venv:
    root: ~/train
    supported_python: ["3.10", "3.13"]
    locks: [cpu.txt, gpu.txt]

- name: Make it without a network, from wheels on the host
  tensorflow_venv:
    root: ~/train
    supported_python: ["3.10", "3.13"]
    locks: [cpu.txt, gpu.txt]
    variant: cpu
    wheelhouse: /srv/wheels

- name: Put a script's packages on top of it, under a link of their own
  tensorflow_venv:
    root: ~/train
    supported_python: ["3.10", "3.13"]
    locks: [cpu.txt, gpu.txt]
    environment: nlp
    extra_requirements: nlp.txt
"""

RETURN = r"""
version:
  description: The locked version of TensorFlow.
  type: str
  returned: success
  sample: 2.21.0
variant:
  description: The variant that the host has, V(cpu) or V(gpu).
  type: str
  returned: success
  sample: cpu
venv:
  description: The environment's folder on the host, to which the link points.
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
  sample: 3.11.2
installed:
  description: Whether packages were installed (in check mode, would be).
  type: bool
  returned: success
parts:
  description: Of what, V(tensorflow) and V(extra).
  type: list
  elements: str
  returned: success
removed:
  description: Names of old environments that were removed (in check mode, would be).
  type: list
  elements: str
  returned: success
notes:
  description: Why old environments stay that would go, each in one sentence.
  type: list
  elements: str
  returned: success
gpus:
  description:
    - How many GPUs the driver shows (C(driver)), and how many of them TensorFlow saw
      (C(tensorflow)). Null for the variant V(cpu), and where there are none.
  type: dict
  returned: success
"""

import os
from typing import Any, Dict, List, NamedTuple

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.tensorflow_setup import acceptance, cleanup, gpus, installation
from ansible.module_utils.tensorflow_setup.interpreter import choose_lock, examine_python
from ansible.module_utils.tensorflow_setup.places import Place, locate
from ansible.module_utils.tensorflow_setup.programs import SetupError


class Done(NamedTuple):
    """What was done, or would be."""

    parts: List[str]
    removed: List[str]
    notes: List[str]
    warnings: List[str]


def missing_parts(place: Place) -> List[str]:
    """What has to be installed."""
    parts = [] if place.base.finished() else ["tensorflow"]
    return parts + (["extra"] if place.extra and not place.extra.finished() else [])


def bring_about(place: Place, work: installation.Work) -> Done:
    """Install, try and link what is wanted, and remove what nobody needs then.

    Raises:
        SetupError: the link and what it points to are as before.
    """
    parts = missing_parts(place)
    warnings: List[str] = []
    if "tensorflow" in parts:
        cleanup.remove(place.folder, [place.base.name])
        installation.check_space(place, work.params["wheelhouse"])
        try:
            installation.install(place.base, work.params["lock_file"], work)
            warnings = acceptance.accept_base(place, work)
        except SetupError:
            if not place.base.finished():
                cleanup.remove(place.folder, [place.base.name])
            raise
    elif not place.accepted():
        warnings = acceptance.accept_base(place, work)
    if place.extra and "extra" in parts:
        try:
            installation.install(place.extra, work.params["extra_file"], work, below=place.base)
            acceptance.accept_extra(place, work)
        except SetupError:
            cleanup.remove(place.folder, [place.extra.name])
            raise
    if place.linked():
        return Done(parts, [], [], warnings)
    place.switch_link()
    old = cleanup.leftovers(place, work.params["keep"])
    removed, failures = cleanup.remove(place.folder, old.names)
    return Done(parts, removed, old.notes + failures, warnings)


def look(place: Place, params: Dict[str, Any]) -> Done:
    """Tell what would be done, with the checks that need no change."""
    parts = missing_parts(place)
    installation.check_input(place, params["wheelhouse"])
    # Somebody who installs now, and what is half made, take up space that comes free again.
    free = not os.path.lexists(place.base.folder)
    if "tensorflow" in parts and free and not installation.busy(lock_path(place)):
        installation.check_space(place, params["wheelhouse"])
    if place.linked() or not os.path.isdir(place.root):
        return Done(parts, [], [], [])
    old = cleanup.leftovers(place, params["keep"])
    return Done(parts, old.names, old.notes, [])


def lock_path(place: Place) -> str:
    """The file that is locked while something is installed."""
    return os.path.join(place.folder, ".lock")


def run(params: Dict[str, Any], look_only: bool) -> Dict[str, Any]:
    """Do the module's work; returns its result.

    Raises:
        SetupError: for everything that a person has to mend.
        OSError: for a folder that cannot be written, among others.
    """
    lock = choose_lock(params["locks"], params["variant"])
    python = examine_python(params["python"], params["supported_python"], lock)
    place = locate(params, lock, python, gpus.look() if lock.variant == "gpu" else None)
    before = place.target()
    changed, done = not place.ready(), Done([], [], [], [])
    if changed:
        done = look(place, params)
        if not look_only:
            os.makedirs(place.folder, exist_ok=True)
            with installation.exclusive(lock_path(place)) as held:
                changed = not place.ready()  # who held the lock before may have done it all
                work = installation.Work(python, params, held)
                done = bring_about(place, work) if changed else Done([], [], [], [])
    seen = place.gpus_seen()
    if place.driver and seen is not None and seen < place.driver.gpus and not done.warnings:
        found = acceptance.fewer_gpus(lock.version, place.driver, seen)
        done.warnings.append(
            f"{found}, as was found once. With tensorflow_require_gpus=true it is looked at again."
        )
    return {
        "changed": changed,
        "installed": bool(done.parts),
        "parts": done.parts,
        "removed": done.removed,
        "notes": done.notes,
        "gpus": {"driver": place.driver.gpus, "tensorflow": seen} if place.driver else None,
        "version": lock.version,
        "variant": lock.variant,
        "venv": place.wanted.folder,
        "link": place.link,
        "python_version": python.version,
        "warnings": done.warnings,
        "diff": {
            "before_header": place.link,
            "after_header": place.link,
            "before": f"{before or 'no link'}\n",
            "after": f"{os.path.realpath(place.wanted.folder)}\n",
        },
    }


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "environment": {"type": "str", "default": "venv"},
            "python": {"type": "str", "default": "python3"},
            "supported_python": {"type": "list", "elements": "str", "required": True},
            "variant": {"type": "str", "choices": ["auto", "cpu", "gpu"], "default": "auto"},
            "locks": {"type": "list", "elements": "raw", "required": True},
            "extra_requirements": {"type": "raw"},
            "keep": {"type": "int", "default": 2},
            "require_gpus": {"type": "bool", "default": True},
            "driver_minimum": {"type": "str", "default": ""},
            "wheelhouse": {"type": "path", "default": ""},
            "wheelhouse_source": {"type": "path"},
            "index_url": {"type": "str", "default": "", "no_log": True},
            "pip_zip": {"type": "path"},
            "lock_file": {"type": "path"},
            "extra_file": {"type": "path"},
        },
        required_together=[("pip_zip", "lock_file")],
        supports_check_mode=True,
    )
    try:
        # pip hides passwords itself; this hides them in whatever else is said.
        secrets = installation.check_index_url(module.params["index_url"])
        module.no_log_values.update(secrets)
        result = run(module.params, module.check_mode or not module.params["pip_zip"])
    except SetupError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(
            msg=f"{error}. tensorflow_root is {module.params['root']}: it must be a folder that"
            " this user may write to."
        )
    for warning in result.pop("warnings"):
        module.warn(warning)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
