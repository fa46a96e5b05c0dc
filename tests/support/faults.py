"""Faults of SSH hosts, done to their containers from outside, and undone."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from tests.support.lab import REPOSITORY, Command, Lab
from tests.support.testbed import Host, Testbed, build_image
from tests.support.testbed.engine import docker
from tests.support.testbed.images import one_build

#: Of Docker's own making: a file system of 64 MiB that belongs to the container alone.
SMALL_DISK = PurePosixPath("/dev/shm")
_FILL = SMALL_DISK / "fill"
_TABLE = "inet fault"
_NFT = """\
FROM {image}
RUN apt-get update \\
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends nftables \\
 && rm -rf /var/lib/apt/lists/*
ENTRYPOINT ["nft", "--file", "-"]
"""
#: Python's own modules: the supervisor starts without site packages.
_JSON = "/usr/lib/python3.11/json/__init__.py"
_OFFSET = "/run/clock-offset"
#: The module is loaded by every program of the launcher, and by the training program.
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


def state_of(bed: Testbed, host: Host, job: str, task: str) -> dict[str, Any]:
    """Return a rank's ``state.json``."""
    path = f"/home/train/train/jobs/{job}/{task}/state.json"
    loaded: dict[str, Any] = json.loads(bed.exec(host, "cat", path).stdout)
    return loaded


def signal_rank(
    bed: Testbed, host: Host, job: str, task: str, name: str, whose: str = "pid"
) -> None:
    """Send a signal to a rank's script, or with ``supervisor_pid`` to its supervisor."""
    pid = state_of(bed, host, job, task)[whose]
    bed.exec(host, "kill", f"-{name}", str(pid))


@contextmanager
def paused(host: Host) -> Iterator[None]:
    """Freeze all of a host."""
    docker("pause", host.container)
    try:
        yield
    finally:
        docker("unpause", host.container)


@contextmanager
def off(host: Host) -> Iterator[None]:
    """Cut the power of a host, and switch it on again."""
    docker("kill", host.container)
    try:
        yield
    finally:
        docker("start", host.container)


@contextmanager
def unplugged(host: Host) -> Iterator[None]:
    """Take a host off its network."""
    names = "{{range $name, $_ := .NetworkSettings.Networks}}{{$name}}{{end}}"
    network = docker("inspect", "--format", names, host.container).stdout.strip()
    docker("network", "disconnect", network, host.container)
    try:
        yield
    finally:
        back = ("--ip", host.address, "--alias", host.name, network, host.container)
        docker("network", "connect", *back)


@contextmanager
def dropping(host: Host, rule: str) -> Iterator[None]:
    """Have a host drop packets that reach it, or refuse them.

    Args:
        rule: of nftables, for what comes in, such as ``tcp dport 12345 drop``.
    """
    _nft(
        host,
        f"add table {_TABLE}\n"
        f"add chain {_TABLE} in {{ type filter hook input priority 0; }}\n"
        f"add rule {_TABLE} in {rule}\n",
    )
    try:
        yield
    finally:
        _nft(host, f"delete table {_TABLE}\n")


def _nft(host: Host, commands: str) -> None:
    """Run nftables in a host's network, from a container beside it: the host has no such right."""
    recipe = _NFT.format(image=build_image())
    image = f"train-testbed-nft:{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    with one_build():
        if docker("image", "inspect", image, check=False).returncode:
            docker("build", "--tag", image, "-", stdin=recipe, timeout=900)
    network = f"container:{host.container}"
    options = ("--rm", "--interactive", "--cap-add", "NET_ADMIN", "--network", network)
    docker("run", *options, image, stdin=commands)


@contextmanager
def sshd_down(bed: Testbed, host: Host) -> Iterator[None]:
    """End all SSH sessions of a host and refuse new ones.

    sshd is what keeps the container alive: it stays, and nobody reaches it.
    """
    with dropping(host, "tcp dport 22 reject with tcp reset"):
        bed.exec(host, "pkill", "-KILL", "--full", "^sshd: train", user="root", check=False)
        yield


@contextmanager
def full_disk(bed: Testbed, host: Host) -> Iterator[None]:
    """Fill the host's small disk to the last byte."""
    bed.exec(host, "dd", "if=/dev/zero", f"of={_FILL}", "bs=1M", check=False)
    try:
        yield
    finally:
        bed.exec(host, "rm", "--force", str(_FILL))


@contextmanager
def little_memory(host: Host, mebibytes: int) -> Iterator[None]:
    """Limit the memory of a host."""
    _limit_memory(host, f"{mebibytes}m")
    try:
        yield
    finally:
        _limit_memory(host, "1024g")  # Docker knows no way back to no limit


def _limit_memory(host: Host, amount: str) -> None:
    docker("update", "--memory", amount, "--memory-swap", amount, host.container)


@contextmanager
def own_clock(bed: Testbed, host: Host) -> Iterator[None]:
    """Give the Python programs that start on a host a clock that `set_clock` sets.

    All containers share the machine's clock, and nobody is to change that.
    """
    bed.exec(host, "cp", "--preserve", _JSON, f"{_JSON}.kept", user="root")
    try:
        bed.exec(host, "tee", "--append", _JSON, user="root", stdin=_CLOCK)
        yield
    finally:
        bed.exec(host, "rm", "--force", _OFFSET, user="root")
        bed.exec(host, "mv", f"{_JSON}.kept", _JSON, user="root")


def set_clock(bed: Testbed, host: Host, seconds: float) -> None:
    """Set the clock of a host that has one of its own: seconds after the machine's."""
    bed.exec(host, "tee", _OFFSET, user="root", stdin=f"{seconds}\n")


@contextmanager
def followed(lab: Lab, job: str, command: Command, limit: float = 600) -> Iterator[Command]:
    """Give ``command``, and see to it that it ends, and its job with it, whatever happens.

    Args:
        limit: seconds after which it is ended, so that reading its events ends.
    """
    timer = threading.Timer(limit, command.process.terminate)
    timer.start()
    try:
        yield command
    finally:
        timer.cancel()
        if command.process.poll() is None:
            command.process.terminate()
            command.process.wait(30)
            Command(*lab.words("stop", job)).end()


def worker(lab: Lab, index: int, **more: object) -> dict[str, Any]:
    """Return the variables of a worker in the inventory, after giving it more of them."""
    path = lab.inventory / "hosts.yml"
    inventory = json.loads(path.read_text())
    variables: dict[str, Any] = inventory["all"]["children"]["worker"]["hosts"][f"worker{index}"]
    variables.update(more)
    path.write_text(json.dumps(inventory))
    return variables


#: Some 10 s of steps, with a checkpoint about every half second.
SLOW = REPOSITORY / "tests/data/scripts/slow_data.py"
ARGUMENTS = [
    *("--data", SLOW.name, "--batch-size", "120", "--epochs", "60", "--evaluate-every", "0"),
    *("--steps-per-execution", "1", "--checkpoint-every", "30"),
]


INCLUDE = ("--include", str(SLOW))
#: Seconds from a fault to its verdict.
LIMIT = 30.0


Cause = Callable[[Testbed, Host, str, str], AbstractContextManager[None]]


@dataclass(frozen=True)
class Fault:
    """What is done to a rank or its host until the job is started again.

    Attributes:
        rank: the index of the worker.
        cause: the key of causes.CAUSES that is to be told.
        told: how the message begins after the rank and its host, a regular expression.
    """

    name: str
    rank: int
    do: Cause
    cause: str
    told: str


def sending(name: str, whose: str = "pid") -> Cause:
    """Return the fault of a signal to a rank."""

    @contextmanager
    def send(bed: Testbed, host: Host, job: str, task: str) -> Iterator[None]:
        signal_rank(bed, host, job, task, name, whose)
        yield

    return send


def to_host(fault: Callable[[Host], AbstractContextManager[None]]) -> Cause:
    """Return a fault of a whole host."""
    return lambda bed, host, job, task: fault(host)


LOST = r"(is unreachable|ended when its host was restarted)"
ENDED = [
    Fault("rank", 1, sending("KILL"), "signal", r"was killed by SIGKILL \(signal 9\)"),
    Fault(
        *("supervisor", 0, sending("KILL", "supervisor_pid"), "supervisor"),
        r"ended with its supervisor \(pid \d+\), which was killed",
    ),
    Fault("host", 1, to_host(off), "unreachable|reboot", LOST),
]


UNRESPONSIVE = [
    Fault("stopped", 0, sending("STOP"), "frozen", "is stopped by a signal or a debugger"),
    Fault("paused", 1, to_host(paused), "unreachable", "is unreachable"),
    Fault("unplugged", 0, to_host(unplugged), "unreachable", "is unreachable"),
]


def undisturbed_weights(testbed: Testbed, folder: Path, arguments: list[str]) -> str:
    """Return the hash of the weights of a job of two workers that nothing happens to."""
    inventory = testbed.write_inventory({"worker": testbed.hosts[:2]}, path=folder / "inventory")
    lab = Lab(inventory, folder / "runs")
    run = lab.run(*INCLUDE, arguments=arguments)
    assert run.code == 0, run.result
    return weights(lab, run.result["job"])


def weights(lab: Lab, job: str) -> str:
    """Return the hash of the weights that all ranks ended with."""
    (found,) = {rank["weights_sha256"] for rank in lab.saved(job)["ranks"]}
    assert found
    return str(found)
