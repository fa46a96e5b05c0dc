"""The test bed of SSH hosts: its inventory, and that its hosts let in whom they should."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.testbed import (
    BOOKWORM,
    TRIXIE,
    Host,
    Mount,
    Rank,
    Testbed,
    TestbedError,
    build_image,
    docker,
    docker_available,
    render_inventory,
    running_testbed,
    start,
)
from tests.support.testbed.__main__ import main

without_docker = pytest.mark.skipif(not docker_available(), reason="no Docker engine answers")


def needs_docker(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that starts containers."""
    marked: Callable[..., None] = pytest.mark.docker(without_docker(test))
    return marked


A = Host("host-0", "10.0.0.2", "bed-host-0")
B = Host("host-1", "10.0.0.3", "bed-host-1")


def test_groups_and_ranks_that_share_a_host() -> None:
    groups: dict[str, list[Host | Rank]] = {
        "chief": [A],
        "worker": [Rank("w0", B, {"train_job_port": 12345}), Rank("w1", B, {"train_job_port": 1})],
        "ps": [],
    }
    inventory = render_inventory(groups)
    assert inventory == {
        "all": {
            "children": {
                "chief": {"hosts": {"host-0": {"ansible_host": "10.0.0.2"}}},
                "worker": {
                    "hosts": {
                        "w0": {"ansible_host": "10.0.0.3", "train_job_port": 12345},
                        "w1": {"ansible_host": "10.0.0.3", "train_job_port": 1},
                    }
                },
                "ps": {"hosts": {}},
            }
        }
    }
    # The index of a task is its host's place in the group: the order is kept.
    assert '"w0"' in json.dumps(inventory).split('"w1"')[0]


def test_a_name_that_stands_for_two_ranks_is_refused() -> None:
    render_inventory({"worker": [A], "evaluator": [A]})
    with pytest.raises(TestbedError, match=r"group 'ps': the inventory host 'x'.*name of its own"):
        render_inventory({"worker": [Rank("x", A)], "ps": [Rank("x", B)]})


def test_inventory_files(tmp_path: Path) -> None:
    bed = Testbed(tmp_path, [A, B])
    bed.write_inventory({"worker": bed.hosts}, {"train_job_root": "/srv"})
    path = bed.write_inventory({"chief": [A]})
    assert path == tmp_path / "inventory"
    assert list(json.loads((path / "hosts.yml").read_text())["all"]["children"]) == ["chief"]
    # Nothing of the inventory before is left.
    assert [file.name for file in (path / "group_vars" / "all").iterdir()] == ["ansible.yml"]
    connection = json.loads((path / "group_vars" / "all" / "ansible.yml").read_text())
    assert connection["ansible_user"] == "train"
    assert connection["ansible_ssh_private_key_file"] == str(tmp_path / "id_ed25519")
    words = connection["ansible_ssh_common_args"].split()
    assert f"UserKnownHostsFile={tmp_path}/known_hosts" in words
    assert "StrictHostKeyChecking=yes" in words
    assert "IdentitiesOnly=yes" in words


def test_two_test_beds_share_no_control_path(tmp_path: Path) -> None:
    paths = []
    for prefix in ("one", "two"):
        bed = Testbed(tmp_path, [Host("host-0", "10.0.0.2", f"{prefix}-host-0")])
        inventory = bed.write_inventory({"worker": bed.hosts})
        connection = json.loads((inventory / "group_vars" / "all" / "ansible.yml").read_text())
        paths.append(connection["ansible_control_path"])
    assert paths[0] != paths[1]


def test_mounts(tmp_path: Path) -> None:
    volume = Mount.parse("venvs:/home/train/train/venvs")
    assert volume.argument == "venvs:/home/train/train/venvs"
    assert volume.to_own() == ["/home/train/train/venvs", "/home/train/train"]
    folder = Mount.parse(f"{tmp_path}:/home/train/a/b:ro")
    assert folder.argument == f"{tmp_path}:/home/train/a/b:ro"
    assert folder.to_own() == ["/home/train/a"]
    assert Mount.parse(f"{tmp_path}:/srv/data:ro").to_own() == []
    for text in ("venvs", "venvs:relative", ":/srv", "venvs:/srv:rw"):
        with pytest.raises(TestbedError, match=r"is not HOST:CONTAINER\[:ro\]"):
            Mount.parse(text)
    with pytest.raises(TestbedError, match="missing is no folder; make it first"):
        Mount.parse(f"{tmp_path}/missing:/srv")


