"""Starts the containers of a test bed and learns their host keys."""

from __future__ import annotations

import ipaddress
import json
import socket
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.support.testbed.engine import TestbedError, docker
from tests.support.testbed.inventory import HOME, USER, Host, Mount

LABEL = "train.testbed"
READY_TIMEOUT = 60.0
_HOST_KEY = "/etc/ssh/ssh_host_ed25519_key.pub"
#: What systemd needs as a container's first process: control groups that it may write, and the
#: right to mount; NET_ADMIN is for the host's own firewall. The clock stays the machine's.
_SYSTEMD = (
    *("--cap-add", "SYS_ADMIN", "--cap-add", "NET_ADMIN"),
    *("--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined"),
    *("--cgroupns", "host", "--volume", "/sys/fs/cgroup:/sys/fs/cgroup:rw"),
    *("--tmpfs", "/run", "--tmpfs", "/run/lock"),
)


@dataclass(frozen=True)
class Plan:
    """A container to start: its name on the network, its image, what is special about it."""

    name: str
    image: str
    systemd: bool = False
    mounts: Sequence[Mount] = ()


def start(plans: Sequence[Plan], directory: Path, name: str) -> tuple[list[Host], list[str]]:
    """Make the user's key, the network and the containers.

    Returns:
        The hosts, and for each the line of ``known_hosts`` with its key.
    """
    key = directory / "id_ed25519"
    _make_key(key)
    public_key = key.with_suffix(".pub").read_text(encoding="utf-8")
    label = f"{LABEL}={directory}"
    subnet = _make_network(name, label)
    hosts = [
        # The first address of a network is the engine's own.
        Host(plan.name, str(subnet.network_address + 2 + number), f"{name}-{plan.name}")
        for number, plan in enumerate(plans)
    ]

    def start_one(plan: Plan, host: Host) -> str:
        docker(
            *("run", "--detach", "--label", label),
            *("--name", host.container, "--hostname", host.name),
            *("--network", name, "--network-alias", host.name, "--ip", host.address),
            *(_SYSTEMD if plan.systemd else ("--init",)),
            *(word for mount in plan.mounts for word in ("--volume", mount.argument)),
            plan.image,
        )
        paths = [path for mount in plan.mounts for path in mount.to_own()]
        if paths:
            exec_in(host.container, "chown", f"{USER}:{USER}", *paths, user="root")
        authorized = f"umask 077; cat > {HOME}/.ssh/authorized_keys"
        exec_in(host.container, "sh", "-c", authorized, stdin=public_key)
        if plan.systemd:
            wait_for_systemd(host)
        _wait_for_sshd(host)
        kind, text = exec_in(host.container, "cat", _HOST_KEY, user="root").stdout.split()[:2]
        return f"{host.name},{host.address} {kind} {text}\n"

    with ThreadPoolExecutor(max_workers=8) as pool:
        return hosts, list(pool.map(start_one, plans, hosts))


def exec_in(
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


def wait_for_systemd(host: Host) -> None:
    """Return when all units of the host are up; raise TestbedError if they are not in a minute."""
    deadline = time.monotonic() + READY_TIMEOUT
    while True:
        # Until systemd listens, this ends at once and says `offline` or nothing.
        limit = f"{max(deadline - time.monotonic(), 1):.1f}"
        ask = ("timeout", limit, "systemctl", "is-system-running", "--wait")
        state = exec_in(host.container, *ask, user="root", check=False).stdout.strip()
        if state == "running":
            return
        if state == "degraded" or time.monotonic() > deadline:
            look = "systemctl --failed --plain --no-legend; systemctl list-jobs --no-legend"
            units = exec_in(host.container, "sh", "-c", look, user="root", check=False)
            logs = docker("logs", "--tail", "20", host.container, check=False)
            raise TestbedError(
                f"{host.name}: systemd says {state or 'nothing'} and not `running`; failed units "
                f"and waiting jobs:\n{(units.stdout + units.stderr).strip()}\nits output:\n"
                f"{(logs.stdout + logs.stderr).strip()}"
            )
        time.sleep(0.05)


def _wait_for_sshd(host: Host) -> None:
    """Return when the host's sshd greets; raise TestbedError if it does not within a minute."""
    deadline = time.monotonic() + READY_TIMEOUT
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
                f"{READY_TIMEOUT:.0f} s; its output:\n{(logs.stdout + logs.stderr).strip()}"
            )
        time.sleep(0.05)
