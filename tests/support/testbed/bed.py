"""A running test bed: starts it, loads it from its folder, removes it."""

from __future__ import annotations

import hashlib
import ipaddress
import json
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
from typing import Any

from tests.support.testbed.engine import BOOKWORM, TestbedError, build_image, docker, run

USER = "train"
HOME = PurePosixPath("/home/train")
LABEL = "train.testbed"
READY_TIMEOUT = 60.0
_MARK = "testbed"
_OUR_FILES = (
    *("id_ed25519", "id_ed25519.pub", "known_hosts", "hosts.json", "stranger.json", "inventory"),
    _MARK,
)
_HOST_KEY = "/etc/ssh/ssh_host_ed25519_key.pub"
#: Requirements of systemd as a container's first process: writable control groups and the right to
#: mount; NET_ADMIN is for the host's firewall. The clock is the machine's.
SYSTEMD_OPTIONS = (
    *("--cap-add", "SYS_ADMIN", "--cap-add", "NET_ADMIN"),
    *("--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined"),
    *("--cgroupns", "host", "--volume", "/sys/fs/cgroup:/sys/fs/cgroup:rw"),
    *("--tmpfs", "/run", "--tmpfs", "/run/lock"),
)


@dataclass(frozen=True)
class Host:
    """A container: its name on the test bed's network, its IPv4 address, its name in Docker."""

    name: str
    address: str
    container: str


@dataclass(frozen=True)
class Rank:
    """An inventory host: its name, its container, its variables."""

    name: str
    host: Host
    variables: Mapping[str, object] = field(default_factory=dict)


