"""Each kind of failed login is one sentence with its remedy, in every command."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lab import REPOSITORY, environment, run
from tests.support.testbed import Host, Testbed, running_testbed
from train.gang import login_failures

pytestmark = pytest.mark.docker

#: The kind of failure of each inventory host.
KINDS = {
    "unknown": "unknown-key",
    "changed": "changed-key",
    "denied": "key-denied",
    "questioned": "password-denied",
    "locked": "key-passphrase",
    "open": "key-permissions",
    "closed": "refused",
    "away": "no-route",
    "mute": "timeout",
    "nameless": "unknown-name",
    "shell-less": "nologin",
    "expired": "expired",
    "crowded": "dropped",
    "replaced": "no-commands",
    "asleep": "hangs",
    "sudo": "become",
    "bare": "no-python",
}
#: The hosts for tests of commands that have nothing to wait for.
FEW = ("closed", "denied", "replaced", "sudo")
SETUP = "playbooks/setup.yml"
#: Seconds until a failed login is reported, and for the rest of the command on a busy machine.
LIMIT, MARGIN = 15, 10


def _create_users(bed: Testbed) -> None:
    """Create users, with the key of the user train, whose logins fail in different ways."""
    bed.exec(
        bed.hosts[0],
        "sh",
        user="root",
        stdin="""
            set -e
            for name in nologin:/usr/sbin/nologin expired:/bin/bash replaced:/bin/bash \\
                asleep:/bin/bash sudo:/bin/bash asked:/bin/bash; do
              user=login-${name%%:*}
              useradd -m -s "${name#*:}" "$user"
              echo "$user:secret" | chpasswd
              mkdir -m 700 "/home/$user/.ssh"
              cp /home/train/.ssh/authorized_keys "/home/$user/.ssh/"
              chown -R "$user:" "/home/$user/.ssh"
            done
            chage -d 0 login-expired
            echo 'exec bash' > /home/login-replaced/.bashrc
            echo 'sleep 60' > /home/login-asleep/.bashrc
            echo 'echo "Welcome to [node]"; echo "module load: cuda" >&2' > /home/login-sudo/.bashrc
            mv /usr/bin/python3* /root/
            sed -i '/AllowUsers/d' /etc/ssh/sshd_config.d/testbed.conf
            printf 'Match User login-asked\\n  %s\\n  %s\\n' \\
                'AuthenticationMethods publickey password' 'PasswordAuthentication yes' \\
                >> /etc/ssh/sshd_config.d/testbed.conf
            kill -HUP 1
        """,
    )


def _listener(closing: bool) -> Iterator[int]:
    """Yield the port of a server that sends nothing, or that closes each connection at once."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                if closing:
                    connection.close()
                else:
                    kept.append(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def mute_port() -> Iterator[int]:
    yield from _listener(closing=False)


@pytest.fixture(scope="module")
def crowded_port() -> Iterator[int]:
    yield from _listener(closing=True)


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    with running_testbed(1, tmp_path_factory.mktemp("bed")) as found:
        _create_users(found)
        yield found


def _key(folder: Path, name: str, passphrase: str) -> str:
    path = folder / name
    assert (
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(path)).returncode == 0
    )
    return str(path)


