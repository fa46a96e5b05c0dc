"""Two linked network namespaces on this machine: a protected host and its network."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.bare_ranks import wait_until
from tests.support.lab import REPOSITORY

PORT = 12345
TARGET = {4: "192.0.2.1", 6: "fd00::1"}
#: For each IP version, an address of the network's kernel, and one that only raw packets have.
MEMBER = {4: "192.0.2.2", 6: "fd00::2"}
RAW_MEMBER = {4: "192.0.2.12", 6: "fd00::12"}
STRANGER = {4: "192.0.2.3", 6: "fd00::3"}
RAW_STRANGER = {4: "192.0.2.13", 6: "fd00::13"}
_MACS = ["02:00:00:00:00:01", "02:00:00:00:00:02"]

#: Prints data received over TCP, and answers datagrams with their size.
_LISTENER = f"""
import socket, threading
def receive(connection, address):
    with connection:
        connection.settimeout(5)
        print(address, connection.recv(100).decode(), flush=True)
def answer(datagrams):
    while True:
        data, address = datagrams.recvfrom(65536)
        datagrams.sendto(str(len(data)).encode(), address)
for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
    datagrams = socket.socket(family, socket.SOCK_DGRAM)
    if family == socket.AF_INET6:
        datagrams.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    datagrams.bind((address, {PORT}))
    threading.Thread(target=answer, args=[datagrams], daemon=True).start()
server = socket.create_server(("::", {PORT}), family=socket.AF_INET6, dualstack_ipv6=True)
print("ready", flush=True)
while True:
    threading.Thread(target=receive, args=server.accept(), daemon=True).start()
"""


@dataclass
class Cable:
    """The two ends, as prefixes of commands to run there, and data received by the target."""

    target: Sequence[str]
    network: Sequence[str]
    received: Path
    _ports: Iterator[int] = field(default_factory=lambda: itertools.count(20_000))

    def load(self, rules: str) -> None:
        """Replace the target's nftables rules."""
        run([*self.target, "nft", "flush", "ruleset"])
        run([*self.target, "nft", "--file", "-"], rules)

    def connect(self, version: int, source: str, delivery: str = "plain", flags: int = 2) -> str:
        """Connect with raw packets; see `tests.support.packets`."""
        options = {
            **{"interface": "network", "source": source, "target": TARGET[version]},
            **{"delivery": delivery, "data": f"{delivery} with {flags}", "flags": str(flags)},
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        words += ["--macs", *_MACS, "--ports", str(next(self._ports)), str(PORT)]
        return self.python("-m", "tests.support.packets", *words)

    def python(self, *arguments: str) -> str:
        """Run Python in the network; return its output."""
        return run([*self.network, sys.executable, *arguments]).strip()


def run(command: Sequence[str], stdin: str = "") -> str:
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=60, cwd=REPOSITORY
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def missing() -> str:
    """Return the reason why this machine cannot create the namespaces; empty if it can."""
    tools = [name for name in ("unshare", "nsenter", "ip", "nft") if not shutil.which(name)]
    if tools:
        return f"{', '.join(tools)} not installed (Debian: util-linux, iproute2, nftables)"
    done = subprocess.run([*_unshare(), "nft", "list", "ruleset"], capture_output=True, text=True)
    return done.stderr and f"no network namespace with nftables: {done.stderr.strip()}"


def _unshare() -> list[str]:
    return ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--net"]


@contextmanager
def _namespace(command: Sequence[str]) -> Iterator[int]:
    """Yield the id of an idle process in a namespace that ``command`` creates."""
    with subprocess.Popen([*command, "sleep", "infinity"], stdout=subprocess.DEVNULL) as process:
        try:
            here = os.readlink("/proc/self/ns/net")
            wait_until(lambda: os.readlink(f"/proc/{process.pid}/ns/net") != here, "the namespace")
            yield process.pid
        finally:
            process.kill()


def _enter(pid: int) -> list[str]:
    user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
    return ["nsenter", "--target", str(pid), *user, "--net"]


@contextmanager
def laid(folder: Path) -> Iterator[Cable]:
    """Create the namespaces; the target listens on PORT."""
    with ExitStack() as stack:
        network_pid = stack.enter_context(_namespace(_unshare()))
        network = _enter(network_pid)
        target_pid = stack.enter_context(_namespace([*network, "unshare", "--net"]))
        target = _enter(target_pid)
        ends = ((target, "target", _MACS[0]), (network, "network", _MACS[1]))
        add = f"ip link add network type veth peer name target netns {target_pid}"
        run([*network, *add.split()])
        for enter, name, mac in ends:
            run([*enter, "ip", "link", "set", name, "address", mac, "up"])
        for enter, name, addresses in (
            (target, "target", [TARGET]),
            (network, "network", [MEMBER, STRANGER]),
        ):
            for address in (one for both in addresses for one in both.values()):
                length, nodad = ("64", ["nodad"]) if ":" in address else ("24", [])
                run([*enter, *f"ip addr add {address}/{length} dev {name}".split(), *nodad])
        for address in (*RAW_MEMBER.values(), *RAW_STRANGER.values()):
            run([*target, *f"ip neigh add {address} lladdr {_MACS[1]} dev target".split()])
        received = folder / "received"
        with received.open("wb") as stream:
            listener = subprocess.Popen([*target, sys.executable, "-c", _LISTENER], stdout=stream)
        stack.callback(listener.wait)
        stack.callback(listener.kill)
        wait_until(lambda: "ready" in received.read_text(), "the listener")
        yield Cable(target, network, received)


@pytest.fixture(scope="module")
def cable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cable]:
    """Provide two namespaces; in CI they are mandatory."""
    reason = missing()
    if reason and os.environ.get("CI"):
        pytest.fail(f"CI needs network namespaces: {reason}")
    if reason:
        pytest.skip(reason)
    with laid(tmp_path_factory.mktemp("cable")) as made:
        yield made
