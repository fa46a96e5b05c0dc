"""A test bed that is up: made, found again by its folder, taken down."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from tests.support.testbed.engine import TestbedError, docker
from tests.support.testbed.images import BOOKWORM, build_image
from tests.support.testbed.inventory import USER, Host, Mount, Rank, render_inventory, write_yaml
from tests.support.testbed.start import LABEL, Plan, exec_in, start

MAX_HOSTS = 200

_MARK = "testbed"
_OUR_FILES = (
    *("id_ed25519", "id_ed25519.pub", "known_hosts", "hosts.json", "stranger.json", "inventory"),
    _MARK,
)


class Testbed:
    """A running test bed.

    Attributes:
        directory: its folder, an absolute path.
        hosts: its hosts, in the order of their numbers.
        stranger: a host of the same network that is in no inventory, if there is one.
    """

    __test__ = False  # no test class, whatever pytest thinks of its name

    def __init__(
        self, directory: Path, hosts: Sequence[Host], stranger: Host | None = None
    ) -> None:
        self.directory = directory
        self.hosts = tuple(hosts)
        self.stranger = stranger

    @classmethod
    def load(cls, directory: Path) -> Testbed:
        """Return the test bed that is up in ``directory``.

        Raises:
            TestbedError: there is none.
        """
        directory = directory.resolve()
        try:
            text = (directory / "hosts.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            raise TestbedError(f"no test bed is up in {directory}") from None
        hosts = [Host(**host) for host in json.loads(text)]
        strange = directory / "stranger.json"
        if not strange.is_file():
            return cls(directory, hosts)
        return cls(directory, hosts, Host(**json.loads(strange.read_text(encoding="utf-8"))))

    @classmethod
    def up(
        cls,
        count: int,
        directory: Path,
        name: str | None = None,
        mounts: Sequence[Mount] = (),
        *,
        bases: Sequence[str] = (BOOKWORM,),
        systemd: bool = False,
        stranger: bool = False,
    ) -> Testbed:
        """Start a test bed; if that fails half-way, nothing of it is left.

        Args:
            count: how many hosts, from 1 to 200.
            directory: its folder; made if missing.
            name: prefix of the names of containers and network; by default a random one.
            mounts: folders and volumes that all hosts share. Where a target is not read-only, it
                is given to the user ``train``.
            bases: the image of which each host is made, or one for all.
            systemd: whether systemd runs on the hosts, instead of sshd alone.
            stranger: whether there is one more host, without systemd and mounts, that is in no
                inventory.

        Raises:
            TestbedError: an argument is wrong, a test bed is up in the folder, or Docker failed.
        """
        directory = directory.resolve()
        name = name or f"testbed-{secrets.token_hex(4)}"
        _check_arguments(count, directory, name, bases)
        images = {base: build_image(base, systemd) for base in dict.fromkeys(bases)}
        plans = [
            Plan(f"host-{number}", images[bases[number % len(bases)]], systemd, mounts)
            for number in range(count)
        ]
        if stranger:
            plans.append(Plan("stranger", build_image(bases[0])))
        new = not directory.exists()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            (directory / _MARK).write_text(f"{name}\n", encoding="utf-8")
            hosts, keys = start(plans, directory, name)
            bed = cls(directory, hosts[:count], *hosts[count:])
            (directory / "known_hosts").write_text("".join(keys[:count]), encoding="utf-8")
            bed.write_inventory({"worker": bed.hosts})
            if bed.stranger:
                text = json.dumps(asdict(bed.stranger), indent=1)
                (directory / "stranger.json").write_text(text + "\n", encoding="utf-8")
            text = json.dumps([asdict(host) for host in bed.hosts], indent=1)
            (directory / "hosts.json").write_text(text + "\n", encoding="utf-8")
            return bed
        except BaseException:
            down(directory)
            if new and directory.is_dir() and not any(directory.iterdir()):
                directory.rmdir()
            raise

    def down(self) -> None:
        """Remove the containers, the network and the files; harmless when they are gone."""
        down(self.directory)

    def exec(
        self,
        host: Host | str,
        *arguments: str,
        user: str = USER,
        stdin: str | None = None,
        check: bool = True,
        timeout: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host through Docker, without SSH, in the user's home.

        Args:
            host: the host or its name.
            arguments: the command and its arguments; no shell reads them.
            user: whose the command is; ``train`` or ``root``.
            stdin: text for its standard input.
            check: whether an exit code other than 0 is an error.
            timeout: seconds.

        Raises:
            TestbedError: there is no such host, or the command failed.
        """
        container = self.host(host).container if isinstance(host, str) else host.container
        return exec_in(container, *arguments, user=user, stdin=stdin, check=check, timeout=timeout)

    def host(self, name: str) -> Host:
        """Return the host of this name.

        Raises:
            TestbedError: there is none.
        """
        for host in self.hosts:
            if host.name == name:
                return host
        known = ", ".join(host.name for host in self.hosts)
        raise TestbedError(f"the test bed has no host {name!r}; it has {known}")

    @property
    def ssh_options(self) -> list[str]:
        """The options with which ``ssh`` knows the hosts' keys and the user's, and no others."""
        return [
            *("-o", f"UserKnownHostsFile={self.directory / 'known_hosts'}"),
            *("-o", "GlobalKnownHostsFile=/dev/null"),
            *("-o", "StrictHostKeyChecking=yes"),
            *("-o", "IdentitiesOnly=yes"),
        ]

    def write_inventory(
        self,
        groups: Mapping[str, Sequence[Host | Rank]],
        variables: Mapping[str, object] | None = None,
        path: Path | None = None,
    ) -> Path:
        """Write an Ansible inventory folder, in the place of an older one, and return its path.

        Args:
            groups: the members of each group, such as ``{"worker": bed.hosts}``. Ranks that share
                a container are several `Rank` with one host and different ports.
            variables: of all hosts, JSON values; they go to ``group_vars/all/variables.yml``.
            path: the folder; by default ``inventory`` in the test bed's.

        Raises:
            TestbedError: one name stands for two hosts.
        """
        inventory = render_inventory(groups)
        path = (path or self.directory / "inventory").resolve()
        shutil.rmtree(path, ignore_errors=True)
        # A master connection outlives its playbook by a minute, and the next test bed may get the
        # same addresses: a control path of one's own keeps them apart.
        socket_name = hashlib.sha256("".join(h.container for h in self.hosts).encode()).hexdigest()
        connection = {
            "ansible_user": USER,
            "ansible_ssh_private_key_file": str(self.directory / "id_ed25519"),
            "ansible_ssh_common_args": " ".join(self.ssh_options),
            "ansible_control_path": f"%(directory)s/{socket_name[:10]}-%%h",
        }
        write_yaml(path / "hosts.yml", inventory)
        write_yaml(path / "group_vars" / "all" / "ansible.yml", connection)
        if variables:
            write_yaml(path / "group_vars" / "all" / "variables.yml", variables)
        return path


