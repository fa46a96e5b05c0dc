"""The role ``training_host``: Python, logins, limits and users."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.set_up_role import Play, play
from tests.support.testbed import Testbed, docker_available, running_testbed

pytestmark = pytest.mark.docker
LIMITS = "/etc/security/limits.d/train.conf"


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """A host with systemd."""
    if not docker_available():
        pytest.skip("no Docker engine answers")
    with running_testbed(1, tmp_path_factory.mktemp("host") / "bed", systemd=True) as made:
        yield made


def run(bed: Testbed, *options: str, entry: str = "main", **variables: Any) -> Play:
    return play(bed, "training_host", *options, entry=entry, **variables)


def shell(bed: Testbed, command: str) -> str:
    return bed.exec("host-0", "sh", "-c", command, user="root", check=False).stdout


def test_a_host_without_python(bed: Testbed) -> None:
    shell(bed, "apt-get purge -qy --auto-remove 'python3*' 'libpython3*'")
    done = run(bed, "--check")
    assert (done.code, done.changed) == (0, 1), done.shown
    assert "This host has no Python" in done.shown
    done = run(bed, training_host_nofile=4096, training_host_memlock="4")
    assert done.code == 0, done.shown
    login = "ulimit -Sn; ulimit -Hn; ulimit -Hl; stat -c '%U %a' ~/train; python3 -c 'print(1)'"
    host = f"train@{bed.hosts[0].address}"
    key = ["-i", str(bed.directory / "id_ed25519")]
    assert ssh(bed, *key, host, f'bash -c "{login}"').split() == [
        *("4096", "4096", "3906", "train", "755", "1"),
    ]
    again = run(bed, training_host_nofile=4096, training_host_memlock="4")
    assert (again.code, again.changed) == (0, 0), again.shown


def ssh(bed: Testbed, *words: str) -> str:
    command = ["ssh", *bed.ssh_options, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_limits_that_a_container_cannot_give(bed: Testbed) -> None:
    shown = shell(
        bed, "sed -n 's/^Max open files *[^ ]* *\\([^ ]*\\).*/\\1/p' /proc/1/limits"
    ).strip()
    done = run(bed, training_host_nofile=10**9, training_host_memlock="")
    assert done.code == 0, done.shown
    assert f"the limit nofile of train stays at {shown} in place of 1000000000" in done.shown
    assert "start it with --ulimit nofile=NUMBER" in done.shown
    expected = [f"train {kind} nofile {shown}" for kind in ("soft", "hard")]
    assert shell(bed, f"grep -v '^#' {LIMITS}").splitlines() == expected
    # A login that has less than the file says is named.
    shell(bed, "cp /etc/pam.d/sshd /root; sed -i /pam_limits/d /etc/pam.d/sshd")
    shell(bed, "prlimit --pid $(pgrep -o sshd) --nofile=2000:2000")
    run(bed, training_host_nofile=4000)
    assert "set 'UsePAM yes' in sshd's configuration" in run(bed, training_host_nofile=4000).shown
    shell(bed, "cp /root/sshd /etc/pam.d; systemctl restart ssh")
    alone = run(bed, training_host_nofile=0, training_host_memlock="")
    assert alone.code == 0
    assert shell(bed, f"ls {LIMITS}") == ""


def test_another_user(bed: Testbed) -> None:
    key = (bed.directory / "id_ed25519.pub").read_text().strip()
    folders = [{"path": "~/train"}, {"path": "/srv/data", "mode": "0750"}]
    given: dict[str, Any] = {
        "training_host_user": "other",
        "training_host_folders": folders,
        "training_host_authorized_keys": [key, key.replace(" train", " second")],
    }
    foretold = run(bed, "--check", "--diff", **given)
    assert (foretold.code, shell(bed, "id other")) == (0, ""), foretold.shown
    assert "+other soft nofile" in foretold.shown
    assert run(bed, **given).code == 0
    look = "stat -c '%U %a' ~other/train /srv/data ~other/.ssh ~other/.ssh/authorized_keys"
    assert shell(bed, look).splitlines() == ["other 755", "other 750", "other 700", "other 600"]
    assert shell(bed, "getent shadow other").split(":")[1] == "*"
    given["training_host_authorized_keys"] = [key]
    assert run(bed, **given).changed == 1
    keys = shell(bed, "cat ~other/.ssh/authorized_keys").splitlines()
    assert [line for line in keys if not line.startswith("#")] == [key]
    assert run(bed, **given).changed == 0
    assert run(bed, entry="remove", training_host_user="other").code == 0
    assert shell(bed, f"cat ~other/.ssh/authorized_keys; ls {LIMITS}") == ""
    assert run(bed, entry="remove", training_host_user="other").changed == 0


@pytest.mark.parametrize(
    "variables",
    [
        {"training_host_user": "Some one"},
        {"training_host_authorized_keys": ["no key"]},
        {"training_host_nofile": 5},
        {"training_host_memlock": "lots"},
        {"training_host_nfs": [{"src": "nas", "path": "/mnt/x"}]},
        {"training_host_folders": [{"path": "train"}]},
    ],
    ids=lambda variables: next(iter(variables)),
)
def test_wrong_variables_are_refused(bed: Testbed, variables: dict[str, Any]) -> None:
    done = run(bed, **variables)
    assert done.code == 2
    assert "One of these is wrong, and nothing was changed" in done.shown