@pytest.fixture(scope="module")
def inventory(
    bed: Testbed, mute_port: int, crowded_port: int, tmp_path_factory: pytest.TempPathFactory
) -> str:
    folder = tmp_path_factory.mktemp("logins")
    host: Host = bed.hosts[0]
    right = str(bed.directory / "id_ed25519")
    stranger, locked = _key(folder, "stranger", ""), _key(folder, "locked", "secret")
    public = (folder / "stranger.pub").read_text().split()[:2]
    (folder / "changed").write_text(" ".join([host.address, *public]) + "\n")
    (folder / "empty").touch()
    readable = folder / "readable"
    readable.write_bytes(Path(right).read_bytes())
    readable.chmod(0o644)
    unused = re.sub(r"\d+$", "250", host.address)
    common = f"-F /dev/null -o UserKnownHostsFile={bed.directory / 'known_hosts'}"

    def line(name: str, **given: str | int) -> str:
        words = {
            "ansible_host": host.address,
            "ansible_user": "train",
            "ansible_ssh_private_key_file": right,
            "ansible_ssh_common_args": f"'{common}'",
            # Each has its own connection, although several go to one host.
            "ansible_control_path": f"{folder}/{name}.socket",
            **given,
        }
        return " ".join([name, *(f"{key}={value}" for key, value in words.items())])

    def known(name: str) -> str:
        return f"'-F /dev/null -o UserKnownHostsFile={folder / name}'"

    lines = [
        line("unknown", ansible_ssh_common_args=known("empty")),
        line("changed", ansible_ssh_common_args=known("changed")),
        line("denied", ansible_ssh_private_key_file=stranger),
        line("questioned", ansible_user="login-asked", ansible_ssh_private_key_file=stranger),
        line("locked", ansible_ssh_private_key_file=locked),
        line("open", ansible_ssh_private_key_file=str(readable)),
        line("closed", ansible_port=2),
        line("away", ansible_host=unused),
        line("mute", ansible_host="127.0.0.1", ansible_port=mute_port),
        line("nameless", ansible_host="nowhere.invalid"),
        line("shell-less", ansible_user="login-nologin"),
        line("expired", ansible_user="login-expired"),
        line("crowded", ansible_host="127.0.0.1", ansible_port=crowded_port),
        line("replaced", ansible_user="login-replaced"),
        line("asleep", ansible_user="login-asleep"),
        line("sudo", ansible_user="login-sudo", ansible_become="true"),
        line("bare"),
    ]
    path = folder / "hosts.ini"
    path.write_text("\n".join(["[worker]", *lines, ""]))
    few = [line for line in lines if line.startswith(FEW)]
    path.with_name("few.ini").write_text("\n".join(["[worker]", *few, ""]))
    return str(path)


def check_sentence(shown: str, host: str) -> None:
    """Assert that the failed login of a host is one sentence with its remedy."""
    sentence, remedy = login_failures.failure(KINDS[host])[1:]
    expected = rf"\b{re.escape(host)}(?: is unreachable)?: {re.escape(sentence)}\n"
    assert len(re.findall(expected, shown)) == 1, (host, shown)
    assert remedy.partition("`")[0] in shown


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["list"], marks=pytest.mark.soak),
        pytest.param(["doctor"], marks=pytest.mark.soak),
        ["run", "--on-interrupt", "leave", "--job", "logins"],
    ],
    ids=["list", "doctor", "run"],
)
def test_each_failed_login_is_one_sentence_and_a_remedy(
    inventory: str, tmp_path: Path, words: list[str]
) -> None:
    began = time.monotonic()
    given = ["-i", inventory, "-e", f"train_job_runs_dir={tmp_path}"]
    done = run(sys.executable, "-m", "train", *words, *given)
    shown = done.stdout + done.stderr
    assert done.returncode == 4, shown
    assert time.monotonic() - began < LIMIT + MARGIN, shown
    assert "waiting for the login to " in shown, shown
    for host in KINDS:
        check_sentence(shown, host)
    for noise in ("Task failed", "via ssh", "deserialization", "workers left", "step in"):
        assert noise not in shown


def test_all_commands_report_failed_logins_alike(inventory: str, tmp_path: Path) -> None:
    few = str(Path(inventory).with_name("few.ini"))
    given = ["-i", few, "-e", f"train_job_runs_dir={tmp_path}"]
    command = [sys.executable, "-m", "train"]
    commands = {
        "attach": [*command, "attach", "logins", *given],
        "logs": [*command, "logs", "logins", *given],
        "setup": [str(Path(sys.executable).with_name("ansible-playbook")), SETUP, *given],
        "status": [*command, "status", "logins", *given],
        "stop": [*command, "stop", "logins", *given],
    }
    running = {
        name: subprocess.Popen(
            words,
            cwd=REPOSITORY,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name, words in commands.items()
    }
    for name, process in running.items():
        shown, _ = process.communicate(timeout=120)
        assert process.returncode == 4, (name, shown)
        for host in FEW:
            if name == "setup":  # Ansible prints the message of each host
                assert login_failures.failure(KINDS[host]).sentence in " ".join(shown.split())
            else:
                check_sentence(shown, host)
