"""The doctor finds the problems of SSH hosts and their network, and reports no others."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support import faults
from tests.support.job_folders import check
from tests.support.jobs import PLAIN, training
from tests.support.lab import Lab, run
from tests.support.testbed import HOME, Testbed, docker, running_testbed

pytestmark = pytest.mark.docker

PORT = 12345
#: Docker options that allow mounts, with a /dev/shm like that of a machine.
OPTIONS = ("--cap-add", "SYS_ADMIN", "--security-opt", "apparmor=unconfined", "--shm-size", "512m")
ENVIRONMENT = """
set -e
for folder in venv bare; do
  mkdir -p ~/train/$folder/bin ~/train/$folder/lib/python3.11/site-packages
  ln -s /usr/bin/python3 ~/train/$folder/bin/python
  echo home = /usr/bin > ~/train/$folder/pyvenv.cfg
done
mkdir ~/train/venv/lib/python3.11/site-packages/tensorflow-2.21.0.dist-info
"""
SITE = f"{HOME}/train/venv/lib/python3.11/site-packages"
LISTEN = (
    "import socket, sys, time; s = socket.create_server(('', int(sys.argv[1]))); time.sleep(600)"
)
BUSY = "exec -a neighbour python3 -c 'while True: pass'"
UUID = "GPU-00000000-0000-4000-8000-000000000000"
GONE = "Unable to determine the device handle for GPU1: 0000:34:00.0: Unknown Error"
SMI = """#!/bin/sh
uuid=GPU-{digit}0000000-0000-4000-8000-000000000000
case "$1" in
-L) echo "GPU 0: NVIDIA A100 (UUID: $uuid)";;
--query-gpu=*clocks_event*)
  echo 'Field "clocks_event_reasons.active" is not a valid field to query.'
  exit 2;;
--query-gpu=*)
  echo "0, $uuid, NVIDIA A100, 40960, 0, {driver}, 8.0, 0, 210, 1410," \\
    "400.00, 400.00, 4, 16, 16, Enabled, Disabled, P0, None, 0x00000000000000{reasons:0>2}"
  {more};;
*) {processes};;
esac
"""


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """Yield three healthy SSH hosts with a fake TensorFlow."""
    with running_testbed(3, tmp_path_factory.mktemp("doctor"), options=OPTIONS) as made:
        for host in made.hosts:
            made.exec(host, "bash", stdin=ENVIRONMENT)
        yield made


@pytest.fixture
def lab(bed: Testbed, tmp_path: Path) -> Lab:
    inventory = bed.write_inventory({"worker": bed.hosts}, path=tmp_path / "inventory")
    return Lab(inventory, tmp_path / "runs")


def examine(lab: Lab, *options: str, code: int) -> dict[str, Any]:
    """Run the doctor, check its exit code and that each finding has a remedy; return these."""
    done = run("python", "-m", "train", *lab.words("doctor", "--json", "--quick", *options))
    examined: dict[str, Any] = json.loads(done.stdout or "{}")
    assert examined, done.stderr
    check("doctor", examined)
    assert done.returncode == code, examined["findings"]
    for finding in examined["findings"]:
        assert finding["remedy"] or finding["severity"] == "info", finding
    return examined


def bad(examined: Mapping[str, Any]) -> set[tuple[str, str, str]]:
    """Return all findings that are failures or warnings."""
    found = [(f["severity"], f["what"], f["where"]) for f in examined["findings"]]
    assert len(found) == len(set(found)), found
    return {one for one in found if one[0] != "info"}


def found(examined: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return the finding with a name."""
    (one,) = [finding for finding in examined["findings"] if finding["what"] == what]
    return dict(one)


@contextmanager
def text(bed: Testbed, host: str, path: str, content: str, mode: str = "644") -> Iterator[None]:
    """Create a file on a host, and close its connection so that the next login reads it."""
    bed.exec(host, "tee", path, user="root", stdin=content)
    bed.exec(host, "chmod", mode, path, user="root")
    log_out(bed, host)
    try:
        yield
    finally:
        bed.exec(host, "rm", path, user="root")
        log_out(bed, host)


