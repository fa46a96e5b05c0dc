"""Jobs over every kind of connection that Ansible makes: run, attach, stop.

The hosts have no TensorFlow; the script is plain Python.
"""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs import training
from tests.support.lab import Command, free_port, run
from tests.support.testbed import HOME, Host, Rank, Testbed

pytestmark = pytest.mark.docker
PASSWORD = "of a vault, with spaces"


@dataclass
class Way:
    """A way to reach the hosts: the options of every command, and the user that ranks run as."""

    options: list[str]
    home: str = str(HOME)
    user: str = "train"
    variables: dict[str, Any] = field(default_factory=dict)


class Form:
    """Creates a way to the hosts of a test bed, in a separate folder with a space in its name."""

    def __init__(self, bed: Testbed, folder: Path) -> None:
        self.bed = bed
        self.folder = folder / "with space"
        self.folder.mkdir()
        self.port = free_port()

    def inventory(
        self,
        name: str = "inventory",
        hosts: Sequence[int] = (0, 1),
        each: Callable[[Host], dict[str, Any]] = lambda host: {},
        **variables: Any,
    ) -> str:
        """Write an inventory and return its path.

        Args:
            hosts: their numbers.
            each: further variables of a host.
            variables: of all hosts.
        """
        chosen = [self.bed.hosts[number] for number in hosts]
        ranks = [Rank(f"rank{n}", host, each(host)) for n, host in zip(hosts, chosen, strict=True)]
        own = {"train_job_port": self.port, **variables}
        own["ansible_control_path"] = f"%(directory)s/{self.port}-%%h"  # no connection from before
        return str(self.bed.write_inventory({"worker": ranks}, own, self.folder / name))

    def inventories_vault_and_become_password(self) -> Way:
        for host in self.bed.hosts[:2]:
            self.bed.exec(host, "chpasswd", user="root", stdin="train:sudo's word\n")
            rule = "train ALL=(ALL) PASSWD: ALL\n"
            self.bed.exec(host, "tee", "/etc/sudoers.d/zz-train", user="root", stdin=rule)
        word = self.folder / "become password"
        word.write_text("sudo's word\n")
        password = self.folder / "vault password"
        password.write_text(f"{PASSWORD}\n")
        vault = ["--vault-password-file", str(password)]
        secrets = self.folder / "vaulted.yml"
        secrets.write_text("ansible_user: train\n")
        program = str(Path(sys.executable).with_name("ansible-vault"))
        assert run(program, "encrypt", *vault, str(secrets)).returncode == 0
        given: dict[str, Any] = {"ansible_user": "nobody", "ansible_become": True}
        one, two = self.inventory("one", [0], **given), self.inventory("two", [1], **given)
        options = ["-i", one, "-i", two, "-e", f"@{secrets}", *vault]
        return Way([*options, "--become-password-file", str(word)], "/root", "root")

    def docker(self) -> Way:
        inventory = self.inventory(
            each=lambda host: {"ansible_host": host.container, "train_job_address": host.address},
            ansible_connection="community.docker.docker",
        )
        return Way(["-i", inventory])

    def jump_host_and_noisy_login(self) -> Way:
        noise = (
            'echo "Welcome to {this} [cluster]"\necho "module load: \'cuda\'" >&2\n'
            'trap "echo bye" EXIT\n'
        )
        for host in self.bed.hosts[:2]:
            path = str(HOME / ".bashrc")
            kept = self.bed.exec(host, "cat", path).stdout
            self.bed.exec(host, "tee", path, stdin=noise + kept)
        key = ["-i", str(self.bed.directory / "id_ed25519")]
        jump = ["-W", "%h:%p", f"train@{self.bed.hosts[2].address}"]
        proxy = shlex.join(["ssh", *key, *self.bed.ssh_options, *jump])
        # The name is only known in the hosts' network.
        inventory = self.inventory(
            each=lambda host: {"ansible_host": host.name},
            ansible_ssh_common_args=shlex.join(
                [*self.bed.ssh_options, "-o", f"ProxyCommand={proxy}"]
            ),
        )
        return Way(["-i", inventory])

    def list_of_hosts_and_options(self) -> Way:
        hosts = ",".join(host.address for host in self.bed.hosts[:2]) + ","
        key = self.folder / "the key"
        key.write_bytes((self.bed.directory / "id_ed25519").read_bytes())
        key.chmod(0o600)
        options = ["-i", hosts, "-u", "train", "-b", "--private-key", str(key)]
        options += ["--ssh-common-args", shlex.join(self.bed.ssh_options)]
        return Way(options, "/root", "root", {"train_job_port": self.port})


