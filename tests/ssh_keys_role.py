"""What the tests of the role ``ssh_keys`` share: its parts, and hosts as they answer."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from roles.ssh_keys.control import settling
from tests import host_roles
from tests.conftest import REPOSITORY

ROLE = REPOSITORY / "roles/ssh_keys"
NAME = "train-cluster"


def part(name: str) -> ModuleType:
    """A part of what the role's module does on a host."""
    return host_roles.part(f"ssh_setup.{name}")


def a_key(seed: str, kind: str = "ssh-ed25519", length: int = 32) -> str:
    """Return a public key in SSH's encoding, made of ``seed``."""
    body = (seed.encode() * length)[:length]
    blob = b"".join(len(text).to_bytes(4, "big") + text for text in (kind.encode(), body))
    return f"{kind} {base64.b64encode(blob).decode()}"


def an_answer(name: str, **changes: Any) -> dict[str, Any]:
    """Return what the module tells of a host that was set up."""
    return {
        "user": "train",
        "key": a_key(name),
        "next": "",
        "host_keys": [a_key(f"host of {name}")],
        "addresses": [],
        "digests": {"hosts": "some"},
        "written": 100,
        **changes,
    }


def settle(
    hosts: Mapping[str, Mapping[str, Any]], played: list[str] | None = None, **more: Any
) -> settling.Settled:
    """Settle a cluster of all ``hosts``, given by their variables."""
    given = {"sources": ["answer"], **more}
    return settling.settle(list(hosts), list(hosts) if played is None else played, hosts, **given)


def three() -> dict[str, dict[str, Any]]:
    """Return the variables of three hosts that have answered."""
    return {
        name: {"ansible_host": f"10.0.0.{number}", "answer": an_answer(name)}
        for number, name in enumerate(["a", "b", "c"], 1)
    }


def known_by(hosts: Mapping[str, Any], written: int = 100) -> dict[str, Any]:
    """Return what a host tells that was written when these had answered."""
    return {"written": written, "hosts": json.loads(json.dumps(settle(hosts).records))}