def log_out(bed: Testbed, host: str) -> None:
    """End a host's SSH sessions, because limits and environment are set at login."""
    bed.exec(host, "pkill", "-KILL", "--full", "^sshd: train", user="root", check=False)


@contextmanager
def process(bed: Testbed, host: str, *words: str, user: str = "train") -> Iterator[None]:
    """Run a process on a host."""
    shown = bed.exec(
        *(host, "sh", "-c", '"$@" </dev/null >/dev/null 2>&1 & echo $!', "sh", *words), user=user
    )
    try:
        yield
    finally:
        bed.exec(host, "kill", "-KILL", shown.stdout.strip(), user="root", check=False)


def commands(bed: Testbed, host: str, begin: str, end: str) -> AbstractContextManager[None]:
    """Run one command as root on a host before, and another one after."""
    root = partial(bed.exec, host, "sh", "-c", user="root")
    return faults.between(partial(root, begin), partial(root, end))


def mounted(bed: Testbed, host: str, path: str, options: str) -> AbstractContextManager[None]:
    """Mount a separate file system, which belongs to the user."""
    given = f"uid={os.getuid() or 1000},{options}"
    begin = f"mkdir --parents {path} && mount -t tmpfs -o {given} none {path}"
    return commands(bed, host, begin, f"umount {path}")


def test_healthy_hosts(bed: Testbed, lab: Lab) -> None:
    examined = examine(lab, code=0)
    assert bad(examined) == set()
    assert {f"host-{n}": {*links} for n, links in enumerate(examined["links"].values())} == {
        "host-0": {"host-1", "host-2"},
        "host-1": {"host-0", "host-2"},
        "host-2": {"host-0", "host-1"},
    }
    for host, links in examined["links"].items():
        for link in links.values():
            assert (link["out"], link["local"]) == ("open", bed.host(host).address)
            assert link["sent_mbit"] > 0
    # Nothing is left of it.
    listed = [
        bed.exec(h, "sh", "-c", "ls -A ~ ~/train /tmp; pgrep -af python").stdout for h in bed.hosts
    ]
    assert not [one for one in listed if "doctor" in one or "launcher" in one]


#: The GPU of each host: driver, reason for a low clock, processes, and further output.
GPUS = {
    "host-0": ("560.35.05", "1", f"echo {UUID}, 4711, 2048, python3", ":"),
    "host-1": ("535.183.01", "1", ":", f"echo '{GONE}'"),
    "host-2": ("560.35.05", "40", ":", ":"),
}


def test_what_a_host_has(bed: Testbed, lab: Lab) -> None:
    """GPUs are listed by a fake nvidia-smi, whose driver lacks one of the fields."""
    with ExitStack() as stack:
        plant = stack.enter_context
        plant(process(bed, "host-0", "bash", "-c", BUSY))
        began = time.monotonic()
        older = f"{SITE}/tensorflow-2.20.0.dist-info"
        bed.exec("host-0", "mv", f"{SITE}/tensorflow-2.21.0.dist-info", older)
        stack.callback(bed.exec, "host-0", "mv", older, f"{SITE}/tensorflow-2.21.0.dist-info")
        proxy = "http_proxy=http://proxy.example:3128\n"
        plant(text(bed, "host-0", "/etc/environment", proxy))
        resize = "mount -o remount,size={} /dev/shm"  # first to the default of containers
        plant(commands(bed, "host-1", resize.format("64m"), resize.format("512m")))
        plant(text(bed, "host-1", "/etc/security/limits.d/few.conf", "train - nofile 256\n"))
        bashrc = bed.exec("host-1", "cat", ".bashrc").stdout
        bed.exec("host-1", "tee", ".bashrc", stdin=f"echo Welcome to host-1\n{bashrc}")
        stack.callback(bed.exec, "host-1", "tee", ".bashrc", stdin=bashrc)
        plant(faults.little_memory(bed.host("host-2"), 1024))
        container = bed.host("host-2").container
        half, whole = (("update", "--cpus", str(n), container) for n in (0.5, os.cpu_count()))
        plant(faults.dockers(half, whole))
        for host, (driver, reasons, processes, more) in GPUS.items():
            given = {"driver": driver, "reasons": reasons, "processes": processes, "more": more}
            plant(text(bed, host, "/dev/nvidia0", ""))
            program = SMI.format(digit=host[-1], **given)
            plant(text(bed, host, "/usr/local/bin/nvidia-smi", program, "755"))
        time.sleep(max(0.0, began + 11 - time.monotonic()))
        examined = examine(lab, "--only", "hosts,alike", code=2)
    assert bad(examined) == {
        ("fail", "differs-tensorflow", "host-0"),
        ("fail", "driver", "host-1"),
        ("warning", "busy", "host-0"),
        ("warning", "proxy", "host-0"),
        ("warning", "few-files", "host-1"),
        ("warning", "noisy-login", "host-1"),
        ("warning", "small-shm", "host-1"),
        ("warning", "cpu-limit", "host-2"),
        ("warning", "memory-limit", "host-2"),
        ("warning", "gpu-taken", "host-0"),
        # host-0 is left out, because it differs in a more severe property.
        ("warning", "differs-driver", "all hosts"),
        ("warning", "gpu-throttled", "host-2 GPU 0"),
    }
    assert "4711" in found(examined, "gpu-taken")["found"]
    assert found(examined, "driver")["found"] == GONE
    assert "neighbour" in found(examined, "busy")["found"]
    assert "Welcome to host-1" in found(examined, "noisy-login")["found"]
    assert found(examined, "differs-tensorflow")["expected"] == "2.21.0"