@pytest.mark.parametrize(
    ("count", "folder", "name", "reason"),
    [
        (0, "bed", "a", "0 hosts: a test bed has from 1 to 200"),
        (201, "bed", "a", "201 hosts: a test bed has from 1 to 200"),
        (1, "my bed", "a", "my bed': use a path of letters"),
        (1, "bed", "a_b", "name 'a_b': use at most 32 lower-case letters"),
        (1, "taken", "a", "known_hosts exists: take the test bed in .*taken down first"),
    ],
)
def test_wrong_arguments(tmp_path: Path, count: int, folder: str, name: str, reason: str) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "known_hosts").write_text("a user's own")
    with pytest.raises(TestbedError, match=reason):
        Testbed.up(count, tmp_path / folder, name)
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
    assert (tmp_path / "taken" / "known_hosts").read_text() == "a user's own"


def test_without_docker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not docker_available()
    assert main(["up", "1", "--dir", str(tmp_path / "bed")]) == 1
    assert "install the Docker client" in capsys.readouterr().err
    assert not (tmp_path / "bed").exists()


def test_the_error_of_docker_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "docker"
    script.write_text("#!/bin/sh\necho no space left >&2\nexit 7\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(TestbedError, match=r"`docker run x` failed \(exit code 7\):\nno space"):
        docker("run", "x")
    assert docker("run", "x", check=False).returncode == 7


@pytest.mark.parametrize("count", [1, 3])
def test_base_images_are_of_all_hosts_or_of_each(tmp_path: Path, count: int) -> None:
    reason = rf"2 base images for {count} host\(s\): give one for all or one for each"
    with pytest.raises(TestbedError, match=reason):
        Testbed.up(count, tmp_path / "bed", bases=(BOOKWORM, TRIXIE))


def test_a_systemd_that_does_not_come_up_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ["", "offline", "starting", "degraded", "broken.service loaded failed"]

    def answer(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 0, answers.pop(0) + "\n", "")

    monkeypatch.setattr(start, "exec_in", answer)
    monkeypatch.setattr(start, "docker", lambda *_, **__: answer())
    answers.append("its last words")
    with pytest.raises(TestbedError, match=r"(?s)host-0: systemd says degraded .*broken\.service"):
        start.wait_for_systemd(A)
    answers[:] = ["offline", "running"]
    start.wait_for_systemd(A)
    assert answers == []


def left_of(folder: Path) -> list[str]:
    """Return the containers and networks of a test bed that exist."""
    mine = ("--filter", f"label=train.testbed={folder}", "--quiet")
    containers = docker("ps", "--all", *mine).stdout
    return (containers + docker("network", "ls", *mine).stdout).split()


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    folder = tmp_path_factory.mktemp("docker")
    (folder / "shared").mkdir()
    mounts = [Mount.parse(f"{folder}/shared:/home/train/train/venvs")]
    with running_testbed(2, folder / "bed", mounts=mounts) as bed:
        yield bed
    assert left_of(folder / "bed") == []
    assert list((folder / "bed").iterdir()) == []


def ssh(
    bed: Testbed, host: Host, command: str, *options: str, user: str = "train", **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run a command through SSH; earlier options win over the test bed's."""
    key = ("-i", str(bed.directory / "id_ed25519"))
    target = f"{user}@{host.address}"
    return subprocess.run(
        ["ssh", "-F", "/dev/null", *options, *bed.ssh_options, *key, target, command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, **environ},
        timeout=60,
        check=False,
    )


@needs_docker
def test_key_login(bed: Testbed) -> None:
    for host in bed.hosts:
        done = ssh(bed, host, "hostname; id -un; sudo -n id -un; python3 -c 'print(6 * 7)'")
        assert done.stdout.split() == [host.name, "train", "root", "42"], done.stderr
    assert ssh(bed, bed.hosts[0], "python3 -m venv /tmp/venv").returncode != 0
    refused = ssh(bed, bed.hosts[0], "true", user="root")
    assert refused.returncode == 255
    assert "Permission denied (publickey)" in refused.stderr
    assert (bed.directory / "id_ed25519").stat().st_mode & 0o777 == 0o600


@needs_docker
def test_password_login_is_refused(bed: Testbed, tmp_path: Path) -> None:
    host = bed.hosts[0]
    bed.exec(host, "chpasswd", user="root", stdin="train:correct horse\n")
    answer, asked = tmp_path / "askpass", tmp_path / "asked"
    answer.write_text(f"#!/bin/sh\ntouch {asked}\necho correct horse\n")
    answer.chmod(0o700)
    done = ssh(
        bed,
        host,
        "true",
        *("-o", "PreferredAuthentications=password,keyboard-interactive"),
        SSH_ASKPASS=str(answer),
        SSH_ASKPASS_REQUIRE="force",
    )
    assert done.returncode == 255
    assert "Permission denied (publickey)" in done.stderr  # the server offers nothing else
    assert not asked.exists()


@needs_docker
def test_unknown_and_changed_host_keys_are_refused(bed: Testbed, tmp_path: Path) -> None:
    first = bed.hosts[0]
    keys = (bed.directory / "known_hosts").read_text().split()
    assert keys[0::3] == [f"{host.name},{host.address}" for host in bed.hosts]
    assert keys[2] != keys[5]
    known = tmp_path / "known_hosts"
    for content in ("", f"{first.address} ssh-ed25519 {keys[5]}\n"):
        known.write_text(content)
        done = ssh(bed, first, "true", "-o", f"UserKnownHostsFile={known}")
        assert done.returncode == 255
        assert "Host key verification failed" in done.stderr
        assert known.read_text() == content


@needs_docker
def test_hosts_reach_one_another(bed: Testbed) -> None:
    server = "import socket; s = socket.create_server(('', 12345)); s.accept()[0].sendall(b'hi')"
    client = (
        "import socket, sys, time\n"
        "for _ in range(200):\n"
        "    try:\n"
        "        print(socket.create_connection((sys.argv[1], 12345)).recv(2).decode())\n"
        "        break\n"
        "    except ConnectionRefusedError:\n"
        "        time.sleep(0.05)\n"
    )
    first, second = bed.hosts
    for name in (first.address, first.name):
        docker("exec", "--detach", first.container, "python3", "-c", server)
        assert bed.exec(second, "python3", "-c", client, name).stdout == "hi\n"


@needs_docker
def test_a_mounted_folder_is_the_users_own(bed: Testbed) -> None:
    bed.exec("host-0", "sh", "-c", "echo tensorflow > train/venvs/a && mkdir train/jobs")
    assert bed.exec("host-1", "cat", "train/venvs/a").stdout == "tensorflow\n"
    with pytest.raises(TestbedError, match="no host 'host-9'; it has host-0, host-1"):
        bed.exec("host-9", "true")


@needs_docker
def test_a_restarted_host_keeps_its_address_and_its_key(bed: Testbed) -> None:
    docker("kill", *(host.container for host in bed.hosts))
    docker("start", *(host.container for host in reversed(bed.hosts)))
    for host in bed.hosts:
        deadline = time.monotonic() + 60
        done = ssh(bed, host, "hostname")
        while "Connection refused" in done.stderr and time.monotonic() < deadline:
            time.sleep(0.1)
            done = ssh(bed, host, "hostname")
        assert done.stdout == f"{host.name}\n", done.stderr


@needs_docker
def test_a_start_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    folder, name = tmp_path / "bed", f"testbed-{secrets.token_hex(4)}"
    strange = f"{name}-host-1"
    docker("create", "--name", strange, build_image())
    try:
        with pytest.raises(TestbedError, match=rf"(?s)`docker run .*/{strange}. is already in use"):
            Testbed.up(3, folder, name)
        assert left_of(folder) == []
        assert not folder.exists()
        assert docker("ps", "--all", "--quiet", "--filter", f"name={strange}").stdout.strip()
    finally:
        docker("rm", strange)


@needs_docker
def test_a_host_without_sshd_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "READY_TIMEOUT", 0.5)
    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(TestbedError, match=r"(?s)host-0: no SSH server answers at .*listening on"):
        Testbed.up(1, tmp_path / "bed")
    assert left_of(tmp_path / "bed") == []


@pytest.fixture(scope="module")
def systemd_bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    folder = tmp_path_factory.mktemp("systemd") / "bed"
    bases = (BOOKWORM, TRIXIE)
    with running_testbed(2, folder, bases=bases, systemd=True, stranger=True) as bed:
        yield bed
    assert left_of(folder) == []
    assert list(folder.iterdir()) == []


@needs_docker
def test_systemd_runs_on_hosts_of_two_releases(systemd_bed: Testbed) -> None:
    look = (
        "cat /proc/1/comm; systemctl is-system-running; systemctl is-active ssh; sudo -n id -un; "
        ". /etc/os-release; echo $VERSION_CODENAME"
    )
    for host, release in zip(systemd_bed.hosts, ("bookworm", "trixie"), strict=True):
        done = ssh(systemd_bed, host, look)
        assert done.stdout.split() == ["systemd", "running", "active", "root", release], done.stderr
    first, second = (
        systemd_bed.exec(host, "cat", "/etc/machine-id").stdout for host in systemd_bed.hosts
    )
    assert len(first.strip()) == len(second.strip()) == 32
    assert first != second


@needs_docker
def test_systemd_hosts_have_their_own_firewall_and_the_machines_clock(systemd_bed: Testbed) -> None:
    for host in systemd_bed.hosts:
        lines = systemd_bed.exec(host, "cat", "/proc/1/status", user="root").stdout.splitlines()
        held = int(next(line.split()[1] for line in lines if line.startswith("CapBnd:")), 16)
        net_admin, sys_rawio, sys_admin, sys_time = (held >> bit & 1 for bit in (12, 17, 21, 25))
        assert (net_admin, sys_admin) == (1, 1)
        assert (sys_rawio, sys_time) == (0, 0)


@needs_docker
def test_a_restarted_systemd_host_comes_back(systemd_bed: Testbed) -> None:
    host = systemd_bed.hosts[1]
    systemd_bed.exec(host, "systemctl", "enable", "systemd-networkd.service", user="root")
    began = time.monotonic()
    docker("restart", "-t", "60", host.container)
    assert time.monotonic() - began < 50  # it heeds the signal, and is not killed after 60 s
    start.wait_for_systemd(host)
    assert ssh(systemd_bed, host, "systemctl is-active systemd-networkd").stdout == "active\n"


@needs_docker
def test_the_stranger_is_in_no_inventory(systemd_bed: Testbed) -> None:
    stranger = systemd_bed.stranger
    assert stranger
    assert Testbed.load(systemd_bed.directory).stranger == stranger
    assert stranger not in systemd_bed.hosts
    for path in systemd_bed.directory.rglob("*"):
        if path.is_file() and path.name != "stranger.json":
            assert stranger.address not in path.read_text(), path
    reach = "import socket, sys; print(socket.create_connection((sys.argv[1], 22), 5).recv(4))"
    for host in systemd_bed.hosts:
        done = systemd_bed.exec(stranger, "python3", "-c", reach, host.address)
        assert done.stdout == "b'SSH-'\n"


def refuse(*_: object, **__: object) -> socket.socket:
    """Take the place of `socket.create_connection`."""
    raise ConnectionRefusedError


@needs_docker
def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "bed"
    assert main(["up", "1", "--dir", str(folder), "--name", "t-cli"]) == 0
    try:
        host = Testbed.load(folder).hosts[0]
        assert (host.name, host.container) == ("host-0", "t-cli-host-0")
        assert f"host-0  {host.address}  t-cli-host-0" in capsys.readouterr().out
        assert main(["up", "1", "--dir", str(folder)]) == 1
        assert "take the test bed in" in capsys.readouterr().err
        shutil.rmtree(folder / "inventory")
    finally:
        assert main(["down", "--dir", str(folder)]) == 0
    assert capsys.readouterr().out == "removed 1 host(s)\n"
    assert left_of(folder) == []
    assert list(folder.iterdir()) == []
    assert main(["down", "--dir", str(folder)]) == 0
    with pytest.raises(TestbedError, match="no test bed is up in"):
        Testbed.load(folder)
