#!/usr/bin/python
"""Ansible module: remove old environments of frameworks.

Standard library only, Python 3.8 or newer: it runs with the host's python3.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: tensorflow_cleanup
short_description: Remove environments of frameworks that are not in use
description:
  - Removes environments under C(ROOT/venvs) that are neither needed nor used.
  - Keeps environments that a running process of the machine uses. Without O(everything), it also
    keeps environments that a link needs, those that were created or requested within the last hour
    (another run may be about to link them), and everything in a folder that other machines may use.
options:
  root:
    description: Folder of the environments and of the links. C(~) is expanded on the host.
    type: path
    required: true
  everything:
    description: Whether to remove all environments, the links to them, and files that were sent.
    type: bool
    default: false
  needed:
    description: Names of environments to keep; the first one is in use.
    type: list
    elements: str
    default: []
  link:
    description: Name of the link that was switched. It does not protect its target from removal.
    type: str
    default: ""
  previous:
    description: Name of the environment that was in use before. Empty if there was none.
    type: str
    default: ""
  keep:
    description: How many environments to keep, including the one in use. 0 keeps all.
    type: int
    default: 2
attributes:
  check_mode:
    description: Reports what would be removed.
    support: full
  diff_mode:
    description: Shows the paths that are removed.
    support: full
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Remove all but the current and the previous environment
  tensorflow_ansible.cluster.tensorflow_cleanup:
    root: ~/train
    link: venv
    needed: [tensorflow-2.21.0-cpu-py3.11-0123456789ab]
    previous: tensorflow-2.20.0-cpu-py3.11-ba9876543210

- name: Remove all environments
  tensorflow_ansible.cluster.tensorflow_cleanup:
    root: ~/train
    everything: true
"""

RETURN = r"""
removed:
  description: >-
    The removed environments (in check mode, those to remove), by name or, with O(everything), as
    paths.
  type: list
  elements: str
  returned: success
notes:
  description: Environments that could not be removed, each in one sentence with the reason.
  type: list
  elements: str
  returned: success
"""

import os
import re
import shutil
import time
from contextlib import nullcontext
from typing import Any, Dict, List, Optional, Tuple

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.tensorflow_setup import (
    environments,
)
from ..module_utils.tensorflow_setup.environments import (
    MARKER,
    SetupError,
    with_bases,
)

#: The folder with uv, and uv's cache for the next installation.
TOOLS = (".bin", environments.CACHE)
#: Seconds for which environments are kept after they were created or requested.
RECENT_S = 3600.0
PROC = "/proc"
MOUNTS = "/proc/self/mountinfo"
#: File systems that no other machine uses at the same time.
LOCAL = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "tmpfs", "overlay"}


def finished_at(folder: str) -> Dict[str, float]:
    """Return the times when the role's environments were last created or requested, by name.

    The time of an unfinished environment is 0.
    """
    paths = {name: os.path.join(folder, name) for name in environments.names(folder)}
    return {
        name: os.stat(os.path.join(path, MARKER)).st_mtime
        if environments.read_marker(path)
        else 0.0
        for name, path in paths.items()
    }


def remove_old(params: Dict[str, Any], check_only: bool) -> Tuple[List[str], List[str]]:
    """Remove environments that are no longer needed; see the module's options.

    Returns:
        The removed names (with ``check_only``, those to remove), and notes on others that are kept.
    """
    root, keep, previous = params["root"], params["keep"], params["previous"]
    folder = os.path.join(root, "venvs")
    if not keep or not os.path.isdir(folder):
        return [], []
    with nullcontext() if check_only else environments.exclusive(folder):
        found = finished_at(folder)
        linked = [to for name, to in environments.links(root).items() if name != params["link"]]
        recent = [name for name, at in found.items() if at > time.time() - RECENT_S]
        needed = with_bases(folder, [*params["needed"], *linked, *recent])
        spare = [name for name in found if found[name] and name not in needed]
        spare.sort(key=lambda name: (name == previous, found[name]), reverse=True)
        names = sorted(set(found) - needed - with_bases(folder, spare[: keep - 1]))
        shared = shared_with(folder) if names else ""
        if shared:
            return [], [f"Old environments in {folder} were kept ({len(names)}), because {shared}."]
        return _remove(root, names, check_only)


