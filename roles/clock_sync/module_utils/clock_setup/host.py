"""The host: its family of distributions, and where that keeps what of chrony."""

from __future__ import annotations

import os

from ansible.module_utils.host_setup.distribution import family, os_release

#: Where each family keeps what: the main file, the folder of own files, the unit, its options.
FAMILIES = {
    "debian": {
        "main": "/etc/chrony/chrony.conf",
        "folder": "/etc/chrony/conf.d",
        "unit": "chrony.service",
        "options": "$DAEMON_OPTS",
    },
    "redhat": {
        "main": "/etc/chrony.conf",
        "folder": "/etc/chrony.d",
        "unit": "chronyd.service",
        "options": "$OPTIONS",
    },
}
DAEMON = "/usr/sbin/chronyd"


class HostError(Exception):
    """The host is none that the role can work on; the message says why."""


def host_family(root: str = "/") -> str:
    """Return the key of `FAMILIES` for this host.

    Raises:
        HostError: there is none, or systemd does not run.
    """
    if not os.path.isdir(os.path.join(root, "run/systemd/system")):
        raise HostError("no systemd runs on this host: the role clock_sync needs it for chrony")
    kind: str = family(os_release(os.path.join(root, "etc/os-release")))
    if kind in FAMILIES:
        return kind
    raise HostError(
        "this host is neither of Debian's nor of Red Hat's family: set its clock up by hand and"
        " leave the role clock_sync out"
    )


def read(path: str) -> str:
    """Return a file's text; empty where there is none."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as stream:
            return stream.read()
    except (FileNotFoundError, NotADirectoryError):
        return ""
