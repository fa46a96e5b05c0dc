"""Whether filesystems are mounted and answer, and how large shared memory is."""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any, Dict, List, Optional

from .fstab import FSTAB, MARK, MOUNTS, read_mounts

SHM = "/dev/shm"
#: Longest wait for a mounted filesystem to answer, in seconds. A dead NFS server never does.
ANSWER_LIMIT_S = 10.0


def silent(path: str, limit_s: float = ANSWER_LIMIT_S) -> Optional[str]:
    """Return why the filesystem of ``path`` does not answer; None if it does.

    A process that asks a dead NFS server may not end even when it is killed: it is not waited for.
    """
    asking = subprocess.Popen(
        ["stat", "--file-system", "--", path],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + limit_s
    while asking.poll() is None:
        if time.monotonic() > deadline:
            asking.kill()
            return "does not answer within %.0f s" % limit_s
        time.sleep(0.005)
    assert asking.stderr is not None
    error = asking.stderr.read().decode(errors="replace").strip()
    return error.rpartition(": ")[2] if asking.returncode else None


def check_mount(wanted: Dict[str, Any]) -> List[str]:
    """Return what differs of a mount: it must be in fstab, be mounted, and answer."""
    path, source = wanted["path"].rstrip("/") or "/", wanted["src"]
    differences = []
    if read_mounts(FSTAB).get(path) != [source, wanted["fstype"], wanted["opts"]]:
        differences.append("%s is not in %s as wanted" % (path, FSTAB))
    # Asked first: that mounts what systemd mounts when it is used.
    reason = silent(path)
    mounted = read_mounts(MOUNTS).get(path)
    if mounted is None or mounted[1] == "autofs":
        why = ": " + reason if mounted and reason else ""
        differences.append("%s is not mounted%s" % (path, why))
    elif mounted[0].rstrip("/") != source.rstrip("/"):
        differences.append("%s is %s, not %s" % (path, mounted[0], source))
    elif reason is not None:
        differences.append("%s (%s) is mounted, but broken: %s" % (path, source, reason))
    return differences


def left_over_mounts(wanted: List[Dict[str, Any]], shm_mb: int) -> List[str]:
    """Return what differs: lines of fstab that the role made and that are not wanted any more."""
    points = {mount["path"] for mount in wanted} | ({SHM} if shm_mb else set())
    return [
        "%s is in %s, but not wanted" % (point, FSTAB)
        for point, (_, _, options) in read_mounts(FSTAB).items()
        if MARK in options.split(",") and point not in points
    ]


def shm_size_mb(path: str = SHM) -> int:
    """Return the size of the filesystem of shared memory in MB; 0 where there is none."""
    try:
        found = os.statvfs(path)
    except FileNotFoundError:
        return 0
    return found.f_blocks * found.f_frsize // 10**6
