"""The role ``training_host``: Python, logins, limits, users, shares and shared memory.

molecule/default tests logins of the cluster, check mode, a second run and the removal.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.support.set_up_role import (
    assert_refused,
    play,
    role_task,
    run_tasks,
    shell,
    systemd_hosts,
)
from tests.support.testbed import Testbed

pytestmark = pytest.mark.docker
ROLE = "training_host"
LIMITS = "/etc/security/limits.d/train.conf"
#: A fake mount.nfs: "mounts" shares of nas, rejects others, and makes some stale.
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
#: A share without a server. By default, mount.nfs would try for two minutes if the kernel has NFS.
NOBODY = {"src": "127.0.0.1:/data", "path": "/mnt/x", "opts": "retry=0"}
OWN = "nas:/home /home nfs noauto 0 0"
MORE = {"src": "nas:/export/more/", "path": "/mnt/more", "opts": "ro,nofail"}

bed = systemd_hosts()
run = partial(play, ROLE)


def test_a_host_without_python_whose_container_has_low_limits(bed: Testbed) -> None:
    shell(bed, "apt-get purge -qy --auto-remove 'python3*' 'libpython3*'")
    checked = run(bed, "--check")
    assert (checked.code, checked.changed) == (0, 1), checked.shown
    assert "This host has no Python" in checked.shown
    shown = shell(bed, "awk '/^Max open files/ {print $5}' /proc/1/limits").strip()
    done = run(bed, training_host_nofile=10**9, training_host_memlock="").checked()
    assert shell(bed, "su - train -c 'python3 -c \"import venv; print(1)\"'") == "1\n"
    assert f"the limit nofile of train is {shown}, not 1000000000" in done.shown
    assert "start the container with --ulimit nofile=NUMBER" in done.shown
    expected = [f"train {kind} nofile {shown}" for kind in ("soft", "hard")]
    assert shell(bed, f"grep -v '^#' {LIMITS}").splitlines() == expected


def test_a_login_that_has_less_than_the_limits_is_named(bed: Testbed) -> None:
    shell(bed, "cp /etc/pam.d/sshd /root; sed -i /pam_limits/d /etc/pam.d/sshd")
    shell(bed, "prlimit --pid $(pgrep -o sshd) --nofile=2000:2000")
    task = role_task(ROLE, training_host_nofile=4000)
    assert "set 'UsePAM yes' in sshd's configuration" in run_tasks(bed, [task, task]).shown
    shell(bed, "cp /root/sshd /etc/pam.d; systemctl restart ssh")


def fstab(bed: Testbed) -> list[str]:
    lines = shell(bed, "cat /etc/fstab").splitlines()
    return [line for line in lines if not line.startswith("#")]


@pytest.mark.soak
def test_another_user_and_a_share_that_nobody_serves(bed: Testbed) -> None:
    key = (bed.directory / "id_ed25519.pub").read_text().strip()
    given: dict[str, Any] = {
        "training_host_user": "other",
        "training_host_authorized_keys": [key, key.replace(" train", " second")],
        "training_host_nofile": 4096,
        "training_host_memlock": "4",
        "training_host_folders": [{"path": "~/train"}, {"path": "/srv/other", "mode": "0750"}],
        "training_host_nfs": [NOBODY],
    }
    checked = run(bed, "--check", "--diff", **given).checked()
    assert shell(bed, "id other") == ""
    assert "+other soft nofile" in checked.shown
    assert "Install | Install nfs-common]" in checked.shown
    shell(bed, f"echo '{OWN}' >> /etc/fstab")
    # The share is processed last.
    done = run(bed, **given)
    assert done.code == 2
    assert "127.0.0.1:/data cannot be mounted on /mnt/x" in done.shown
    assert "127.0.0.1 is unreachable at port 2049" in done.shown
    assert shell(bed, "dpkg-query -W -f '${db:Status-Status}' nfs-common") == "installed"
    assert (fstab(bed), shell(bed, "ls /mnt")) == ([OWN], "")
    assert shell(bed, "getent shadow other").split(":")[1] == "*"
    ask = "ulimit -Sn; ulimit -Hn; ulimit -Hl; stat -c '%U %a' ~/train /srv/other ~/.ssh ~/.ssh/*"
    has = ["4096", "4096", "3906", "other 755", "other 750", "other 700", "other 600"]
    assert shell(bed, f'su - other -c "{ask}"').splitlines() == has
    # Without limits, with one key, and with less shared memory than before.
    given |= {"training_host_nofile": 0, "training_host_memlock": "", "training_host_nfs": []}
    given |= {"training_host_authorized_keys": [key], "training_host_shm_size_mb": 60}
    assert run(bed, **given).checked().changed == 2
    assert shell(bed, f"ls {LIMITS}") == ""
    assert fstab(bed) == [OWN]
    keys = shell(bed, "cat ~other/.ssh/authorized_keys").splitlines()
    assert [line for line in keys if not line.startswith("#")] == [key]
    run(bed, entry="remove", training_host_user="other").checked()
    assert shell(bed, "cat ~other/.ssh/authorized_keys") == ""


def test_links_of_the_training_user_do_not_lead_root_elsewhere(bed: Testbed) -> None:
    key = (bed.directory / "id_ed25519.pub").read_text().strip()
    shell(bed, "useradd --create-home guest; mkdir -p /root/.ssh; mkdir ~guest/.ssh")
    shell(bed, "ln -s /etc ~guest/train; ln -s /root/.ssh/authorized_keys ~guest/.ssh")
    shell(bed, "chown -R guest: ~guest; install -d -o guest /srv/guest")
    shell(bed, "ln -s /etc /srv/link; ln -s /etc /srv/guest/link")
    see = "stat -c '%n %U %a' /etc /root/.ssh/*; ls -A /etc/new; stat -c %U ~guest/.ssh"
    before = shell(bed, see)
    folders = {
        "~/train": "chown failed",
        "~/train/new": "Permission denied",
        "/srv/guest/link": "chown failed",
        "/srv/guest/link/new": "Permission denied",
        "/srv/link": "/srv/link already exists as a link",
    }
    guest: dict[str, Any] = {"training_host_user": "guest"}
    cases = [
        ({**guest, "training_host_folders": [{"path": path, "mode": "0700"}]}, message)
        for path, message in folders.items()
    ]
    cases.append(({**guest, "training_host_authorized_keys": [key]}, "Permission denied"))
    assert_refused(partial(run_tasks, bed), ROLE, cases)
    assert shell(bed, see) == before
    # Root creates folders in its own ones, and links to the user's own folders are allowed.
    shell(bed, "cd ~guest && rm train && mkdir disk && ln -s disk train && chown -h guest: *")
    own = [{"path": path} for path in ("~", "~/train/a b", "/srv/new/one", "~guest/two")]
    guest |= {"training_host_folders": own}
    run(bed, **guest).checked()
    paths = "~guest/disk/'a b' /srv/new /srv/new/one ~guest/two"
    assert shell(bed, f"stat -c %U {paths}").split() == ["guest"] * 4
    assert run(bed, **guest).checked().changed == 0


def test_keys_are_removed_with_the_last_one_of_the_list(bed: Testbed) -> None:
    key = (bed.directory / "id_ed25519.pub").read_text().strip()
    shell(
        bed,
        "useradd --create-home visitor; mkdir -m 700 ~visitor/.ssh; chown visitor: ~visitor/.ssh",
    )
    shell(bed, "su visitor -c 'echo \"ssh-rsa AAAA mine\" > ~/.ssh/authorized_keys'")
    visitor: dict[str, Any] = {"training_host_user": "visitor", "training_host_folders": []}
    visitor |= {"training_host_nofile": 0, "training_host_memlock": ""}
    see = "stat -c '%U %a' ~visitor/.ssh/authorized_keys; cat ~visitor/.ssh/authorized_keys"
    tasks = [role_task(ROLE, **visitor, training_host_authorized_keys=keys) for keys in ([key], [])]
    before = shell(bed, see)
    assert run_tasks(bed, tasks[:1]).checked().changed > 0
    assert key in shell(bed, see)
    assert run_tasks(bed, tasks[1:]).checked().changed == 1
    assert shell(bed, see) == before.replace("644", "600")
    assert run_tasks(bed, tasks[1:]).checked().changed == 0


def test_wrong_variables_are_refused(bed: Testbed) -> None:
    wrong: list[tuple[str, Any, str]] = [
        ("user", "Some one", "_user is 'Some one': use lower-case letters"),
        ("authorized_keys", ["no key"], "_authorized_keys: no key is not a public key"),
        ("nofile", 5, "_nofile is 5: set at least 1024"),
        ("memlock", "lots", "_memlock is lots: set unlimited or a number of MB"),
        ("shm_size_mb", -1, "_shm_size_mb is -1: set a number of MB"),
        ("nfs", [{"src": "nas", "path": "/mnt/x"}], "_nfs: src is nas; use SERVER:/EXPORT"),
        ("nfs", [{**DATA, "path": "/mnt/x/"}], "_nfs: path is /mnt/x/; use an absolute path"),
        (
            "folders",
            [{"path": "train"}],
            "_folders: path is train; use a path that begins with / or ~",
        ),
    ]
    cases = [({f"{ROLE}_{name}": value}, ROLE + words) for name, value, words in wrong]
    assert_refused(partial(run_tasks, bed), ROLE, cases)


def write(bed: Testbed, path: str, text: str) -> None:
    bed.exec("host-0", "sh", "-c", f"cat > {path}; chmod +x {path}", user="root", stdin=text)


def mounted(bed: Testbed) -> list[str]:
    return shell(bed, "awk '$2 ~ /^.mnt/ {print $1, $2}' /proc/mounts").splitlines()


def test_shares_and_shared_memory_come_and_go(bed: Testbed) -> None:
    size = "df --output=size /dev/shm | tail -1"
    before, own = int(shell(bed, size)), fstab(bed)
    shell(bed, "apt-get -qq update && apt-get -qq install --yes nfs-common", check=True)
    write(bed, "/sbin/mount.nfs", MOUNT_NFS)
    write(bed, "/usr/local/bin/stat", STAT)
    done = run(bed, training_host_nfs=[DATA, MORE], training_host_shm_size_mb=200).checked()
    both = ["nas:/export/data /mnt/data", "nas:/export/more/ /mnt/more"]
    assert mounted(bed) == both
    assert int(shell(bed, size)) // 10 == 19531, done.shown  # pages
    assert fstab(bed)[-2:] == [
        "nas:/export/more/ /mnt/more nfs ro,nofail,x-train.host 0 0",
        "tmpfs /dev/shm tmpfs size=200000000,nosuid,nodev,x-train.host 0 0",
    ]
    # New options apply from the next mount, but a stale share is mounted again at once.
    shell(bed, "touch /mnt/data/kept")
    wanted: dict[str, Any] = {
        "training_host_nfs": [{**DATA, "opts": "soft"}, MORE],
        "training_host_shm_size_mb": 200,
    }
    assert run(bed, **wanted).checked().changed == 1
    assert shell(bed, "ls /mnt/data") == "kept\n"
    shell(bed, "touch /stale")
    assert run(bed, **wanted).checked().changed == 2
    assert (mounted(bed)[::-1], shell(bed, "ls /mnt/data")) == (both, "")
    # Another share replaces it, but a busy share stays.
    shell(bed, "systemd-run --unit=busy --working-directory=/mnt/more sleep 999")
    other = role_task(ROLE, training_host_nfs=[{**DATA, "src": "nas:/new"}, MORE])
    busy = run_tasks(bed, [other, role_task(ROLE, training_host_nfs=[DATA])])
    assert busy.code == 2
    assert "nas:/new /mnt/data" in mounted(bed), busy.shown
    assert "End the processes that use it (list them with `sudo fuser -vm /mnt/more`" in busy.shown
    assert "/mnt/more" in "".join(fstab(bed))
    # Without shares, and with shared memory that cannot grow.
    shell(bed, "systemctl stop busy; ln -s /bin/false /usr/local/bin/mount")
    shell(bed, f"/usr/bin/mount -o remount,size={before}k /dev/shm")
    refused = run(bed, training_host_shm_size_mb=300)
    assert refused.code == 2
    assert "docker run --shm-size" in refused.shown
    assert mounted(bed) == []
    shell(bed, "rm /usr/local/bin/mount")
    run(bed, entry="remove").checked()
    assert fstab(bed) == own


def test_mounts_of_an_administrator_are_left_alone(bed: Testbed) -> None:
    own = fstab(bed)
    lines = [
        "tmpfs /dev/shm tmpfs noexec,size=64m 0 0",
        "/dev/sdz1 /mnt/disk/ ext4 noauto 0 0",
        "nas:/old /mnt/old nfs noauto 0 0",
    ]
    shell(bed, "cp /etc/fstab /root; mkdir -p /mnt/local; mount -t tmpfs local /mnt/local")
    shell(bed, "".join(f"echo '{line}' >> /etc/fstab;" for line in lines))
    mounts = shell(bed, "cat /proc/mounts")
    local, disk = ({"src": "nas:/x", "path": path} for path in ("/mnt/local", "/mnt/disk"))
    remedy = "Choose another path in training_host_nfs, or unmount it and remove its line"
    found = "/mnt/local on host-0 is not a mount point of NFS: local (tmpfs) is mounted there. "
    refused = "/etc/fstab on host-0 has a line for /dev/shm that is not the role's. Add the option"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"training_host_nfs": [local]}, found + remedy),
        ({"training_host_nfs": [disk]}, "/mnt/disk has a line in /etc/fstab. " + remedy),
        ({"training_host_shm_size_mb": 300}, f"{refused} size=300000000 to that line"),
    ]
    assert_refused(partial(run_tasks, bed), ROLE, cases)
    run(bed, entry="remove").checked()
    assert (fstab(bed), shell(bed, "cat /proc/mounts")) == ([*own, *lines], mounts)
    shell(bed, "umount /mnt/local; cp /root/fstab /etc")
