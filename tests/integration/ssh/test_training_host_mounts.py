"""The role ``training_host``: shares and shared memory that come and go, on a host with systemd."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.set_up_role import Play, play
from tests.support.testbed import Testbed, docker_available, running_testbed

pytestmark = pytest.mark.docker
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
MORE = {"src": "nas:/export/more/", "path": "/mnt/more", "opts": "ro,nofail"}


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


def write(bed: Testbed, path: str, text: str) -> None:
    bed.exec("host-0", "sh", "-c", f"cat > {path}; chmod +x {path}", user="root", stdin=text)


def mounted(bed: Testbed) -> list[str]:
    return shell(bed, "awk '$2 ~ /^.mnt/ {print $1, $2}' /proc/mounts").splitlines()


def fstab(bed: Testbed) -> list[str]:
    """The lines of fstab, without comments."""
    lines = shell(bed, "cat /etc/fstab").splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_shares_come_and_go(bed: Testbed) -> None:
    own = "nas:/home /home nfs noauto 0 0"
    shell(bed, f"echo '{own}' >> /etc/fstab")
    foretold = run(bed, "--check", training_host_nfs=[DATA])
    assert "The packages nfs-common would be installed" in foretold.shown
    assert fstab(bed) == [own]
    refused = run(bed, training_host_nfs=[{"src": "127.0.0.1:/data", "path": "/mnt/x"}])
    assert refused.code == 2
    assert shell(bed, "dpkg-query -W -f '${db:Status-Status}' nfs-common") == "installed"
    assert "127.0.0.1:/data cannot be mounted on /mnt/x: " in refused.shown
    assert "127.0.0.1 does not answer at port 2049: start it, or open" in refused.shown
    assert (fstab(bed), shell(bed, "ls /mnt")) == ([own], "")

    write(bed, "/sbin/mount.nfs", MOUNT_NFS)
    write(bed, "/usr/local/bin/stat", STAT)
    assert run(bed, training_host_nfs=[DATA, MORE]).code == 0
    both = ["nas:/export/data /mnt/data", "nas:/export/more/ /mnt/more"]
    assert mounted(bed) == both
    assert fstab(bed)[2] == "nas:/export/more/ /mnt/more nfs ro,nofail,x-train.host 0 0"
    assert run(bed, training_host_nfs=[DATA, MORE]).changed == 0
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
