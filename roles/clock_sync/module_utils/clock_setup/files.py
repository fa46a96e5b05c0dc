"""The files that chrony is set up with, as they are wanted."""

from __future__ import annotations

import hashlib
import ipaddress
import re
import socket
from typing import Any, Dict, List, Optional

from .host import DAEMON, HostError

HEADER = "# Written by the role clock_sync.\n"
#: In the main file: before a line that the role has put out of use; above a line that it added.
OFF = "#clock_sync# "
ADDED = "# The next line is from the role clock_sync."
SOURCE_LINE = re.compile(r"^\s*(?:pool|server|peer)\s", re.IGNORECASE)


def resolve(names: List[str]) -> List[str]:
    """Return the addresses of names and addresses, sorted, without loopback.

    Raises:
        HostError: a name has no address.
    """
    found = set()
    for name in names:
        try:
            found.add(ipaddress.ip_network(name, strict=False))
            continue
        except ValueError:
            pass
        try:
            answers = socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)
        except socket.gaierror as error:
            raise HostError(
                "this host cannot resolve %s (%s): set clock_sync_allow to addresses or networks"
                % (name, error.strerror)
            ) from error
        found |= {ipaddress.ip_network(str(answer[4][0]).partition("%")[0]) for answer in answers}
    wanted = [network for network in found if not network.is_loopback]
    wanted.sort(key=lambda network: (network.version, network.network_address, network.prefixlen))
    return [
        str(network.network_address if network.num_addresses == 1 else network)
        for network in wanted
    ]


def own_text(params: Dict[str, Any]) -> str:
    """Return the role's own file, empty where chrony needs nothing of it.

    Raises:
        HostError: a name in ``serve`` has no address.
    """
    lines = ["server %s iburst" % name for name in params["servers"]]
    lines += ["pool %s iburst" % name for name in params["pools"]]
    if params["serve"]:
        lines.append("# Without another source, the cluster goes by this host's own clock.")
        lines.append("local stratum 10")
        lines += ["allow %s" % address for address in resolve(params["serve"])]
    return HEADER + "".join(line + "\n" for line in lines) if lines else ""


def main_text(text: str, own_sources: bool, folder: Optional[str]) -> str:
    """Return chrony's main file with the distribution's sources off or on.

    Args:
        text: the file as it is.
        own_sources: whether the role's file names sources, which then are the only ones.
        folder: the folder of the role's file, which the main file then has to name.
    """
    lines: List[str] = []
    found = iter(text.splitlines())
    for line in found:
        if line == ADDED:
            next(found, "")
            continue
        bare = line[len(OFF) :] if line.startswith(OFF) else line
        lines.append(OFF + bare if own_sources and SOURCE_LINE.match(bare) else bare)
    if folder and ["confdir", folder] not in [line.split() for line in lines]:
        lines += [ADDED, "confdir " + folder]
    return text if lines == text.splitlines() else "".join(line + "\n" for line in lines)


def drop_in_text(options: str) -> str:
    """Return the unit's drop-in for a host that may not set its clock."""
    return (
        HEADER
        + """# This host may not set its clock (no CAP_SYS_TIME): chrony watches it only (-x).
[Unit]
ConditionCapability=
[Service]
ExecStart=
ExecStart=!%s %s -x
"""
        % (DAEMON, options)
    )


def digest(files: List[Dict[str, str]]) -> str:
    """Return a hash of files as `wanted_files` gives them."""
    return hashlib.sha256(repr([(f["path"], f["text"]) for f in files]).encode()).hexdigest()
