"""Helpers to run the project in tests: commands, playbooks, inventories, free ports, SSH hosts."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.testbed import Testbed, running_testbed

REPOSITORY = Path(__file__).resolve().parents[2]
CACHE = REPOSITORY / ".cache"
#: Below the range of ports for outgoing connections.
FIRST_PORT, LAST_PORT, PORT_BLOCK = 20_000, 32_000, 100


def environment() -> dict[str, str]:
    """Return the environment for the project's commands."""
    bin_dir = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"),
        "PATH": f"{bin_dir}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "200",
    }


def clean_environment(**variables: str) -> dict[str, str]:
    """Return an environment without settings for TensorFlow, the training program or Python."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "TRAIN_", "PYTHON"))}
    return {**kept, **variables}


def playbook_command(
    name: str, inventory: Path, variables: Mapping[str, Any], *options: str
) -> list[str]:
    """Return the words that run ``playbooks/<name>`` like a user, in the repository's folder.

    An absolute path is used as it is.
    """
    program = str(Path(sys.executable).parent / "ansible-playbook")
    given = ["-i", str(inventory), "-e", json.dumps(dict(variables))]
    return [program, str(Path("playbooks", name)), *given, *options]


def ansible_playbook(
    name: str, inventory: Path, variables: Mapping[str, Any], *options: str
) -> subprocess.CompletedProcess[str]:
    """Run ``playbooks/<name>`` to its end."""
    command = playbook_command(name, inventory, variables, *options)
    return run(*command, stderr=subprocess.STDOUT, timeout=900)


def run(
    *command: str,
    cwd: Path = REPOSITORY,
    env: Mapping[str, str] | None = None,
    stderr: int = subprocess.PIPE,
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, by default like the project's commands."""
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment() if env is None else env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        timeout=timeout,
        check=False,
    )


