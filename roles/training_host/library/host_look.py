#!/usr/bin/python
"""Ansible module: tells in one call whether a host is as a role wants it.

Standard library only, Python 3.8 and newer: it runs under the host's plain python3.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: host_look
short_description: Tell in one call whether a host is as a role wants it
description:
  - Compares packages, services, files and folders with what is wanted and changes nothing. A role
    that finds its host ready skips its other tasks, each of which would cost as much as this one.
  - Runs under the host's Python alone, without a package manager's library.
options:
  packages:
    description:
      - Names of the packages that must be installed, by family (V(debian), V(redhat)). A host of
        another family has none of them.
    type: dict
    default: {}
  services:
    description: Names of systemd units that must be enabled and active.
    type: list
    elements: str
    default: []
  files:
    description:
      - Files that must be there. Each has C(path), and C(content) (the whole text), C(mode) (such
        as V("0644")) and C(owner) as far as they matter.
    type: list
    elements: dict
    default: []
  folders:
    description: Folders that must be there. Each has C(path), and C(mode) and C(owner).
    type: list
    elements: dict
    default: []
attributes:
  check_mode:
    support: full
author:
  - The project's authors
"""

EXAMPLES = r"""
- name: Look at the clock
  host_look:
    packages: {debian: [chrony], redhat: [chrony]}
    services: [chrony]
    files:
      - path: /etc/chrony/sources.d/cluster.sources
        content: "{{ lookup('ansible.builtin.template', 'cluster.sources.j2') }}"
  register: look

- name: Set the clock up
  ansible.builtin.include_tasks: converge.yml
  when: not look.ready
"""

RETURN = r"""
ready:
  description: Whether nothing differs.
  type: bool
  returned: success
differences:
  description: What differs, each in a few words.
  type: list
  elements: str
  returned: success
  sample: ["package chrony is not installed"]
family:
  description: V(debian), V(redhat) or the C(ID) of C(/etc/os-release).
  type: str
  returned: success
distribution:
  description: C(ID) of C(/etc/os-release), such as V(debian), V(ubuntu) or V(rocky).
  type: str
  returned: success
release:
  description: C(VERSION_ID) of C(/etc/os-release), such as V(12) or V(24.04).
  type: str
  returned: success
systemd:
  description: Whether systemd runs the host.
  type: bool
  returned: success
"""

import os
import pwd
import shlex
import stat
import subprocess
from typing import Any, Dict, List, Set

from ansible.module_utils.basic import AnsibleModule

OS_RELEASE = "/etc/os-release"
DPKG_STATUS = "/var/lib/dpkg/status"


def os_release(path: str = OS_RELEASE) -> Dict[str, str]:
    """Return the variables of ``os-release``; empty where there is none (os-release(5))."""
    values = {}
    try:
        with open(path, encoding="utf-8") as stream:
            for line in stream:
                name, found, value = line.strip().partition("=")
                if found and not name.startswith("#"):
                    values[name] = "".join(shlex.split(value))
    except FileNotFoundError:
        pass
    return values


def family(release: Dict[str, str]) -> str:
    """Return the family of a distribution: the one whose package manager it has."""
    names = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    if "debian" in names or "ubuntu" in names:
        return "debian"
    if "rhel" in names or "fedora" in names:
        return "redhat"
    return names[0]


def dpkg_installed(path: str = DPKG_STATUS) -> Set[str]:
    """Return the names of the packages that dpkg's status file calls installed."""
    installed, name = set(), ""
    with open(path, encoding="utf-8", errors="replace") as stream:
        for line in stream:
            if line.startswith("Package: "):
                name = line[9:].strip()
            elif line.startswith("Status: ") and line.split()[-1] == "installed":
                installed.add(name)
    return installed


def missing_packages(names: List[str], kind: str) -> List[str]:
    """Return those of ``names`` that are not installed."""
    if not names:
        return []
    if kind == "debian":
        installed = dpkg_installed()
        return [name for name in names if name not in installed]
    return [
        name
        for name in names
        if subprocess.run(["rpm", "-q", "--quiet", name], check=False).returncode
    ]


def check_services(names: List[str]) -> List[str]:
    """Return what differs of the units: they must be enabled and active."""
    if not names:
        return []
    shown = subprocess.run(
        ["systemctl", "show", "--property=ActiveState,UnitFileState", *names],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    ).stdout.decode()
    differences = []
    for name, block in zip(names, (shown.split("\n\n") + [""] * len(names))):
        state = dict(line.partition("=")[::2] for line in block.split())
        if state.get("ActiveState") != "active":
            differences.append("service %s is not active" % name)
        elif state.get("UnitFileState") not in ("enabled", "alias", "static", "generated"):
            differences.append("service %s is not enabled" % name)
    return differences


def check_path(wanted: Dict[str, Any], folder: bool) -> List[str]:
    """Return what differs of a file or folder.

    Raises:
        OSError: it cannot be read.
    """
    path = wanted["path"]
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return ["%s is not there" % path]
    if stat.S_ISDIR(found.st_mode) != folder:
        return ["%s is %s folder" % (path, "no" if folder else "a")]
    differences = []
    if wanted.get("mode") and stat.S_IMODE(found.st_mode) != int(str(wanted["mode"]), 8):
        differences.append("%s has mode %04o" % (path, stat.S_IMODE(found.st_mode)))
    if wanted.get("owner"):
        try:
            owner = pwd.getpwuid(found.st_uid).pw_name
        except KeyError:
            owner = str(found.st_uid)
        if owner != wanted["owner"]:
            differences.append("%s belongs to %s" % (path, owner))
    if wanted.get("content") is not None and not folder:
        with open(path, "rb") as stream:
            if stream.read() != wanted["content"].encode():
                differences.append("%s has another content" % path)
    return differences


def look(params: Dict[str, Any]) -> Dict[str, Any]:
    """Return the module's result.

    Raises:
        OSError: a file cannot be read.
    """
    release = os_release()
    kind = family(release)
    missing = missing_packages(params["packages"].get(kind, []), kind)
    differences = ["package %s is not installed" % name for name in missing]
    systemd = os.path.isdir("/run/systemd/system")
    if systemd:
        differences += check_services(params["services"])
    else:
        differences += ["service %s: no systemd runs" % name for name in params["services"]]
    for wanted in params["folders"]:
        differences += check_path(wanted, folder=True)
    for wanted in params["files"]:
        differences += check_path(wanted, folder=False)
    return {
        "changed": False,
        "ready": not differences,
        "differences": differences,
        "family": kind,
        "distribution": release.get("ID", ""),
        "release": release.get("VERSION_ID", ""),
        "systemd": systemd,
    }


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "dict", "default": {}},
            "services": {"type": "list", "elements": "str", "default": []},
            "files": {"type": "list", "elements": "dict", "default": []},
            "folders": {"type": "list", "elements": "dict", "default": []},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**look(module.params))
    except OSError as error:
        module.fail_json(msg="%s: run the role with become" % error)


if __name__ == "__main__":
    main()
