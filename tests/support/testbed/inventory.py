"""What a test bed consists of, in words: hosts, ranks, mounts, and the inventory of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from tests.support.testbed.engine import TestbedError

USER = "train"
HOME = PurePosixPath("/home/train")


@dataclass(frozen=True)
class Host:
    """A container: its name on the test bed's network, its IPv4 address, its name in Docker."""

    name: str
    address: str
    container: str


@dataclass(frozen=True)
class Rank:
    """An inventory host: its name there, the container it lives on, its variables."""

    name: str
    host: Host
    variables: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Mount:
    """A host folder (absolute path) or a named volume, and where the containers see it."""

    source: str
    target: PurePosixPath
    read_only: bool = False

    @classmethod
    def parse(cls, text: str) -> Mount:
        """Read ``HOST:CONTAINER[:ro]``; a HOST with a slash in it is a folder, else a volume.

        Raises:
            TestbedError: the text has another form, or the folder does not exist.
        """
        source, _, rest = text.partition(":")
        target, _, mode = rest.partition(":")
        if not source or not target.startswith("/") or mode not in ("", "ro"):
            raise TestbedError(
                f"mount {text!r} is not HOST:CONTAINER[:ro], where CONTAINER is an absolute path"
            )
        if "/" in source:
            folder = Path(source).resolve()
            if not folder.is_dir():
                raise TestbedError(f"mount {text!r}: {folder} is no folder; make it first")
            source = str(folder)
        return cls(source, PurePosixPath(target), mode == "ro")

    @property
    def argument(self) -> str:
        """The value of Docker's option ``--volume``."""
        return f"{self.source}:{self.target}" + (":ro" if self.read_only else "")

    def to_own(self) -> list[str]:
        """Return the paths that must be the user's; Docker makes missing parents as root."""
        own = [] if self.read_only else [self.target]
        own += [path for path in self.target.parents if HOME in path.parents]
        return [str(path) for path in own]


def render_inventory(groups: Mapping[str, Sequence[Host | Rank]]) -> dict[str, object]:
    """Return an Ansible inventory with these groups, each in the given order.

    Args:
        groups: the members of each group; a host stands for a rank of its name without variables.

    Raises:
        TestbedError: one name stands for two hosts, or is given different variables.
    """
    seen: dict[str, Rank] = {}
    children: dict[str, object] = {}
    for group, members in groups.items():
        hosts: dict[str, object] = {}
        for member in members:
            rank = Rank(member.name, member) if isinstance(member, Host) else member
            if seen.setdefault(rank.name, rank) != rank:
                raise TestbedError(
                    f"group {group!r}: the inventory host {rank.name!r} was given before with "
                    "another container or other variables; give each rank a name of its own"
                )
            hosts[rank.name] = {"ansible_host": rank.host.address, **rank.variables}
        children[group] = {"hosts": hosts}
    return {"all": {"children": children}}


def write_yaml(path: Path, value: Mapping[str, object]) -> None:
    """Write a value as JSON, which every YAML reader understands."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