def pasted(line: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a suggested command as in a terminal, with ``options`` that limit its effects."""
    return run("sh", "-c", " ".join([line, *options]), timeout=120)


def _own_ports() -> Iterator[int]:
    """Yield ports from blocks that no other test process of this machine has locked."""
    folder = Path(tempfile.gettempdir(), "train-test-ports")
    folder.mkdir(exist_ok=True)
    for first in range(FIRST_PORT, LAST_PORT, PORT_BLOCK):
        lock = os.open(folder / str(first), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        yield from range(first, first + PORT_BLOCK)  # locked until this process ends


PORTS = _own_ports()


def free_port() -> int:
    """Return a free TCP port that no other test process returns."""
    for port in PORTS:
        with socket.socket() as probe:
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no port is free")


def free_ports(count: int) -> int:
    """Return the first of ``count`` consecutive free TCP ports."""
    while True:
        ports = [free_port() for _ in range(count)]
        if ports[-1] - ports[0] == count - 1:
            return ports[0]


@dataclass
class Run:
    """The outcome of ``python -m train``.

    Attributes:
        seconds: from the command to its end.
        events: its JSON lines.
    """

    code: int
    seconds: float
    events: list[dict[str, Any]]
    error: str

    @property
    def result(self) -> dict[str, Any]:
        """The last event: how the job ended."""
        assert self.events, self.error
        assert self.events[-1]["event"] == "result", self.error
        return self.events[-1]

    def records(self, task: str) -> list[dict[str, Any]]:
        """Return the progress records of a rank that were shown."""
        shown = [e for e in self.events if e["event"] == "rank" and e["task"] == task]
        return [event["progress"] for event in shown if event["progress"]]


class Command:
    """``python -m train COMMAND``, running in the background.

    If it is ``doubtful``, its job may complete with doubts.
    """

    def __init__(self, *words: str, doubtful: bool = False) -> None:
        self._doubtful = doubtful
        self._began = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "train", *words],
            cwd=REPOSITORY,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.events: list[dict[str, Any]] = []

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Read events until one matches, and return it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))
            if wanted(self.events[-1]):
                return self.events[-1]
        raise AssertionError(f"it ended: {self.events[-3:]} {self.process.communicate()[1]}")

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.process.kill()
        self.process.wait()

    def end(self, timeout: float = 600) -> Run:
        """Wait for its end, and return the outcome."""
        out, err = self.process.communicate(timeout=timeout)
        self.events += [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        if not self._doubtful and self.events:
            # Trainings in tests have no doubts, unless the test is about doubts.
            assert not self.events[-1].get("doubts"), self.events[-1]
        return Run(self.process.returncode, time.monotonic() - self._began, self.events, err)


@dataclass
class Lab:
    """An inventory with its variables and results.

    Attributes:
        variables: for every command, such as ``train_job_root``.
        runs_dir: the folder of results.
        doubtful: whether its jobs may complete with doubts.
    """

    inventory: Path
    runs_dir: Path
    variables: dict[str, Any] = field(default_factory=dict)
    doubtful: bool = False

    @property
    def root(self) -> Path:
        """The folder of all jobs on the hosts, if they are this machine."""
        return Path(self.variables["train_job_root"])

    def given(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """Return the variables for a command."""
        return {**self.variables, "train_job_runs_dir": str(self.runs_dir), **variables}

    def words(
        self, command: str, *options: str, arguments: Sequence[str] = (), **variables: Any
    ) -> list[str]:
        """Return the words after ``python -m train``."""
        given = json.dumps(self.given(variables))
        words = [command, "-i", str(self.inventory), "-e", given, *options]
        return [*words, "--", *arguments] if arguments else words

    def start(self, *options: str, arguments: Sequence[str] = (), **variables: Any) -> Command:
        """Start ``python -m train run --json``."""
        words = self.words("run", "--json", *options, arguments=arguments, **variables)
        return Command(*words, doubtful=self.doubtful)

    def run(self, *options: str, arguments: Sequence[str] = (), **variables: Any) -> Run:
        """Run ``python -m train run --json`` to its end."""
        return self.start(*options, arguments=arguments, **variables).end()

    def playbook(self, name: str, *options: str, **variables: Any) -> Any:
        """Run a playbook without the command line."""
        return ansible_playbook(name, self.inventory, self.given(variables), *options)

    def saved(self, job: str) -> dict[str, Any]:
        """Return ``result.json`` of a job."""
        loaded: dict[str, Any] = json.loads((self.runs_dir / job / "result.json").read_text())
        return loaded


#: Makes a lab of ranks by group; see the fixtures ``local_lab`` and ``ssh_lab``.
Labs = Callable[..., Lab]


def write_local_inventory(folder: Path, groups: Mapping[str, int]) -> Path:
    """Write an inventory of ranks on this machine, with free ports; return its folder."""
    children = {
        group: {"hosts": {f"{group}{i}": {"train_job_port": free_port()} for i in range(count)}}
        for group, count in groups.items()
    }
    shutil.copytree(REPOSITORY / "inventory/local/group_vars", folder / "group_vars")
    (folder / "hosts.yml").write_text(json.dumps({"all": {"children": children}}))
    return folder


def once(shared: Path, name: str, make: Callable[[], str]) -> str:
    """Return the result of ``make``, which only the first of several test processes calls.

    Args:
        shared: the folder that the processes share.
        name: of the result.
    """
    made = shared / name
    with (shared / f"{name}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not made.exists():
            made.write_text(make())
    return made.read_text()


def tensorflow_mounts(*pythons: str) -> list[str]:
    """Return mounts that give SSH hosts TensorFlow's wheels for some Python versions.

    The environments are stored on this machine: TensorFlow is installed once for all test beds.
    """
    environments = CACHE / "testbed-venvs"
    environments.mkdir(parents=True, exist_ok=True)
    wheels = _fill_wheelhouse("tensorflow", *pythons)
    return [f"{environments}:/home/train/train/venvs", f"{wheels}:/wheelhouse:ro"]


def _fill_wheelhouse(framework: str, *pythons: str) -> Path:
    """Download the wheels of a framework, unless they are there, and return their folder."""
    wheels = CACHE / "wheelhouse"
    wheels.mkdir(parents=True, exist_ok=True)
    wanted = {
        "tensorflow_framework": framework,
        "tensorflow_wheelhouse_source": str(wheels),
        "tensorflow_wheelhouse_pythons": pythons,
    }
    with (wheels / ".lock").open("w") as held:  # other test processes use the same folder
        fcntl.flock(held, fcntl.LOCK_EX)
        done = ansible_playbook("wheelhouse.yml", Path("localhost,"), wanted)
    assert done.returncode == 0, done.stdout[-3000:]
    return wheels


@contextmanager
def tensorflow_testbed(
    count: int, folder: Path, shared: Path, options: Sequence[str] = ()
) -> Iterator[Testbed]:
    """Run SSH hosts in Docker with TensorFlow; ``playbooks/setup.yml`` installs it on the first.

    Args:
        count: number of hosts.
        folder: for the control node's files.
        shared: see `once`.
        options: Docker options for every host.
    """
    mounts = once(shared, "mounts", lambda: json.dumps(tensorflow_mounts("3.11")))
    with running_testbed(count, folder, mounts=json.loads(mounts), options=options) as bed:
        _install_framework(bed, shared, "tensorflow", "train/venv")
        yield bed


def install_jax(bed: Testbed, shared: Path) -> None:
    """Install JAX on the hosts of `tensorflow_testbed`, in addition to TensorFlow."""
    once(shared, "jax-wheels", lambda: str(_fill_wheelhouse("jax", "3.11")))
    _install_framework(bed, shared, "jax", "train/venv-jax")


def _install_framework(bed: Testbed, shared: Path, framework: str, link: str) -> None:
    """Install a framework from its wheels. ``link`` is the role's link to its environment."""

    def install() -> str:
        wanted = {
            "tensorflow_framework": framework,
            "tensorflow_wheelhouse": "/wheelhouse",
            "setup_roles": ["tensorflow"],  # the other roles need systemd on the hosts
        }
        inventory = bed.directory / "inventory"
        done = ansible_playbook("setup.yml", inventory, wanted, "--limit", "host-0")
        assert done.returncode == 0, done.stdout[-3000:]
        return bed.exec("host-0", "readlink", link).stdout.strip()

    # All hosts have the same mounts, so that the others lack only the link.
    target = once(shared, f"environment-{framework}", install)
    for host in bed.hosts:
        bed.exec(host, "ln", "-sfn", target, link)
