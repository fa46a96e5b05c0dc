"""The texts that every host must have, made from what is known of all of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from .records import Record

#: Of a key, what holds without knowing who uses it: no forwarding, no ~/.ssh/rc. Commands and
#: terminals are what it is for.
KEY_OPTIONS = "restrict,pty"


def known_as(record: Record) -> list[tuple[str, int]]:
    """Return the names and addresses of a machine, each with its port."""
    port = record["endpoints"][0][1]
    named = [(name, port) for name in record["names"]]
    return list(dict.fromkeys([*named, *((name, port) for name, port in record["endpoints"])]))


def render_authorized_keys(records: Sequence[Record], cluster: str) -> str:
    """Return the cluster's lines of ``authorized_keys``: each key only from its own machine."""
    return "".join(
        f'from="{",".join(record["from"])}",{KEY_OPTIONS} {key} {cluster}:{record["names"][0]}\n'
        for record in records
        for key in (record["key"], record["next"])
        if key
    )


def render_known_hosts(records: Sequence[Record]) -> str:
    """Return the file of host keys."""
    lines = []
    for record in records:
        names = [name if port == 22 else f"[{name}]:{port}" for name, port in known_as(record)]
        lines += [f"{','.join(names)} {key}\n" for key in record["host_keys"]]
    return "".join(lines)


def render_config(records: Sequence[Record], cluster: str) -> str:
    """Return the client's configuration."""
    identities = [f"    IdentityFile ~/.ssh/{cluster}/id_ed25519"]
    if any(record["next"] for record in records):
        # While keys change: ssh reads the public half first, and the private one later.
        identities.append(f"    IdentityFile ~/.ssh/{cluster}/id_ed25519.next")
    lines = ["# Made by the role ssh_keys: changes are lost."]
    for record in records:
        address, port = record["endpoints"][0]
        names = [name for name, its_port in known_as(record) if its_port == port]
        lines += [
            "",
            f"Host {' '.join(record['names'])}",
            f"    HostName {address}",
            f"Host {' '.join(names)}",
            f"    Port {port}",
            f"    User {record['user']}",
            "    StrictHostKeyChecking yes",
            f"    UserKnownHostsFile ~/.ssh/{cluster}/known_hosts",
            # ssh would add what it learns to our file.
            "    CheckHostIP no",
            "    UpdateHostKeys no",
            # Whoever logs in as another user does so with keys of their own.
            f"Match originalhost {','.join(names)} user {record['user']}",
            *identities,
            "    IdentitiesOnly yes",
        ]
    return "\n".join(lines) + "\n"


def content_of(records: Sequence[Record], cluster: str) -> dict[str, str]:
    """Return all that a host must have."""
    return {
        "authorized_keys": render_authorized_keys(records, cluster),
        "known_hosts": render_known_hosts(records),
        "config": render_config(records, cluster),
        "hosts": json.dumps(records, sort_keys=True, separators=(",", ":")),
    }


def digests_of(content: Mapping[str, str]) -> dict[str, str]:
    """Return the digests that the module tells of a host that has ``content``."""
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in content.items()}
    return {**digests, "include": "yes", "modes": "", "spare": "no"}