def remove_all(root: str, check_only: bool) -> Tuple[List[str], List[str]]:
    """Remove environments and links, except those that a running process uses.

    Returns:
        The removed paths (with ``check_only``, those to remove), and sentences on what remains.
    """
    folder = os.path.join(root, "venvs")
    gone: List[str] = []
    notes: List[str] = []
    if os.path.isdir(folder):
        with nullcontext() if check_only else environments.exclusive(folder):
            ours = environments.names(folder)
            names, notes = _remove(root, ours, check_only)
            rest = [name for name in sorted(os.listdir(folder)) if _is_left(name)]
            for name in [] if check_only else rest:
                _delete(os.path.join(folder, name))
            names += rest
            stay = {*ours} - {*names}
            unused = [link for link, to in environments.links(root).items() if to not in stay]
            links = [os.path.join(root, link) for link in unused]
            for path in [] if check_only else links:
                os.unlink(path)
            gone = sorted(links + [os.path.join(folder, name) for name in names])
        # A process that waits for the lock recreates the folder.
        if os.listdir(folder) == [".lock"] and not (check_only or os.path.ismount(folder)):
            shutil.rmtree(folder)
    others = set(os.listdir(root) if os.path.isdir(root) else []) - {"venvs"}
    others -= {os.path.basename(path) for path in gone}
    notes += [f"{root} was kept: it contains {', '.join(sorted(others))}."] if others else []
    return gone, notes


def _is_left(name: str) -> bool:
    """Return whether an entry belongs to the role but is not an environment.

    These are tools, and files for an installation that was interrupted.
    """
    lock, _, ending = name.rpartition(".")
    sent = name.startswith(".sent-") or (ending == "txt" and environments.NAMES.fullmatch(lock))
    return bool(name in TOOLS or sent)


def _remove(root: str, names: List[str], check_only: bool) -> Tuple[List[str], List[str]]:
    """Remove environments unless they are in use; return the removed names, and notes on others."""
    used = in_use(root, names)
    notes = [f"{name} was kept, because {used[name]} uses it." for name in sorted(used)]
    unused = [name for name in names if name not in used]
    if check_only:
        return unused, notes
    gone = []
    for name in unused:
        try:
            environments.discard(os.path.join(root, "venvs", name))
        except OSError as error:
            notes.append(f"{name} could not be removed: {error}.")
        else:
            gone.append(name)
    return gone, notes


def _delete(path: str) -> None:
    """Remove a file, or a folder with its contents."""
    if os.path.isdir(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def shared_with(folder: str) -> str:
    """Return why processes that are not visible here may use a folder, or an empty string."""
    path = os.path.realpath(folder)
    point, kind = "", ""
    with open(MOUNTS, encoding="utf-8", errors="replace") as stream:
        for line in stream:
            before, _, after = line.partition(" - ")
            mounted = re.sub(r"\\([0-9]{3})", lambda m: chr(int(m.group(1), 8)), before.split()[4])
            inside = path == mounted or path.startswith(mounted.rstrip("/") + "/")
            if inside and len(mounted) >= len(point):  # of two mounts, the later is visible
                point, kind = mounted, after.split()[0]
    if kind not in LOCAL:
        return f"other machines may use them (filesystem {kind})"
    return "it is a separate mount, which others may use" if point == path else ""


def in_use(root: str, names: List[str]) -> Dict[str, str]:
    """Return the environments among ``names`` that are in use, each with a process of this machine.

    The memory map of a process shows the files that it has loaded. ``/proc/PID/exe`` does not help,
    because it is the host's Python.
    """
    places = {os.path.join(path, "").encode() for path in (root, os.path.realpath(root))}
    used: Dict[str, str] = {}
    for pid in filter(str.isdigit, os.listdir(PROC)):
        process = os.path.join(PROC, pid)
        command = _read(os.path.join(process, "cmdline")) or b""
        loaded = _read(os.path.join(process, "maps"))
        text = b"\0".join((command, loaded or b"", _read(os.path.join(process, "cwd")) or b""))
        # For another user's process, only the command is visible.
        hidden = loaded is None and any(place in command for place in places)
        for name in names:
            if hidden or name.encode() in text:
                program = os.path.basename(command.split(b"\0")[0]).decode(errors="replace")
                used.setdefault(name, f"process {pid} ({program})")
    # The environment of a running process needs those below it.
    below = with_bases(os.path.join(root, "venvs"), used) & set(names)
    return {**dict.fromkeys(below, "an environment in use"), **used}


def _read(path: str) -> Optional[bytes]:
    """Return a file or link of a process: None if it is hidden, empty if the process has ended."""
    try:
        if os.path.islink(path):
            return os.readlink(path).encode()
        with open(path, "rb") as stream:
            return stream.read()
    except PermissionError:
        return None
    except OSError:
        return b""


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "everything": {"type": "bool", "default": False},
            "needed": {"type": "list", "elements": "str", "default": []},
            "link": {"type": "str", "default": ""},
            "previous": {"type": "str", "default": ""},
            "keep": {"type": "int", "default": 2},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        if params["everything"]:
            removed, notes = remove_all(params["root"], module.check_mode)
        else:
            removed, notes = remove_old(params, module.check_mode)
    except SetupError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error}. This user must own tensorflow_root ({params['root']}).")
    diff = {"before": "".join(f"{name}\n" for name in removed), "after": ""}
    module.exit_json(changed=bool(removed), removed=removed, notes=notes, diff=diff)


if __name__ == "__main__":
    main()