@pytest.fixture
def form(testbed: Testbed, tmp_path: Path) -> Iterator[Form]:
    saved = [testbed.exec(host, "cat", str(HOME / ".bashrc")).stdout for host in testbed.hosts]
    yield Form(testbed, tmp_path)
    for host, text in zip(testbed.hosts, saved, strict=True):
        testbed.exec(host, "tee", str(HOME / ".bashrc"), stdin=text)
        testbed.exec(host, "rm", "-f", "/etc/sudoers.d/zz-train", user="root")


def words(command: str, way: Way, folder: Path, *others: str) -> list[str]:
    given = {
        "train_job_python": "/usr/bin/python3",
        "train_job_max_restarts": 0,
        "train_job_queue_timeout": 60,  # so that it requests leases first
        "train_job_runs_dir": str(folder / "runs"),
        **way.variables,
    }
    return [command, *way.options, "-e", json.dumps(given), *others]


#: Saves a model once a file exists.
SCRIPT = """
import json, os, pathlib, sys, time
with open(os.environ["TRAIN_PROGRESS_FILE"], "a") as stream:
    print(json.dumps({"phase": "training", "step": 1}), file=stream)
deadline = time.monotonic() + 300
while not os.path.exists(sys.argv[1]) and time.monotonic() < deadline:
    time.sleep(0.1)
folder = pathlib.Path(os.environ["TRAIN_MODEL_DIR"])
folder.mkdir(parents=True, exist_ok=True)
(folder / "weights").write_bytes(bytes(range(256)) * 4096)
print("saved")
"""


@pytest.mark.parametrize(
    "name",
    [
        "inventories_vault_and_become_password",
        "list_of_hosts_and_options",
        pytest.param("docker", marks=pytest.mark.soak),
        pytest.param("jump_host_and_noisy_login", marks=pytest.mark.soak),
    ],
)
def test_run_attach_and_the_end_or_stop(form: Form, name: str) -> None:
    way: Way = getattr(form, name)()
    job, end = name.replace("_", "-"), f"/tmp/end-{form.port}"
    script = form.folder / "my script" / "main.py"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    given = ["--json", "--job", job, "--script", str(script), "--", end]
    first = Command(*words("run", way, form.folder, *given))
    first.wait_for(training)
    first.process.send_signal(signal.SIGINT)  # without a terminal, it leaves the job running
    left = first.end()
    assert left.code == 130, left.error
    assert left.result["state"] == "left"

    elsewhere = form.folder / "another control node"
    second = Command(*words("attach", way, elsewhere, "--json", job))
    second.wait_for(training)
    archive = Path("runs", job, "code.tar.gz")  # without it, no attempt could be started from there
    assert (elsewhere / archive).read_bytes() == (form.folder / archive).read_bytes()
    owners = "stat -c %U " + shlex.quote(f"{way.home}/train/jobs/{job}") + "/worker-?"
    for host in form.bed.hosts[:2]:
        assert form.bed.exec(host, "sh", "-c", owners, user="root").stdout.split() == [way.user]

    if name == "list_of_hosts_and_options":
        stop = Command(*words("stop", way, form.folder, job))
        out, err = stop.process.communicate(timeout=120)
        assert stop.process.returncode == 0, err
        assert out.count(" -> stopped, 1 process ended, 0 left, ") == 2, out
        code = 3
    else:
        for host in form.bed.hosts[:2]:
            form.bed.exec(host, "touch", end)
        code = 0
    ended = second.end()
    assert ended.code == code, (ended.error, ended.result)
    assert [rank["task"] for rank in ended.result["ranks"]] == ["worker-0", "worker-1"]
    if code == 0:
        saved = elsewhere / "runs" / job
        assert (saved / "model/weights").read_bytes() == bytes(range(256)) * 4096
        assert (saved / "logs/worker-1.log").read_text() == "saved\n"
