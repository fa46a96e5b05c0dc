"""Docker containers that stand in for plain SSH hosts in tests, drills and benchmarks.

A test bed is a folder on this machine, a Docker network of its own and N containers ``host-0``,
``host-1``, ... on it, each with its sshd and the user ``train``. The folder holds:

=======================  ==================================================================
``id_ed25519``           the private key of ``train``, and ``id_ed25519.pub``
``known_hosts``          the host keys, read through Docker and not through SSH
``hosts.json``           a list of objects with ``name``, ``address`` and ``container``
``testbed``              marks the folder: only where it is, `down` removes the files above
``inventory/``           for Ansible: all hosts in the group ``worker``
=======================  ==================================================================

Containers and network carry the folder's path as a label, so that the folder alone is enough to
take the test bed down. Addresses are fixed: a container that is stopped and started keeps its own.
The control node must reach the containers' addresses, as it does where Docker runs on Linux.

From a shell: ``python -m tests.testbed up 4 --dir DIR`` and ``python -m tests.testbed down --dir
DIR``. From a test::

    with running_testbed(2, tmp_path / "bed") as bed:
        bed.write_inventory({"worker": [Rank("a", bed.hosts[0], {"train_job_port": 12345})]})
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath

USER = "train"
HOME = PurePosixPath("/home/train")
MAX_HOSTS = 200

_DOCKERFILE = Path(__file__).with_name("Dockerfile")
_IMAGE = "train-testbed"
_LABEL = "train.testbed"
_HOST_KEY = "/etc/ssh/ssh_host_ed25519_key.pub"
_READY_TIMEOUT = 60.0
_MARK = "testbed"
_OUR_FILES = ("id_ed25519", "id_ed25519.pub", "known_hosts", "hosts.json", "inventory", _MARK)


class TestbedError(Exception):
    """The test bed cannot do what was asked; the message says why."""

    __test__ = False  # no test class, whatever pytest thinks of its name


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


def docker(
    *arguments: str, stdin: str | None = None, check: bool = True, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run the Docker client and return what it printed.

    Args:
        arguments: of ``docker``.
        stdin: text for its standard input; without it, the input is empty.
        check: whether an exit code other than 0 is an error.
        timeout: seconds after which the client is killed.

    Raises:
        TestbedError: there is no Docker client, it took too long, or (with ``check``) it failed;
            the message holds the command and what it wrote to standard error.
    """
    try:
        done = subprocess.run(
            ["docker", *arguments],
            input=stdin or "",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError:
        raise TestbedError("no `docker` command in PATH: install the Docker client") from None
    except subprocess.TimeoutExpired:
        command = " ".join(["docker", *arguments])
        raise TestbedError(f"`{command}` took longer than {timeout:.0f} s") from None
    if check and done.returncode:
        command = " ".join(["docker", *arguments])
        reason = done.stderr.strip() or done.stdout.strip()
        raise TestbedError(f"`{command}` failed (exit code {done.returncode}):\n{reason}")
    return done


def docker_available() -> bool:
    """Tell whether a Docker engine answers."""
    try:
        return docker("version", check=False, timeout=20).returncode == 0
    except TestbedError:
        return False


def build_image() -> str:
    """Build the hosts' image, unless there is one of the same inputs, and return its tag.

    Raises:
        TestbedError: Docker failed.
    """
    recipe = _DOCKERFILE.read_text(encoding="utf-8")
    argument = f"TRAIN_UID={os.getuid() or 1000}"
    digest = hashlib.sha256(f"{argument}\n{recipe}".encode()).hexdigest()[:12]
    tag = f"{_IMAGE}:{digest}"
    if docker("image", "inspect", tag, check=False).returncode:
        docker("build", "--build-arg", argument, "--tag", tag, "-", stdin=recipe, timeout=900)
    return tag


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


class Testbed:
    """A running test bed.

    Attributes:
        directory: its folder, an absolute path.
        hosts: its hosts, in the order of their numbers.
    """

    __test__ = False  # no test class, whatever pytest thinks of its name

    def __init__(self, directory: Path, hosts: Sequence[Host]) -> None:
        self.directory = directory
        self.hosts = tuple(hosts)

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
        return cls(directory, [Host(**host) for host in json.loads(text)])

    @classmethod
    def up(
        cls,
        count: int,
        directory: Path,
        name: str | None = None,
        mounts: Sequence[Mount] = (),
    ) -> Testbed:
        """Start a test bed; if that fails half-way, nothing of it is left.

        Args:
            count: how many hosts, from 1 to 200.
            directory: its folder; made if missing.
            name: prefix of the names of containers and network; by default a random one.
            mounts: folders and volumes that all hosts share. Where a target is not read-only, it
                is given to the user ``train``.

        Raises:
            TestbedError: an argument is wrong, a test bed is up in the folder, or Docker failed.
        """
        directory = directory.resolve()
        name = name or f"testbed-{secrets.token_hex(4)}"
        _check_arguments(count, directory, name)
        image = build_image()
        new = not directory.exists()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            (directory / _MARK).write_text(f"{name}\n", encoding="utf-8")
            bed = cls(directory, _start(count, directory, name, image, mounts))
            bed.write_inventory({"worker": bed.hosts})
            hosts = json.dumps([asdict(host) for host in bed.hosts], indent=1)
            (directory / "hosts.json").write_text(hosts + "\n", encoding="utf-8")
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
        return _exec(container, *arguments, user=user, stdin=stdin, check=check, timeout=timeout)

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
        _write_yaml(path / "hosts.yml", inventory)
        _write_yaml(path / "group_vars" / "all" / "ansible.yml", connection)
        if variables:
            _write_yaml(path / "group_vars" / "all" / "variables.yml", variables)
        return path


@contextmanager
def running_testbed(
    count: int, directory: Path, name: str | None = None, mounts: Sequence[Mount] = ()
) -> Iterator[Testbed]:
    """Give a test bed and take it down at the end; the arguments are those of `Testbed.up`."""
    bed = Testbed.up(count, directory, name, mounts)
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
    mine = ("--filter", f"label={_LABEL}={directory}")
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


def _check_arguments(count: int, directory: Path, name: str) -> None:
    """Raise TestbedError, before anything is made, where an argument of `Testbed.up` is wrong."""
    if not 1 <= count <= MAX_HOSTS:
        raise TestbedError(f"{count} hosts: a test bed has from 1 to {MAX_HOSTS}")
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


def _start(
    count: int, directory: Path, name: str, image: str, mounts: Sequence[Mount]
) -> list[Host]:
    """Make the user's key, the network and the containers, and record the host keys."""
    key = directory / "id_ed25519"
    _make_key(key)
    public_key = key.with_suffix(".pub").read_text(encoding="utf-8")
    label = f"{_LABEL}={directory}"
    subnet = _make_network(name, label)
    # The first address of a network is the engine's own.
    addresses = [str(subnet.network_address + 2 + number) for number in range(count)]
    hosts = [
        Host(f"host-{number}", address, f"{name}-host-{number}")
        for number, address in enumerate(addresses)
    ]

    def start(host: Host) -> str:
        docker(
            *("run", "--detach", "--init", "--label", label),
            *("--name", host.container, "--hostname", host.name),
            *("--network", name, "--network-alias", host.name, "--ip", host.address),
            *(word for mount in mounts for word in ("--volume", mount.argument)),
            image,
        )
        paths = [path for mount in mounts for path in mount.to_own()]
        if paths:
            _exec(host.container, "chown", f"{USER}:{USER}", *paths, user="root")
        authorized = f"umask 077; cat > {HOME}/.ssh/authorized_keys"
        _exec(host.container, "sh", "-c", authorized, stdin=public_key)
        _wait_for_sshd(host)
        kind, text = _exec(host.container, "cat", _HOST_KEY, user="root").stdout.split()[:2]
        return f"{host.name},{host.address} {kind} {text}\n"

    with ThreadPoolExecutor(max_workers=8) as pool:
        known = "".join(pool.map(start, hosts))
    (directory / "known_hosts").write_text(known, encoding="utf-8")
    return hosts


def _make_key(path: Path) -> None:
    """Make an ed25519 key pair without a passphrase, ``path`` (mode 0600) and ``path``.pub."""
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", USER, "-f", str(path)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise TestbedError("no `ssh-keygen` in PATH: install the OpenSSH client") from None
    if done.returncode:
        raise TestbedError(f"ssh-keygen could not write {path}: {done.stderr.strip()}")


def _make_network(name: str, label: str) -> ipaddress.IPv4Network:
    """Make a bridge network and return its addresses.

    Docker gives fixed addresses only in a network whose range was asked for by number; which
    ranges are free, Docker knows best: it picks one for a network that is removed again.
    """
    for last in (False, False, False, True):  # another one may take the range in between
        docker("network", "create", "--label", label, name)
        ranges = docker("network", "inspect", "--format", "{{json .IPAM.Config}}", name).stdout
        subnet = ipaddress.IPv4Network(json.loads(ranges)[0]["Subnet"])
        docker("network", "rm", name)
        made = docker(
            *("network", "create", "--label", label, "--subnet", str(subnet), name), check=last
        )
        if made.returncode == 0:
            break
    return subnet


def _exec(
    container: str,
    *arguments: str,
    user: str = USER,
    stdin: str | None = None,
    check: bool = True,
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run a command in a container; see `Testbed.exec`."""
    home = "/root" if user == "root" else str(HOME)
    options = ("--interactive", "--user", user, "--workdir", home)
    command = ("exec", *options, container, *arguments)
    return docker(*command, stdin=stdin, check=check, timeout=timeout)


def _wait_for_sshd(host: Host) -> None:
    """Return when the host's sshd greets; raise TestbedError if it does not within a minute."""
    deadline = time.monotonic() + _READY_TIMEOUT
    while True:
        try:
            with socket.create_connection((host.address, 22), timeout=2) as connection:
                if connection.recv(4) == b"SSH-":
                    return
        except OSError:
            pass
        if time.monotonic() > deadline:
            logs = docker("logs", "--tail", "20", host.container, check=False)
            raise TestbedError(
                f"{host.name}: no SSH server answers at {host.address}:22 after "
                f"{_READY_TIMEOUT:.0f} s; its output:\n{(logs.stdout + logs.stderr).strip()}"
            )
        time.sleep(0.05)


def _write_yaml(path: Path, value: Mapping[str, object]) -> None:
    """Write a value as JSON, which every YAML reader understands."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
