"""Faults of SSH hosts, injected into their containers from outside, and undone."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from tests.support.bare_ranks import wait_until
from tests.support.lab import REPOSITORY, Command, Lab
from tests.support.playbook_jobs import PlaybookCommand
from tests.support.testbed import Host, Testbed
from tests.support.testbed.engine import build_image, docker, one_build

#: Docker's own file system of 64 MiB for each container.
SMALL_DISK = PurePosixPath("/dev/shm")
_FILL = SMALL_DISK / "fill"
#: Seconds from a fault to the outcome, on cores shared with other tests; TensorFlow takes minutes.
LIMIT = 90.0
_TABLE = "inet fault"
_TOOLS = """\
FROM {image}
RUN apt-get update \\
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \\
      iproute2 nftables \\
 && rm -rf /var/lib/apt/lists/*
"""
#: Limits the rate of sent and received packets.
_SHAPE = """\
set -e
tc qdisc add dev {interface} root tbf rate {rate} burst 32kb latency 100ms
ip link add in-{interface} type ifb
ip link set in-{interface} up
tc qdisc add dev in-{interface} root tbf rate {rate} burst 32kb latency 100ms
tc qdisc add dev {interface} handle ffff: ingress
tc filter add dev {interface} parent ffff: protocol all u32 match u32 0 0 \\
  action mirred egress redirect dev in-{interface}
"""
_UNSHAPE = """\
tc qdisc del dev {interface} root
tc qdisc del dev {interface} ingress
ip link del in-{interface}
"""
#: Delays packets to an address, because few kernels of virtual machines have netem.
_DELAY = """\
import fcntl, os, queue, socket, struct, subprocess, sys, threading, time
peer, own, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
tun = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH", b"late0", 0x1001))  # TUNSETIFF: IP packets
subprocess.run(["ip", "link", "set", "late0", "up"], check=True)
subprocess.run(["ip", "route", "add", peer, "dev", "late0", "src", own], check=True)
out = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
out.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0")
packets = queue.Queue()
def read():
    while True:
        packets.put((os.read(tun, 65536), time.monotonic() + seconds))
threading.Thread(target=read, daemon=True).start()
print("ready", flush=True)
while True:
    packet, due = packets.get()
    time.sleep(max(0.0, due - time.monotonic()))
    out.sendto(packet, (peer, 0))
"""
#: One of Python's own modules: the supervisor starts without site packages.
_JSON = "/usr/lib/python3.11/json/__init__.py"
_OFFSET = "/run/clock-offset"
#: Every program of the launcher, and the training program, loads the module.
_CLOCK = f"""
def _wrap():
    import time
    real = time.time
    def wrapped():
        try:
            with open({_OFFSET!r}) as stream:
                return real() + float(stream.read())
        except (OSError, ValueError):
            return real()
    time.time = wrapped
_wrap()
"""
#: While this file exists on a host of `slow_job`, the ranks make about two steps per second, and
#: many more without it.
SLOW_WHILE = "/tmp/slow-while"
SLOW_DATA = REPOSITORY / "tests/data/scripts/slow_data.py"


@contextmanager
def between(begin: Callable[[], object], end: Callable[[], object]) -> Iterator[None]:
    """Call ``begin`` at the start and ``end`` at the end, even after an error."""
    begin()
    try:
        yield
    finally:
        end()


def dockers(begin: Sequence[str], end: Sequence[str]) -> AbstractContextManager[None]:
    """Run one Docker command at the start and another one at the end, even after an error."""
    return between(partial(docker, *begin), partial(docker, *end))


def paused(host: Host) -> AbstractContextManager[None]:
    """Freeze a host. A busy kernel does not freeze it at the first try."""

    def freeze() -> bool:
        return docker("pause", host.container, check=False).returncode == 0

    return between(
        lambda: wait_until(freeze, "the host freezes", 30),
        partial(docker, "unpause", host.container),
    )


def off(host: Host) -> AbstractContextManager[None]:
    """Cut the power of a host, and restore it."""
    return dockers(("kill", host.container), ("start", host.container))


def unplugged(host: Host) -> AbstractContextManager[None]:
    """Disconnect a host from its network."""
    names = "{{range $name, $_ := .NetworkSettings.Networks}}{{$name}}{{end}}"
    network = docker("inspect", "--format", names, host.container).stdout.strip()
    same = ("--ip", host.address, "--alias", host.name, network, host.container)
    end = ("network", "connect", *same)
    return dockers(("network", "disconnect", network, host.container), end)


def little_memory(host: Host, mebibytes: int) -> AbstractContextManager[None]:
    """Limit the memory of a host."""

    def limit(amount: str) -> Sequence[str]:
        return ("update", "--memory", amount, "--memory-swap", amount, host.container)

    return dockers(limit(f"{mebibytes}m"), limit("1024g"))  # Docker cannot return to no limit


def dropping(host: Host, *rules: str) -> AbstractContextManager[None]:
    """Make a host drop or reject incoming packets.

    Args:
        rules: of nftables, for incoming packets, such as ``tcp dport 12345 drop``.
    """
    begin = (
        f"add table {_TABLE}\nadd chain {_TABLE} in {{ type filter hook input priority 0; }}\n"
    ) + "".join(f"add rule {_TABLE} in {rule}\n" for rule in rules)
    nft = partial(alongside, host, "nft", "--file", "-")
    return between(partial(nft, stdin=begin), partial(nft, stdin=f"delete table {_TABLE}\n"))


def alongside(host: Host, *words: str, options: Sequence[str] = (), stdin: str = "") -> str:
    """Run a command in a host's network and return its output.

    It runs in a separate container, because the host lacks the privileges.
    """
    recipe = _TOOLS.format(image=build_image())
    image = f"train-testbed-tools:{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    with one_build():
        if docker("image", "inspect", image, check=False).returncode:
            docker("build", "--tag", image, "-", stdin=recipe, timeout=900)
    network = f"container:{host.container}"
    given = ("--rm", "--interactive", "--cap-add", "NET_ADMIN", "--network", network)
    return docker("run", *given, *options, image, *words, stdin=stdin).stdout.strip()


def slow_network(host: Host, rate: str, interface: str = "eth0") -> AbstractContextManager[None]:
    """Limit a host's sending and receiving rate, such as to ``10mbit``."""
    shape = _SHAPE.format(interface=interface, rate=rate)
    run = partial(alongside, host, "sh")
    return between(
        partial(run, stdin=shape), partial(run, stdin=_UNSHAPE.format(interface=interface))
    )


@contextmanager
def late(host: Host, peer: Host, seconds: float) -> Iterator[None]:
    """Delay the packets that a host sends to another one."""
    words = ("python3", "-c", _DELAY, peer.address, host.address, str(seconds))
    options = ("--detach", "--device", "/dev/net/tun")
    container = alongside(host, *words, options=options)
    try:
        wait_until(lambda: "ready" in docker("logs", container).stdout, "what sends later")
        yield
    finally:
        docker("kill", container)


@contextmanager
def sshd_down(bed: Testbed, host: Host) -> Iterator[None]:
    """End all SSH sessions of a host and refuse new ones.

    sshd keeps the container alive, so it continues to run but cannot be reached.
    """
    with dropping(host, "tcp dport 22 reject with tcp reset"):
        bed.exec(host, "pkill", "-KILL", "--full", "^sshd: train", user="root", check=False)
        yield


def full_disk(bed: Testbed, host: Host) -> AbstractContextManager[None]:
    """Fill the host's small disk to the last byte."""
    fill = partial(bed.exec, host, "dd", "if=/dev/zero", f"of={_FILL}", "bs=1M", check=False)
    return between(fill, partial(bed.exec, host, "rm", "--force", str(_FILL)))


@contextmanager
def own_clock(bed: Testbed, host: Host) -> Iterator[None]:
    """Give Python programs that start on a host a clock that `set_clock` sets.

    All containers share the machine's clock, which must not be changed.
    """
    bed.exec(host, "cp", "--preserve", _JSON, f"{_JSON}.kept", user="root")
    try:
        bed.exec(host, "tee", "--append", _JSON, user="root", stdin=_CLOCK)
        yield
    finally:
        bed.exec(host, "rm", "--force", _OFFSET, user="root")
        bed.exec(host, "mv", f"{_JSON}.kept", _JSON, user="root")


def set_clock(bed: Testbed, host: Host, seconds: float) -> None:
    """Set the clock of a host prepared by `own_clock`: seconds ahead of the machine's."""
    bed.exec(host, "tee", _OFFSET, user="root", stdin=f"{seconds}\n")


def slow_job(epochs: int, *arguments: str) -> dict[str, Any]:
    """Return arguments for ``train run``: ten steps per epoch, a checkpoint every five."""
    return {
        "arguments": [
            *("--data", SLOW_DATA.name, "--batch-size", "120", "--epochs", str(epochs)),
            *("--evaluate-every", "0", "--steps-per-execution", "1", "--checkpoint-every", "5"),
            *arguments,
        ],
        "train_job_include": [str(SLOW_DATA)],
        "train_job_environment": {"SLOW_WHILE": SLOW_WHILE},
        "train_job_update_interval": 0.5,
        "train_job_restart_delay": 0,
    }


def slow(bed: Testbed, host: Host) -> AbstractContextManager[None]:
    """Slow down the steps of a `slow_job` with a rank on a host: all ranks wait for that one."""
    begin, end = (partial(bed.exec, host, verb, SLOW_WHILE) for verb in ("touch", "rm"))
    return between(begin, end)


@contextmanager
def followed(
    lab: Lab, job: str, command: Command | PlaybookCommand, limit: float = 600
) -> Iterator[None]:
    """Ensure that ``command`` and its job end, in any case.

    Args:
        limit: seconds after which it is ended, so that reading its events ends.
    """
    timer = threading.Timer(limit, command.process.terminate)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if command.process.poll() is None:
            command.process.terminate()
            command.process.wait(30)
            Command(*lab.words("stop", job)).end()


def host_variables(lab: Lab, host: str, **more: object) -> dict[str, Any]:
    """Add variables to a host of the group worker; return all of them."""
    path = lab.inventory / "hosts.yml"
    inventory = json.loads(path.read_text())
    variables: dict[str, Any] = inventory["all"]["children"]["worker"]["hosts"][host]
    variables.update(more)
    path.write_text(json.dumps(inventory))
    return variables