class Testbed:
    """A running test bed: its folder (an absolute path), its hosts, and its stranger, if any."""

    __test__ = False  # not a test class, despite its name

    def __init__(
        self, directory: Path, hosts: Sequence[Host], stranger: Host | None = None
    ) -> None:
        self.directory, self.hosts, self.stranger = directory, tuple(hosts), stranger

    @classmethod
    def up(
        cls,
        count: int,
        directory: Path,
        *,
        mounts: Sequence[str] = (),
        bases: Sequence[str] = (BOOKWORM,),
        systemd: bool = False,
        stranger: bool = False,
        options: Sequence[str] = (),
    ) -> Testbed:
        """Start a test bed; if that fails, remove all of it.

        Args:
            mounts: ``HOST:CONTAINER[:ro]``, for all hosts; ``train`` owns all that are not ``ro``.
            bases: the image for each host, or one for all.
            stranger: whether to start a stranger, without systemd and mounts.
        """
        directory = directory.resolve()
        if (directory / _MARK).exists():
            raise TestbedError(f"take the test bed in {directory} down first, or use another")
        built = {base: build_image(base, systemd) for base in dict.fromkeys(bases)}
        images = [built[bases[number % len(bases)]] for number in range(count)]
        names = [f"host-{number}" for number in range(count)]
        if stranger:
            images.append(build_image(bases[0]))
            names.append("stranger")
        network, label = f"testbed-{secrets.token_hex(4)}", f"{LABEL}={directory}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / _MARK).write_text(f"{network}\n", encoding="utf-8")

        def start(host: Host, image: str) -> str:
            member = host in bed.hosts
            own = mounts if member else ()
            docker(
                *("run", "--detach", "--label", label),
                *("--name", host.container, "--hostname", host.name),
                *("--network", network, "--network-alias", host.name, "--ip", host.address),
                *(SYSTEMD_OPTIONS if systemd and member else ("--init",)),
                *(word for mount in own for word in ("--volume", mount)),
                *options,
                image,
            )
            bed.prepare(host, own)
            if systemd and member:
                wait_for_systemd(host)
            wait_for_sshd(host)
            key = bed.exec(host, "cat", _HOST_KEY, user="root").stdout.split()[:2]
            return " ".join([f"{host.name},{host.address}", *key]) + "\n"

        try:
            key = str(directory / "id_ed25519")
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", USER, "-f", key)
            first = _make_network(network, label).network_address + 2  # + 1 is the engine's
            hosts = [
                Host(name, str(first + number), f"{network}-{name}")
                for number, name in enumerate(names)
            ]
            bed = cls(directory, hosts[:count], *hosts[count:])
            with ThreadPoolExecutor(max_workers=8) as pool:
                keys = list(pool.map(start, hosts, images))
            (directory / "known_hosts").write_text("".join(keys[:count]), encoding="utf-8")
            bed.write_inventory({"worker": bed.hosts})
            if bed.stranger:
                _write_json(directory / "stranger.json", asdict(bed.stranger))
            _write_json(directory / "hosts.json", [asdict(host) for host in bed.hosts])
            return bed
        except BaseException:
            down(directory)
            raise

    def prepare(self, host: Host, mounts: Sequence[str]) -> None:
        """Make the user the owner of the mounts, and authorize the user's key."""
        paths = []
        for mount in mounts:
            _, target, *mode = mount.split(":")
            paths += [] if mode else [target]
            # Docker creates missing parents as root.
            paths += [str(path) for path in PurePosixPath(target).parents if HOME in path.parents]
        if paths:
            self.exec(host, "chown", f"{USER}:{USER}", *paths, user="root")
        public_key = (self.directory / "id_ed25519.pub").read_text(encoding="utf-8")
        authorized = f"umask 077; cat > {HOME}/.ssh/authorized_keys"
        self.exec(host, "sh", "-c", authorized, stdin=public_key)

    def exec(
        self,
        host: Host | str,
        *arguments: str,
        user: str = USER,
        stdin: str = "",
        check: bool = True,
        timeout: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host through Docker, without SSH or a shell, in the user's home."""
        container = self.host(host).container if isinstance(host, str) else host.container
        return _exec(container, *arguments, user=user, stdin=stdin, check=check, timeout=timeout)

    def host(self, name: str) -> Host:
        return {host.name: host for host in self.hosts}[name]

    @property
    def ssh_options(self) -> list[str]:
        """The options that make ``ssh`` use the hosts' keys and the user's, and no others."""
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
        """Write an Ansible inventory folder, replacing an older one, and return its path.

        Ranks in one container are several `Rank` with the same host and different ports.
        """
        ranks: dict[str, Rank] = {}
        children: dict[str, object] = {}
        for group, members in groups.items():
            hosts: dict[str, object] = {}
            for member in members:
                rank = Rank(member.name, member) if isinstance(member, Host) else member
                if ranks.setdefault(rank.name, rank) != rank:
                    raise TestbedError(f"group {group!r}: {rank.name!r} stands for two hosts")
                hosts[rank.name] = {"ansible_host": rank.host.address, **rank.variables}
            children[group] = {"hosts": hosts}
        path = (path or self.directory / "inventory").resolve()
        shutil.rmtree(path, ignore_errors=True)
        # A master connection outlives its playbook by a minute, and the next test bed may get the
        # same addresses. A separate control path keeps them apart.
        socket_name = hashlib.sha256("".join(h.container for h in self.hosts).encode()).hexdigest()
        connection = {
            "ansible_user": USER,
            "ansible_ssh_private_key_file": str(self.directory / "id_ed25519"),
            "ansible_ssh_common_args": " ".join(self.ssh_options),
            "ansible_control_path": f"%(directory)s/{socket_name[:10]}-%%h",
        }
        _write_json(path / "hosts.yml", {"all": {"children": children}})
        _write_json(path / "group_vars" / "all" / "ansible.yml", connection)
        if variables:
            _write_json(path / "group_vars" / "all" / "variables.yml", variables)
        return path


@contextmanager
def running_testbed(count: int, directory: Path, **given: Any) -> Iterator[Testbed]:
    """Provide a test bed and remove it at the end; for the arguments see `Testbed.up`."""
    bed = Testbed.up(count, directory, **given)
    try:
        yield bed
    finally:
        down(directory)


def down(directory: Path) -> list[str]:
    """Remove the test bed of a folder, even if incomplete; return the names of its containers.

    Other files in the folder are kept. A folder without a test bed is not changed.
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


def _write_json(path: Path, value: object) -> None:
    """Write a value as JSON, which every YAML parser can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def _exec(
    container: str, *arguments: str, user: str = USER, **given: Any
) -> subprocess.CompletedProcess[str]:
    home = "/root" if user == "root" else str(HOME)
    options = ("--interactive", "--user", user, "--workdir", home)
    return docker("exec", *options, container, *arguments, **given)


def _make_network(name: str, label: str) -> ipaddress.IPv4Network:
    """Create a bridge network and return its addresses.

    Docker assigns fixed addresses only in networks with an explicit range. Only Docker knows which
    ranges are free, so it picks one for a network that is removed again.
    """
    for last in (False, False, False, True):  # another network may get the range in between
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


def wait_for_systemd(host: Host) -> None:
    """Wait until all units of the host are up; raise TestbedError after a minute."""
    deadline = time.monotonic() + READY_TIMEOUT
    while True:
        # Before systemd listens, this ends at once and prints `offline` or nothing.
        limit = f"{max(deadline - time.monotonic(), 1):.1f}"
        ask = ("timeout", limit, "systemctl", "is-system-running", "--wait")
        state = _exec(host.container, *ask, user="root", check=False).stdout.strip()
        if state == "running":
            return
        if state == "degraded" or time.monotonic() > deadline:
            units = "systemctl --failed --plain --no-legend; systemctl list-jobs --no-legend"
            listed = _exec(host.container, "sh", "-c", units, user="root", check=False).stdout
            raise _not_ready(host, f"systemd is {state or 'not up'}: {listed.strip()}")
        time.sleep(0.05)


def wait_for_sshd(host: Host) -> None:
    """Wait until the host's sshd sends its greeting; raise TestbedError after a minute."""
    deadline = time.monotonic() + READY_TIMEOUT
    while True:
        try:
            with socket.create_connection((host.address, 22), timeout=2) as connection:
                if connection.recv(4) == b"SSH-":
                    return
        except OSError:
            pass
        if time.monotonic() > deadline:
            raise _not_ready(host, f"no SSH server answers at {host.address}:22")
        time.sleep(0.05)


def _not_ready(host: Host, problem: str) -> TestbedError:
    logs = docker("logs", "--tail", "20", host.container, check=False)
    return TestbedError(f"{host.name}: {problem}; its output:\n{logs.stdout}{logs.stderr}")
