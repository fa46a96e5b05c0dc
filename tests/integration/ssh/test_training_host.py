"""The role ``training_host``: Python, logins, limits, users, shares and shared memory.

The limits and folders of a login: molecule/cluster/verify/training_host.yml.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.support.set_up_role import assert_refused, play, run_tasks, shell, systemd_hosts
from tests.support.testbed import Testbed

pytestmark = pytest.mark.docker
ROLE = "training_host"
LIMITS = "/etc/security/limits.d/train.conf"
#: In place of the NFS client's: "mounts" a share of nas, refuses others, has stale ones.
MOUNT_NFS = """#!/bin/sh
case $1 in nas:*) exec mount -t tmpfs "$1" "$2" ;; esac
echo "mount.nfs: Connection refused" >&2
exit 32
"""
STAT = """#!/bin/sh
case "$*" in *--file-system*/mnt/*) rm /stale 2>&- && echo Stale file handle >&2 && exit 1 ;; esac
exec /usr/bin/stat "$@"
"""
DATA = {"src": "nas:/export/data", "path": "/mnt/data"}
#: That nobody serves; mount.nfs would try for two minutes by default, where the kernel has NFS.
NOBODY = {"src": "127.0.0.1:/data", "path": "/mnt/x", "opts": "retry=0"}
MORE = {"src": "nas:/export/more/", "path": "/mnt/more", "opts": "ro,nofail"}

bed = systemd_hosts()
run = partial(play, ROLE)


def test_a_host_without_python(bed: Testbed) -> None:
    shell(bed, "apt-get purge -qy --auto-remove 'python3*' 'libpython3*'")
    done = run(bed, "--check")
    assert (done.code, done.changed) == (0, 1), done.shown
    assert "This host has no Python" in done.shown
    run(bed).checked()
    assert shell(bed, "su - train -c 'python3 -c \"import venv; print(1)\"'") == "1\n"


def test_limits_that_a_container_cannot_give(bed: Testbed) -> None:
    shown = shell(bed, "awk '/^Max open files/ {print $5}' /proc/1/limits").strip()
    done = run(bed, training_host_nofile=10**9, training_host_memlock="").checked()
    assert f"the limit nofile of train stays at {shown} in place of 1000000000" in done.shown
    assert "start it with --ulimit nofile=NUMBER" in done.shown
    expected = [f"train {kind} nofile {shown}" for kind in ("soft", "hard")]
    assert shell(bed, f"grep -v '^#' {LIMITS}").splitlines() == expected
    # A login that has less than the file gives is named.
    shell(bed, "cp /etc/pam.d/sshd /root; sed -i /pam_limits/d /etc/pam.d/sshd")
    shell(bed, "prlimit --pid $(pgrep -o sshd) --nofile=2000:2000")
    run(bed, training_host_nofile=4000)
    assert "set 'UsePAM yes' in sshd's configuration" in run(bed, training_host_nofile=4000).shown
    shell(bed, "cp /root/sshd /etc/pam.d; systemctl restart ssh")
    run(bed, training_host_nofile=0, training_host_memlock="").checked()
    assert shell(bed, f"ls {LIMITS}") == ""


def test_another_user(bed: Testbed) -> None:
    key = (bed.directory / "id_ed25519.pub").read_text().strip()
    given: dict[str, Any] = {
        "training_host_user": "other",
        "training_host_authorized_keys": [key, key.replace(" train", " second")],
    }
    checked = run(bed, "--check", "--diff", **given).checked()
    assert shell(bed, "id other") == ""
    assert "+other soft nofile" in checked.shown
    run(bed, **given).checked()
    assert shell(bed, "getent shadow other").split(":")[1] == "*"
    given["training_host_authorized_keys"] = [key]
    assert run(bed, **given).changed == 1
    keys = shell(bed, "cat ~other/.ssh/authorized_keys").splitlines()
    assert [line for line in keys if not line.startswith("#")] == [key]
    run(bed, entry="remove", training_host_user="other").checked()
    assert shell(bed, f"cat ~other/.ssh/authorized_keys; ls {LIMITS}") == ""
    assert run(bed, entry="remove", training_host_user="other").changed == 0


def test_wrong_variables_are_refused(bed: Testbed) -> None:
    wrong: dict[str, Any] = {
        "training_host_user": "Some one",
        "training_host_authorized_keys": ["no key"],
        "training_host_nofile": 5,
        "training_host_memlock": "lots",
        "training_host_nfs": [{"src": "nas", "path": "/mnt/x"}],
        "training_host_folders": [{"path": "train"}],
    }
    message = "One of these is wrong, and nothing was changed"
    cases = [({name: value}, message) for name, value in wrong.items()]
    assert_refused(partial(run_tasks, bed), ROLE, cases)


def write(bed: Testbed, path: str, text: str) -> None:
    bed.exec("host-0", "sh", "-c", f"cat > {path}; chmod +x {path}", user="root", stdin=text)


def mounted(bed: Testbed) -> list[str]:
    return shell(bed, "awk '$2 ~ /^.mnt/ {print $1, $2}' /proc/mounts").splitlines()


def fstab(bed: Testbed) -> list[str]:
    lines = shell(bed, "cat /etc/fstab").splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_shares_come_and_go(bed: Testbed) -> None:
    own = "nas:/home /home nfs noauto 0 0"
    shell(bed, f"echo '{own}' >> /etc/fstab")
    checked = run(bed, "--check", training_host_nfs=[DATA])
    assert "The packages nfs-common would be installed" in checked.shown
    assert fstab(bed) == [own]
    # Of a server that does not answer: molecule/cluster/verify/training_host.yml.
    refused = run(bed, training_host_nfs=[NOBODY])
    assert refused.code == 2
    assert shell(bed, "dpkg-query -W -f '${db:Status-Status}' nfs-common") == "installed"
    assert (fstab(bed), shell(bed, "ls /mnt")) == ([own], "")

    write(bed, "/sbin/mount.nfs", MOUNT_NFS)
    write(bed, "/usr/local/bin/stat", STAT)
    assert run(bed, training_host_nfs=[DATA, MORE]).code == 0
    both = ["nas:/export/data /mnt/data", "nas:/export/more/ /mnt/more"]
    assert mounted(bed) == both
    assert fstab(bed)[2] == "nas:/export/more/ /mnt/more nfs ro,nofail,x-train.host 0 0"
    # New options wait for the next mount; a stale share does not.
    shell(bed, "touch /mnt/data/kept")
    other = {**DATA, "opts": "soft"}
    assert run(bed, training_host_nfs=[other, MORE]).changed == 1
    assert shell(bed, "ls /mnt/data") == "kept\n"
    shell(bed, "touch /stale")
    stale = run(bed, training_host_nfs=[other, MORE])
    assert (stale.code, stale.changed) == (0, 2), stale.shown
    assert (mounted(bed)[::-1], shell(bed, "ls /mnt/data")) == (both, "")
    # Another share in its place; one that is busy stays.
    done = run(bed, training_host_nfs=[{**DATA, "src": "nas:/new"}, MORE])
    assert "nas:/new /mnt/data" in mounted(bed), done.shown
    shell(bed, "systemd-run --unit=busy --working-directory=/mnt/more sleep 999")
    busy = run(bed, training_host_nfs=[DATA])
    assert busy.code == 2
    assert "End what uses it (fuser -vm /mnt/more)" in busy.shown
    assert "/mnt/more" in "".join(fstab(bed))
    shell(bed, "systemctl stop busy")
    assert run(bed).code == 0
    assert (fstab(bed), mounted(bed)) == ([own], [])


def test_shared_memory(bed: Testbed) -> None:
    size = "df --output=size /dev/shm | tail -1"
    before = int(shell(bed, size))
    assert run(bed, training_host_shm_size_mb=60).code == 0  # it has more
    assert "/dev/shm" not in "".join(fstab(bed))
    done = run(bed, training_host_shm_size_mb=200)
    assert (done.code, int(shell(bed, size)) // 10) == (0, 19531), done.shown  # pages
    assert "tmpfs /dev/shm tmpfs size=200000000,nosuid,nodev,x-train.host 0 0" in fstab(bed)
    assert run(bed, training_host_shm_size_mb=200).changed == 0
    shell(bed, f"mount -o remount,size={before}k /dev/shm; ln -s /bin/false /usr/local/bin/mount")
    refused = run(bed, training_host_shm_size_mb=300)
    assert refused.code == 2
    assert "docker run --shm-size" in refused.shown
    shell(bed, "rm /usr/local/bin/mount")
    assert run(bed, entry="remove").code == 0
    assert "/dev/shm" not in "".join(fstab(bed))
