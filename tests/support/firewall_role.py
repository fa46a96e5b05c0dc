"""What the tests of the role ``firewall`` share."""

from __future__ import annotations

from typing import Any

from tests.support.set_up_role import Play, play, shell
from tests.support.testbed import Host, Testbed

#: Until it listens: 3039 is 12345.
LISTEN = (
    "systemd-run --quiet --collect --unit=rank python3 -m http.server 12345"
    " && until cat /proc/net/tcp* | grep -q :3039; do sleep 0.1; done"
)


def run(bed: Testbed, *options: str, entry: str = "main", **given: Any) -> Play:
    """Run the role for the hosts and a port."""
    members = [[host.name, host.address] for host in bed.hosts]
    variables = {"firewall_members": members, "firewall_ports": [12345], **given}
    return play(bed, "firewall", *options, entry=entry, **variables)


def tables(bed: Testbed) -> list[str]:
    """Return the role's table on each host; empty where there is none."""
    listing = "nft --stateless list table inet train"
    return [shell(bed, listing, number) for number in range(len(bed.hosts))]


def connect(bed: Testbed, source: Host, target: Host) -> str:
    """Connect from one host to another; return the error, if any."""
    code = f"import socket; socket.create_connection(({target.address!r}, 12345), 3)"
    done = bed.exec(source, "python3", "-c", code, check=False)
    return done.stderr.strip().rpartition("\n")[2]