@contextmanager
def running_testbed(
    count: int,
    directory: Path,
    name: str | None = None,
    mounts: Sequence[Mount] = (),
    *,
    bases: Sequence[str] = (BOOKWORM,),
    systemd: bool = False,
    stranger: bool = False,
) -> Iterator[Testbed]:
    """Give a test bed and take it down at the end; the arguments are those of `Testbed.up`."""
    bed = Testbed.up(
        count, directory, name, mounts, bases=bases, systemd=systemd, stranger=stranger
    )
    try:
        yield bed
    finally:
        bed.down()


def down(directory: Path) -> list[str]:
    """Remove the test bed of a folder, whole or half, and return the names of its containers.

    Other files in the folder stay. A folder without a test bed is left as it is.

    Raises:
        TestbedError: Docker failed.
    """
    directory = directory.resolve()
    mine = ("--filter", f"label={LABEL}={directory}")
    containers = docker("ps", "--all", "--format", "{{.Names}}", *mine).stdout.split()
    if containers:
        docker("rm", "--force", "--volumes", *containers)
    networks = docker("network", "ls", "--quiet", *mine).stdout.split()
    if networks:
        docker("network", "rm", *networks)
    for name in _OUR_FILES if (directory / _MARK).is_file() else ():
        path = directory / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return containers


def _check_arguments(count: int, directory: Path, name: str, bases: Sequence[str]) -> None:
    """Raise TestbedError, before anything is made, where an argument of `Testbed.up` is wrong."""
    if not 1 <= count <= MAX_HOSTS:
        raise TestbedError(f"{count} hosts: a test bed has from 1 to {MAX_HOSTS}")
    if len(bases) not in (1, count):
        raise TestbedError(
            f"{len(bases)} base images for {count} host(s): give one for all or one for each"
        )
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,31}", name):
        raise TestbedError(
            f"name {name!r}: use at most 32 lower-case letters, digits and dashes, "
            "and begin with a letter or a digit"
        )
    if not re.fullmatch(r"[A-Za-z0-9/._+@-]+", str(directory)):
        # The path goes through the word splitting of Ansible and of ssh's own options.
        raise TestbedError(
            f"folder {str(directory)!r}: use a path of letters, digits and the characters /._+@-"
        )
    for file in _OUR_FILES:
        if (directory / file).exists():
            raise TestbedError(
                f"{directory / file} exists: take the test bed in {directory} down first, "
                "or use another folder"
            )
