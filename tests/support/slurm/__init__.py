"""A Slurm cluster in Docker: a controller and two nodes that share the home of the user ``train``.

The repository is mounted read-only as ``/project``, and ``/control`` has the packages of the
control node, so that ``python -m train`` can run within a job.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.support.lab import CACHE, REPOSITORY
from tests.support.testbed import BOOKWORM, TestbedError, docker
from tests.support.testbed.engine import ensure_image, one_build

_FOLDER = Path(__file__).parent
_CONTROLLER, _NODES = "controller", ("node-1", "node-2")
_HOST_KEY = "/etc/ssh/ssh_host_ed25519_key.pub"
_READY_S = 60.0
_WHEELS = CACHE / "slurm-wheels"
_ENVIRONMENTS = CACHE / "slurm-control"


class SlurmCluster:
    """A running cluster; ``home`` is the folder of this machine that is its home directory."""

    nodes = _NODES

    def __init__(self, name: str, home: Path) -> None:
        self._name, self.home = name, home

    def exec(
        self,
        host: str,
        *words: str,
        user: str = "train",
        stdin: str = "",
        check: bool = True,
        timeout: float = 120,
    ) -> str:
        """Run a command in a container, in the home directory, and return its output."""
        options = ("--interactive", "--user", user, "--workdir", "/home/train")
        done = docker(
            *("exec", *options, f"{self._name}-{host}", *words),
            stdin=stdin,
            check=check,
            timeout=timeout,
        )
        return done.stdout

    def submit(self, script: str, *options: str) -> str:
        """Submit a batch script and return the id of its job."""
        printed = self.exec(_CONTROLLER, "sbatch", "--parsable", *options, stdin=script)
        return printed.strip()

    def show(self, job: str) -> dict[str, str]:
        """Return the fields of a job as the controller knows them."""
        shown = self.exec(_CONTROLLER, "scontrol", "show", "job", job)
        return dict(re.findall(r"(\S+?)=(\S*)", shown))

    def wait(self, job: str, states: Sequence[str], timeout: float = 120) -> dict[str, str]:
        """Wait until a job is in one of the states, and return its fields."""
        deadline = time.monotonic() + timeout
        while (fields := self.show(job))["JobState"] not in states:
            if time.monotonic() > deadline:
                output = self.output(job)
                raise AssertionError(f"job {job} is {fields['JobState']}: {output[-3000:]}")
            time.sleep(0.3)
        return fields

    def output(self, job: str) -> str:
        """Return what a batch script has printed."""
        path = self.home / f"slurm-{job}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def processes(self) -> list[str]:
        """Return the processes of the user on the nodes, by node."""
        found = []
        for node in self.nodes:
            listed = self.exec(node, "ps", "-u", "train", "-o", "pid=,args=", check=False)
            found += [f"{node}: {line}" for line in listed.splitlines() if " ps -u " not in line]
        return found


@contextmanager
def running_slurm(folder: Path) -> Iterator[SlurmCluster]:
    """Start a cluster, and remove it at the end."""
    image, name, home = _image(), f"slurm-{secrets.token_hex(4)}", folder / "home"
    control = _control(image)
    home.mkdir(parents=True)
    mounts = [f"{home}:/home/train", f"{REPOSITORY}:/project:ro", f"{control}:/control:ro"]
    mounts.append(f"{_FOLDER / 'slurm.conf'}:/etc/slurm/slurm.conf:ro")
    docker("network", "create", name)
    try:
        for host in (_CONTROLLER, *_NODES):
            docker(
                *("run", "--detach", "--init", "--name", f"{name}-{host}", "--hostname", host),
                *("--network", name, "--network-alias", host),
                *(word for mount in mounts for word in ("--volume", mount)),
                *(image, "slurmctld" if host == _CONTROLLER else "slurmd"),
            )
        cluster = SlurmCluster(name, home)
        cluster.exec(_CONTROLLER, "chown", "train:train", "/home/train", user="root")
        _exchange_keys(cluster)
        _wait_for_nodes(cluster)
        yield cluster
    finally:
        with ThreadPoolExecutor() as pool:
            removed = [("rm", "--force", f"{name}-{host}") for host in (_CONTROLLER, *_NODES)]
            list(pool.map(lambda words: docker(*words, check=False), removed))
        docker("network", "rm", name, check=False)


def _image() -> str:
    """Build the image of all hosts, unless one with the same inputs exists, and return its tag."""
    recipe = (_FOLDER / "Dockerfile").read_text(encoding="utf-8")
    uid = f"TRAIN_UID={os.getuid() or 1000}"
    inputs = "\n".join([ensure_image(BOOKWORM), uid, recipe])
    tag = f"train-slurm:{hashlib.sha256(inputs.encode()).hexdigest()[:12]}"
    if _has_image(tag):
        return tag
    with one_build():
        if not _has_image(tag):
            words = ("build", "--build-arg", f"BASE={BOOKWORM}", "--build-arg", uid)
            docker(*words, "--tag", tag, "-", stdin=recipe, timeout=900)
    return tag


def _has_image(tag: str) -> bool:
    return docker("image", "inspect", tag, check=False).returncode == 0


def _control(image: str) -> Path:
    """Install the packages of the control node for the image's Python, unless they are there.

    Collections of ``ansible`` are left out, because jobs do not need them. Return the folder of the
    environment, which the image's Python has created.
    """
    lock = (REPOSITORY / "requirements/control.txt").read_text(encoding="utf-8")
    lock = re.sub(r"^(ansible|uv)==(.|\n(?!\S))*\n", "", lock, flags=re.MULTILINE)
    folder = _ENVIRONMENTS / hashlib.sha256(f"{lock}{image}".encode()).hexdigest()[:12]
    if (folder / "ready").exists():
        return folder
    with one_build():
        if (folder / "ready").exists():
            return folder
        for path in (_WHEELS, folder):
            path.mkdir(parents=True, exist_ok=True)
        chosen = _WHEELS / "lock.txt"
        chosen.write_text(lock, encoding="utf-8")
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        download += ["--require-hashes", "-r", str(chosen), "-d", str(_WHEELS)]
        download += ["--python-version", "3.11", "--only-binary=:all:"]
        done = subprocess.run(download, capture_output=True, text=True, check=False, timeout=600)
        if done.returncode:
            raise TestbedError(f"the control node's packages: {done.stderr[-2000:]}")
        install = (
            "python3 -m venv /control && /control/bin/pip install --quiet --no-index --no-deps "
            "--find-links /wheels --require-hashes -r /wheels/lock.txt && touch /control/ready"
        )
        mounts = (f"{folder}:/control", f"{_WHEELS}:/wheels:ro")
        docker(
            *("run", "--rm", *(word for mount in mounts for word in ("--volume", mount))),
            *("--entrypoint", "sh", image, "-c", install),
            timeout=900,
        )
    return folder


def _exchange_keys(cluster: SlurmCluster) -> None:
    """Let the user log in to all nodes with a key in the shared home."""
    script = (
        "umask 077; mkdir -p .ssh && ssh-keygen -q -t ed25519 -N '' -f .ssh/id_ed25519 && "
        "cp .ssh/id_ed25519.pub .ssh/authorized_keys && cat > .ssh/known_hosts"
    )
    keys = ""
    for node in cluster.nodes:
        deadline = time.monotonic() + _READY_S
        while not (key := cluster.exec(node, "cat", _HOST_KEY, user="root", check=False)):
            if time.monotonic() > deadline:
                raise TestbedError(f"{node} has no host key")
            time.sleep(0.1)
        keys += f"{node} {' '.join(key.split()[:2])}\n"
    cluster.exec(_CONTROLLER, "sh", "-c", script, stdin=keys)


def _wait_for_nodes(cluster: SlurmCluster) -> None:
    """Wait until both nodes can run jobs."""
    deadline = time.monotonic() + _READY_S
    words = ("sinfo", "--noheader", "--states=idle", "--format=%D")
    while cluster.exec(_CONTROLLER, *words, check=False).strip() != str(len(cluster.nodes)):
        if time.monotonic() > deadline:
            raise TestbedError(f"Slurm is not ready: {cluster.exec(_CONTROLLER, 'sinfo')}")
        time.sleep(0.2)
