"""Which distribution a host has, and of which family that is."""

from __future__ import annotations

import shlex
from typing import Dict

OS_RELEASE = "/etc/os-release"


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
