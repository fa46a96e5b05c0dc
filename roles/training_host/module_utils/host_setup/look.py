"""The comparison of a host with what is wanted, in one go."""

from __future__ import annotations

import os
import pwd
from typing import Any, Dict, List

from .distribution import family, os_release
from .limits import check_limits
from .mounts import SHM, check_mount, left_over_mounts, shm_size_mb
from .packages import missing_packages
from .paths import check_path, for_user
from .services import check_services

#: Shows an NVIDIA driver.
NVIDIA_SIGN = "/dev/nvidia0"
#: Less than this in /dev/shm, in MB, and NCCL fails between the GPUs of one host.
NCCL_SHM_MB = 1024


def look(params: Dict[str, Any]) -> Dict[str, Any]:
    """Return the module's result.

    Raises:
        OSError: a file cannot be read.
    """
    release = os_release()
    kind = family(release)
    missing = missing_packages(params["packages"].get(kind, []), kind)
    differences = ["package %s is not installed" % name for name in missing]
    notes: List[str] = []
    systemd = os.path.isdir("/run/systemd/system")
    if systemd:
        differences += check_services(params["services"])
    else:
        differences += ["service %s: no systemd runs" % name for name in params["services"]]
    user = params["user"] or pwd.getpwuid(os.getuid()).pw_name
    try:
        pwd.getpwnam(user)
    except KeyError:
        differences.append("user %s is not there" % user)
    if params["mounts"] is not None:
        differences += left_over_mounts(params["mounts"], params["shm_mb"])
        for mount in params["mounts"]:
            differences += check_mount(mount)
    if not any("broken" in difference for difference in differences):
        for paths, folder in ((params["folders"], True), (params["files"], False)):
            for wanted in paths:
                differences += check_path(for_user(wanted, user), folder)
    content = ""
    if params["limits"]:
        content, found, notes = check_limits(params["limits"], user)
        differences += found
    size = shm_size_mb()
    if size < params["shm_mb"]:
        differences.append("%s has %d MB, not %d" % (SHM, size, params["shm_mb"]))
    elif size < NCCL_SHM_MB and params["limits"] and os.path.exists(NVIDIA_SIGN):
        notes.append(
            "%s has %d MB; NCCL wants %d MB between the GPUs of a host: set"
            " training_host_shm_size_mb" % (SHM, size, NCCL_SHM_MB)
        )
    return {
        "changed": False,
        "ready": not differences,
        "differences": differences,
        "family": kind,
        "distribution": release.get("ID", ""),
        "release": release.get("VERSION_ID", ""),
        "systemd": systemd,
        "user": user,
        "limits_content": content,
        "notes": notes,
    }
