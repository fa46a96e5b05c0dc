"""Reports how much of a host is in use, and by which jobs, for the dashboard."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from typing import Dict, List, Optional, TypedDict

from . import gpus, jobs, leases, plain_text, rank_files
from .call_types import CallResult, Params
from .processes import read_text

#: Time limit of nvidia-smi in seconds.
GPU_LIMIT_S = 3.0
_GPU_FIELDS = ("index", "name", "utilization.gpu", "memory.used", "memory.total")


class GpuUse(TypedDict):
    """The use of a GPU: ``busy`` in percent, memory in MiB. None means unknown."""

    index: int
    name: str
    busy: Optional[int]
    memory_used: Optional[int]
    memory_total: Optional[int]


class Usage(TypedDict):
    """The use of a host. Memory and disk are in MiB."""

    cores: int
    load: float  # processes that run or wait for a core, on average over a minute
    memory_total: int
    memory_free: int
    disk_total: int  # of the file system with the jobs' folders
    disk_free: int
    gpus: List[GpuUse]
    gpu_error: str  # why the GPUs could not be queried; empty if they could


class Held(TypedDict):
    """A port or GPU that a job holds, has reserved or waits for."""

    state: str  # records of train/host/leases.py: started, taken or queued
    job: str
    task: str
    user: str
    since: float
    resources: List[str]


def report(params: Params) -> CallResult:
    """Return the ``usage`` of this host, its ``jobs`` with their ``owners``, and who ``holds`` it.

    ``holds`` lists the leases of all users, and the jobs that wait for them. ``compiled_for`` is
    the Python version whose compiled modules run here.

    Args:
        params: ``root``, the folder that contains ``jobs/``; ``lease_dir``.
    """
    root = rank_files.expand(params["root"])
    listed = jobs.list_jobs(root, sizes=False)
    owners: Dict[str, str] = {}
    for job in listed:
        with contextlib.suppress(OSError):  # it has just been removed
            status = os.stat(os.path.join(root, "jobs", job["job"]))
            owners[job["job"]] = leases.user_name(status.st_uid)
    return {
        "compiled_for": "%d.%d" % sys.version_info[:2],
        "usage": usage(root),
        "jobs": listed,
        "owners": owners,
        "holds": holds(rank_files.expand(params["lease_dir"])),
    }


def holds(lease_dir: str) -> List[Held]:
    """Return the leases and the places in the queue, of all users."""
    return [
        {
            "state": entry["state"],
            "job": entry["job"],
            "task": entry["task"],
            "user": entry["user"],
            "since": entry["since"],
            "resources": entry["resources"],
        }
        for entry in leases.entries(lease_dir)
        if entry["state"] in (leases.STARTED, leases.TAKEN, leases.QUEUED)
    ]


def usage(root: str) -> Usage:
    """Return the use of this host. ``root`` is on the file system whose space counts."""
    memory = read_text("/proc/meminfo")
    while not os.path.exists(root) and root != os.path.dirname(root):
        root = os.path.dirname(root)
    disk = shutil.disk_usage(root)
    found: Usage = {
        "cores": os.cpu_count() or 1,
        "load": round(os.getloadavg()[0], 2),
        "memory_total": _mib(memory, "MemTotal"),
        "memory_free": _mib(memory, "MemAvailable"),
        "disk_total": disk.total >> 20,
        "disk_free": disk.free >> 20,
        "gpus": [],
        "gpu_error": "",
    }
    if gpus.nvidia_smi():
        try:
            found["gpus"] = gpu_use()
        except gpus.GpuError as error:
            found["gpu_error"] = str(error)[:200]
    return found


def gpu_use() -> List[GpuUse]:
    """Return the use of each GPU. Raise GpuError if nvidia-smi fails."""
    rows, _ = gpus.query(_GPU_FIELDS, GPU_LIMIT_S)
    return [
        {
            "index": int(row["index"]),
            "name": row.get("name", ""),
            "busy": _number(row.get("utilization.gpu", "")),
            "memory_used": _number(row.get("memory.used", "")),
            "memory_total": _number(row.get("memory.total", "")),
        }
        for row in rows
        if plain_text.is_number(row.get("index", ""))
    ]


def _number(text: str) -> Optional[int]:
    """Return a number of nvidia-smi, or None for a text such as ``[N/A]``."""
    return int(text) if plain_text.is_number(text) else None


def _mib(meminfo: str, name: str) -> int:
    found = re.search(r"^%s:\s+(\d+) kB" % name, meminfo, re.M)
    return int(found.group(1)) >> 10 if found else 0
