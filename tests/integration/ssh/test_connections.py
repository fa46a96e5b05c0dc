"""Jobs over every form of connection that Ansible makes: run, attach, stop.

The hosts have no TensorFlow; the script is plain Python.
"""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import REPOSITORY, Command, environment, free_port
from tests.support.testbed import HOME, Testbed, docker_available, running_testbed

pytestmark = pytest.mark.docker
PLAIN = REPOSITORY / "tests/data/scripts/plain"
PASSWORD = "of a vault, with spaces"


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """Two hosts that train, and one through which they can be reached."""
    if not docker_available():
        pytest.skip("no Docker engine answers")
    with running_testbed(3, tmp_path_factory.mktemp("bed")) as made:
        yield made


@dataclass
class Way:
    """How the hosts are reached.

    Attributes:
        options: of every command, ``-i`` among them.
        home: of the user that ranks run as.
        user: that one.
    """

    options: list[str]
    home: str = str(HOME)
    user: str = "train"
    variables: dict[str, Any] = field(default_factory=dict)


class Form:
    """Makes a way to the hosts of a test bed, in a folder of its own whose name has a space."""

    def __init__(self, bed: Testbed, folder: Path) -> None:
        self.bed = bed
        self.folder = folder / "with space"
        self.folder.mkdir()
        self.port = free_port()

    @property
    def _connection(self) -> dict[str, Any]:
        return {
            "ansible_user": "train",
            "ansible_ssh_private_key_file": str(self.bed.directory / "id_ed25519"),
            "ansible_ssh_common_args": shlex.join(self.bed.ssh_options),
            "ansible_control_path": f"%(directory)s/{self.port}-%%h",
        }

    def inventory(
        self,
        *without: str,
        name: str = "inventory",
        hosts: Sequence[int] = (0, 1),
        each: Callable[[int], dict[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """Write an inventory and return its path.

        Args:
            without: variables of the connection that are left out.
            name: of its folder.
            hosts: their numbers.
            each: further variables of a host.
            variables: of all hosts.
        """
        path = self.folder / name
        path.mkdir()
        members = {
            f"rank{number}": {
                "ansible_host": self.bed.hosts[number].address,
                **(each(number) if each else {}),
            }
            for number in hosts
        }
        (path / "hosts.yml").write_text(json.dumps({"worker": {"hosts": members}}))
        given = {**self._connection, "train_job_port": self.port, **variables}
        kept = {key: value for key, value in given.items() if key not in without}
        (path / "group_vars").mkdir()
        (path / "group_vars/all.yml").write_text(json.dumps(kept))
        return str(path)

    def user_by_option(self) -> Way:
        return Way(["-i", self.inventory("ansible_user"), "-u", "train"])

    def key_by_option(self) -> Way:
        inventory = self.inventory("ansible_ssh_private_key_file")
        key = self.folder / "the key"
        key.write_bytes((self.bed.directory / "id_ed25519").read_bytes())
        key.chmod(0o600)
        return Way(["-i", inventory, "--private-key", str(key)])

    def become_by_option(self) -> Way:
        return Way(["-i", self.inventory(), "-b"], "/root", "root")

    def become_in_inventory(self) -> Way:
        options = ["-i", self.inventory(ansible_become=True)]
        return Way(options, "/root", "root")

    def become_with_password(self) -> Way:
        for host in self.bed.hosts[:2]:
            self.bed.exec(host, "chpasswd", user="root", stdin="train:sudo's word\n")
            rule = "train ALL=(ALL) PASSWD: ALL\n"
            self.bed.exec(host, "tee", "/etc/sudoers.d/zz-train", user="root", stdin=rule)
        word = self.folder / "become password"
        word.write_text("sudo's word\n")
        options = ["-i", self.inventory(), "-b", "--become-password-file", str(word)]
        return Way(options, "/root", "root")

    def docker(self) -> Way:
        def each(number: int) -> dict[str, Any]:
            host = self.bed.hosts[number]
            return {"ansible_host": host.container, "train_job_address": host.address}

        inventory = self.inventory(ansible_connection="community.docker.docker", each=each)
        return Way(["-i", inventory])

    def jump_host(self) -> Way:
        jump = self.bed.hosts[2]
        key = self.bed.directory / "id_ed25519"
        proxy = [
            "ssh",
            "-i",
            str(key),
            *self.bed.ssh_options,
            "-W",
            "%h:%p",
            f"train@{jump.address}",
        ]
        args = [*self.bed.ssh_options, "-o", f"ProxyCommand={shlex.join(proxy)}"]
        # The name is known in the hosts' network alone.
        inventory = self.inventory(
            each=lambda number: {"ansible_host": self.bed.hosts[number].name},
            ansible_ssh_common_args=shlex.join(args),
        )
        return Way(["-i", inventory])

    def noisy_login(self) -> Way:
        for host in self.bed.hosts[:2]:
            noise = (
                'echo "Welcome to {this} [cluster]"\necho "module load: \'cuda\'" >&2\n'
                'trap "echo bye" EXIT\n'
            )
            path = str(HOME / ".bashrc")
            kept = self.bed.exec(host, "cat", path).stdout
            self.bed.exec(host, "tee", path, stdin=noise + kept)
        return Way(["-i", self.inventory()])

    def vaulted_file(self) -> Way:
        word = self.folder / "vault password"
        word.write_text(f"{PASSWORD}\n")
        secrets = self.folder / "vaulted.yml"
        secrets.write_text("ansible_user: train\n")
        program = str(Path(sys.executable).with_name("ansible-vault"))
        subprocess.run(
            [program, "encrypt", "--vault-password-file", str(word), str(secrets)],
            check=True,
            capture_output=True,
            env=environment(),
        )
        inventory = self.inventory("ansible_user")
        return Way(["-i", inventory, "-e", f"@{secrets}", "--vault-password-file", str(word)])

    def several_inventories(self) -> Way:
        one = self.inventory(name="one", hosts=[0])
        two = self.inventory(name="two", hosts=[1])
        return Way(["-i", one, "-i", two])

    def list_of_hosts(self) -> Way:
        hosts = ",".join(host.address for host in self.bed.hosts[:2]) + ","
        options = ["-i", hosts, "-u", "train", "--private-key"]
        options += [str(self.bed.directory / "id_ed25519")]
        options += ["--ssh-common-args", shlex.join(self.bed.ssh_options)]
        return Way(options, variables={"train_job_port": self.port})


FORMS = [name for name in vars(Form) if name[0] != "_" and name != "inventory"]


@pytest.fixture
def form(bed: Testbed, tmp_path: Path) -> Iterator[Form]:
    saved = [bed.exec(host, "cat", str(HOME / ".bashrc")).stdout for host in bed.hosts]
    yield Form(bed, tmp_path)
    for host, text in zip(bed.hosts, saved, strict=True):
        bed.exec(host, "tee", str(HOME / ".bashrc"), stdin=text)
        bed.exec(host, "rm", "-f", "/etc/sudoers.d/zz-train", user="root")


def words(command: str, way: Way, folder: Path, *others: str) -> list[str]:
    given = {
        "train_job_python": "/usr/bin/python3",
        "train_job_max_restarts": 0,
        "train_job_runs_dir": str(folder / "runs"),
        **way.variables,
    }
    return [command, *way.options, "-e", json.dumps(given), *others]


@pytest.mark.parametrize("name", FORMS)
def test_run_attach_stop(form: Form, name: str) -> None:
    way: Way = getattr(form, name)()
    job, script = name.replace("_", "-"), ["--script", str(PLAIN)]
    run = words("run", way, form.folder, "--json", "--job", job, *script, "--", "--steps", "3000")

    def trains(event: dict[str, Any]) -> bool:
        return bool(event.get("progress", {}).get("step"))

    first = Command(*run)
    first.wait_for(trains)
    first.process.send_signal(signal.SIGINT)  # without a terminal, it leaves the job running
    left = first.end()
    assert left.code == 130, left.error
    assert left.result["state"] == "left"

    elsewhere = form.folder / "another control node"
    second = Command(*words("attach", way, elsewhere, "--json", job))
    second.wait_for(trains)
    archive = Path("runs", job, "code.tar.gz")  # without it, no attempt could be started there
    assert (elsewhere / archive).read_bytes() == (form.folder / archive).read_bytes()
    owners = "stat -c %U " + shlex.quote(f"{way.home}/train/jobs/{job}") + "/worker-?"
    for host in form.bed.hosts[:2]:
        assert form.bed.exec(host, "sh", "-c", owners, user="root").stdout.split() == [way.user]

    stop = Command(*words("stop", way, form.folder, job))
    out, err = stop.process.communicate(timeout=120)
    assert stop.process.returncode == 0, err
    assert out.count("running -> stopped") == 2, out
    assert out.count(", 0 left") == 2, out
    stopped = second.end()
    assert stopped.code == 3, (stopped.error, stopped.result)
    assert [rank["task"] for rank in stopped.result["ranks"]] == ["worker-0", "worker-1"]


SAVES = """
import os, pathlib
folder = pathlib.Path(os.environ["TRAIN_MODEL_DIR"])
folder.mkdir(parents=True, exist_ok=True)
(folder / "weights").write_bytes(bytes(range(256)) * 4096)
print("saved")
"""


@pytest.mark.parametrize(
    "name", ["become_in_inventory", "docker", "noisy_login", "list_of_hosts", "jump_host"]
)
def test_results_come_back(form: Form, name: str) -> None:
    way: Way = getattr(form, name)()
    script = form.folder / "my script" / "main.py"
    script.parent.mkdir()
    script.write_text(SAVES)
    job = "saves-" + name.replace("_", "-")
    run = Command(
        *words("run", way, form.folder, "--json", "--job", job, "--script", str(script))
    ).end()
    assert run.code == 0, (run.error, run.events[-1:])
    saved = form.folder / "runs" / job / "model" / "weights"
    assert saved.read_bytes() == bytes(range(256)) * 4096
    assert (form.folder / "runs" / job / "logs" / "worker-1.log").read_text() == "saved\n"
