"""Which packages are installed, without a package manager's library."""

from __future__ import annotations

import subprocess
from typing import List, Set

DPKG_STATUS = "/var/lib/dpkg/status"


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