@pytest.mark.soak
def test_paths_that_lose_and_delay(bed: Testbed, lab: Lab) -> None:
    zero, one, two = bed.hosts
    # Every 80th packet, not random or more packets: TCP would sometimes wait for a timeout, and the
    # path would be slow on a busy machine.
    hole = f"ip saddr {zero.address} ip length > 1000 drop"
    lost = f"ip saddr {zero.address} numgen inc mod 80 < 1 drop"
    with (
        faults.dropping(one, hole),
        faults.dropping(two, lost),
        faults.late(one, two, 0.2),
    ):
        examined = examine(lab, "--only", "pairs", code=2)
    assert bad(examined) == {
        ("fail", "mtu", "host-0 -> host-1"),
        ("warning", "loss", "host-0 -> host-2"),
        ("warning", "latency", "host-1 -> host-2"),
    }


@pytest.mark.soak
def test_a_bad_cable_and_a_port_that_is_closed_to_one(bed: Testbed, lab: Lab) -> None:
    zero, one, two = bed.hosts
    peers = f"{{ {zero.address}, {two.address} }}"
    with (
        faults.dropping(one, f"ip saddr {peers} numgen inc mod 80 < 1 drop"),
        faults.dropping(two, f"ip saddr {zero.address} tcp dport {PORT} drop"),
    ):
        examined = examine(lab, "--only", "pairs", code=2)
    assert bad(examined) == {
        ("fail", "port-blocked", "host-0 -> host-2"),
        ("warning", "loss", "host-1"),
    }


@pytest.mark.soak
def test_what_a_host_lacks_or_has_left(bed: Testbed, lab: Lab) -> None:
    faults.host_variables(lab, "host-0", train_job_python="/nowhere/bin/python")
    bare = f"{HOME}/train/bare/bin/python"
    faults.host_variables(lab, "host-1", train_job_python=bare, train_job_root="/mnt/full/train")
    faults.host_variables(lab, "host-2", train_job_root="/mnt/read-only/train")
    clock = '#!/bin/sh\nexec /usr/bin/date --date "+90 seconds" "$@"\n'
    gone = f"TRAIN_RANK_DIR={HOME}/train/jobs/gone/worker-2"
    with (
        mounted(bed, "host-1", "/mnt/full", "size=2m"),
        mounted(bed, "host-2", "/mnt/read-only", "ro"),
        text(bed, "host-1", "/usr/local/bin/date", clock, "755"),
        process(bed, "host-1", "python3", "-c", LISTEN, str(PORT), user="root"),
        process(bed, "host-2", "env", gone, "python3", "-c", LISTEN, str(PORT)),
        faults.slow_network(bed.host("host-0"), "10mbit"),
    ):
        bed.exec("host-1", "dd", "if=/dev/zero", "of=/mnt/full/fill", "bs=64k", check=False)
        examined = examine(lab, "--only", "hosts,pairs", code=2)
    assert bad(examined) == {
        ("fail", "no-environment", "host-0"),
        ("fail", "no-tensorflow", "host-1"),
        ("fail", "disk-full", "host-1"),
        ("fail", "port-taken", "host-1"),
        ("fail", "not-writable", "host-2"),
        ("fail", "leftovers", "host-2"),
        ("warning", "slow", "host-0"),
        ("warning", "clock", "host-1"),
    }
    assert f"port {PORT} is in use by" in found(examined, "leftovers")["found"]
    assert re.search("(89|90)[.]", found(examined, "clock")["found"])


