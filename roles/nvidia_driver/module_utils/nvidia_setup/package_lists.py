"""What apt and dnf say they can install."""

from __future__ import annotations

import subprocess
from typing import Dict, List, Tuple

from .fit import PackageError
from .system import start

#: Where the package managers are; nobody's own program stands for one of them.
SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def stdout_of(*command: str) -> str:
    """Return a program's standard output.

    Raises:
        PackageError: it fails.
    """
    done = start(command, subprocess.PIPE, SYSTEM_PATH)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise PackageError("`%s` failed: %s" % (" ".join(command), said))
    return done.stdout.decode(errors="replace")


def parse_policy(output: str) -> Dict[str, Tuple[str, str]]:
    """Return, from ``apt-cache policy``, each package's installed and candidate version."""
    versions: Dict[str, Tuple[str, str]] = {}
    name = installed = ""
    for line in output.splitlines():
        if line and not line.startswith(" ") and line.endswith(":"):
            name = line[:-1]
        elif line.startswith("  Installed: "):
            installed = line[13:].strip()
        elif line.startswith("  Candidate: "):
            versions[name] = (installed, line[13:].strip())
    return versions


def apt_candidates(names: List[str]) -> Dict[str, str]:
    """Return the versions that apt would install, of the packages that it can."""
    policy = parse_policy(stdout_of("apt-cache", "policy", *names))
    return {name: version for name, (_, version) in policy.items() if version != "(none)"}


def apt_names(prefix: str) -> List[str]:
    """Return the names of all packages that begin so."""
    return stdout_of("apt-cache", "pkgnames", prefix).split()


def dnf_candidates(names: List[str]) -> Dict[str, str]:
    """Return the versions that dnf would install, of the packages that it can."""
    lines = stdout_of(
        "dnf", "-q", "repoquery", "--qf", "%{name}-%{version}-%{release}.%{arch}\n", *names
    )
    found = {}
    for name in names:
        for line in lines.splitlines():
            # a name alone, or with its version
            if line.startswith(name):
                found[name] = line[len(name) :].lstrip("-")
    return found
