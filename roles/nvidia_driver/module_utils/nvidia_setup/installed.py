"""Packages that are installed."""

from __future__ import annotations

import os
import subprocess
from typing import List, Set, Tuple

from .system import Host, run, search_path, start


def dpkg_status(host: Host) -> Tuple[Set[str], bool]:
    """Return what dpkg has installed, and whether it was interrupted."""
    installed, name = set(), ""
    journal = host.path("var/lib/dpkg/updates")
    interrupted = os.path.isdir(journal) and bool(os.listdir(journal))
    for line in (host.read("var/lib/dpkg/status") or "").splitlines():
        if line.startswith("Package: "):
            name = line[9:].strip()
        elif line.startswith("Status: "):
            state = line.split()[-1]
            if state == "installed":
                installed.add(name)
            interrupted = interrupted or state not in ("installed", "config-files", "not-installed")
    return installed, interrupted


def missing_rpms(names: List[str]) -> List[str]:
    """Return those of ``names`` that rpm does not have."""
    return [name for name in names if run("rpm", "-q", "--quiet", name).status]


def missing_packages(host: Host, family: str, names: List[str]) -> List[str]:
    """Return those of ``names`` that are not installed."""
    if family == "debian":
        installed, _ = dpkg_status(host)
        return [name for name in names if name not in installed]
    return missing_rpms(names)


def missing(names: List[str], family: str) -> List[str]:
    """Return those of ``names`` that are not installed, as the package manager itself says."""
    if family == "redhat":
        return missing_rpms(names)
    form = "--showformat=${Package} ${db:Status-Status}\\n"
    command = ("dpkg-query", "--show", form, *names)
    shown = start(command, subprocess.DEVNULL, search_path()).stdout.decode()
    states = [line.split() for line in shown.splitlines()]
    installed = {state[0] for state in states if state[1:] == ["installed"]}
    return [name for name in names if name not in installed]