def test_addresses(bed: Testbed, lab: Lab) -> None:
    """One address belongs to another host, and one name leads to loopback."""
    faults.host_variables(lab, "host-1", train_job_address=bed.host("host-2").address)
    faults.host_variables(lab, "host-0", train_job_address="host-0")
    hosts = bed.exec("host-0", "cat", "/etc/hosts").stdout
    kept = "".join(f"{line}\n" for line in hosts.splitlines() if "host-0" not in line)
    try:
        bed.exec("host-0", "tee", "/etc/hosts", user="root", stdin=f"{kept}127.0.1.1 host-0\n")
        examined = examine(lab, "--only", "pairs", code=2)
    finally:
        bed.exec("host-0", "tee", "/etc/hosts", user="root", stdin=hosts)
    assert bad(examined) == {
        ("fail", "wrong-address", "host-1"),
        ("warning", "loopback", "host-0"),
    }
    assert "reach host-2" in found(examined, "wrong-address")["found"]


@pytest.mark.soak
def test_the_slow_one_of_two_interfaces(bed: Testbed, lab: Lab) -> None:
    network = f"{bed.hosts[0].container}-slow"
    docker("network", "create", network)
    try:
        with ExitStack() as stack:
            for host in bed.hosts:
                docker("network", "connect", network, host.container)
                stack.callback(docker, "network", "disconnect", network, host.container)
                stack.enter_context(faults.slow_network(host, "10mbit", "eth1"))
            form = f'{{{{(index .NetworkSettings.Networks "{network}").IPAddress}}}}'
            address = docker("inspect", "--format", form, bed.hosts[0].container).stdout.strip()
            faults.host_variables(lab, "host-0", train_job_address=address)
            examined = examine(lab, "--only", "pairs", code=1)
    finally:
        docker("network", "rm", network)
    assert bad(examined) == {("warning", "slow", "host-0")}
    remedy = found(examined, "slow")["remedy"]
    assert f"set train_job_address of host-0 to {bed.hosts[0].address}" in remedy


@pytest.mark.soak
def test_beside_a_job(bed: Testbed, lab: Lab) -> None:
    """The job's port is ignored and not reported."""
    given = {"train_job_python": "/usr/bin/python3", "train_job_max_restarts": 0}
    command = lab.start(
        "--job", "night", "--script", str(PLAIN), arguments=["--steps", "9000"], **given
    )
    with faults.followed(lab, "night", command):
        command.wait_for(training)
        examined = examine(lab, code=0)
        assert bad(examined) == set()
        assert {f["where"] for f in examined["findings"] if f["what"] == "in-use"} == {
            "host-0",
            "host-1",
            "host-2",
        }
        assert run("python", "-m", "train", *lab.words("stop", "night")).returncode == 0
        assert command.end().result["state"] == "stopped"


@pytest.mark.soak
def test_a_host_that_is_frozen(bed: Testbed, lab: Lab) -> None:
    log_out(bed, "host-2")
    with faults.paused(bed.host("host-2")):
        examined = examine(lab, code=4)
    assert bad(examined) in [
        {("fail", "unreachable", "host-2")},
        {("fail", "no-answer", "host-2")},
    ]
    assert {*examined["links"]} == {"host-0", "host-1"}
