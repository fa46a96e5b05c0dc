"""The NVIDIA GPUs of this machine, as nvidia-smi lists them; no GPU is opened."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import subprocess
from typing import Collection, Iterable, List, Optional, TypedDict

from . import processes, records
from .leases import user_name

#: Where a driver has files. A container has those of the GPUs that it was given.
DEV = "/dev"
PROC = "/proc/driver/nvidia"
#: The kernel's name for the pids of the machine itself.
INITIAL_PIDS = "pid:[4026531836]"
#: Longest answer of nvidia-smi, in seconds: without the persistence daemon it wakes every GPU.
LIMIT_S = 60.0
_MPS = "nvidia-cuda-mps"
_GPU = re.compile(r"GPU (\d+): .*\(UUID: (GPU-[^)]+)\)")
_INSTANCE = re.compile(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)")


class Process(TypedDict):
    """A process that computes on a GPU."""

    uuid: str  # may be that of a GPU where an instance is in use
    pid: int
    name: str
    memory_mb: Optional[int]  # None where it is not known


class GpuError(Exception):
    """nvidia-smi fails; the message is for people."""


def nvidia_smi() -> Optional[str]:
    """Return the path of nvidia-smi; None where it is missing, or no NVIDIA driver is loaded."""
    nodes = glob.glob(os.path.join(DEV, "nvidia[0-9]*"))
    is_loaded = nodes or os.path.exists(os.path.join(PROC, "version"))
    return shutil.which("nvidia-smi") if is_loaded else None


def list_gpus() -> List[records.Gpu]:
    """Return the GPUs by index, which is the order of their PCI addresses: none
    without a driver or ``nvidia-smi``. GpuError if that fails.
    """
    gpus: List[records.Gpu] = []
    for line in ask("-L"):  # of all its listings the one with MIG instances
        gpu, instance = _GPU.match(line), _INSTANCE.match(line)
        if gpu:
            gpus.append({"index": int(gpu.group(1)), "uuid": gpu.group(2), "instances": []})
        elif instance and gpus:
            gpus[-1]["instances"].append(instance.group(1))
    return sorted(gpus, key=lambda found: int(found["index"]))


def processes_on(uuids: Iterable[str], limit: float = LIMIT_S) -> List[Process]:
    """Return the processes that compute on GPUs or MIG instances, as far as the driver lists them.
    GpuError if nvidia-smi fails, or takes ``limit`` seconds.

    In a container it lists few or none, and by pids that are not those in the container. Programs
    that only draw are not listed, and the server that shares a GPU among programs (MPS) is left
    out: they may stay.
    """
    wanted = set(uuids)
    found: List[Process] = []
    if not wanted:
        return []
    fields = "gpu_uuid,pid,used_memory,process_name"
    options = ["--query-compute-apps=" + fields, "--format=csv,noheader,nounits"]
    for line in ask(*options, limit=limit):
        values = [value.strip() for value in line.split(",", 3)]
        if len(values) < 4 or values[0] not in wanted or not values[1].isdigit():
            continue
        if os.path.basename(values[3]).startswith(_MPS):
            continue
        found.append(
            {
                "uuid": values[0],
                "pid": int(values[1]),
                "name": values[3],
                "memory_mb": int(values[2]) if values[2].isdigit() else None,
            }
        )
    return found


def describe(process: Process) -> str:
    """Return in words whose process that is; ``process`` is one of ``processes_on``."""
    pid, words, owner = process["pid"], "", ""
    if _sees_all():
        with contextlib.suppress(OSError):  # it has ended
            owner = ", user " + user_name(os.stat("/proc/%d" % pid).st_uid)
            words = processes.command(pid)
            job = processes.environment(pid).get(records.ENV_JOB)
            owner += ", job " + job if job else ""
    words = words or process["name"]
    words = "".join(letter if letter.isprintable() else "?" for letter in words[:120])
    memory = "" if process["memory_mb"] is None else ", %d MiB" % process["memory_mb"]
    return "pid %d (%s%s%s)" % (pid, words, owner, memory)


def _sees_all() -> bool:
    """Return whether pids here are those that the driver knows: whether this is no container."""
    return os.readlink("/proc/self/ns/pid") == INITIAL_PIDS


def wait_until_left(uuids: List[str], pids: Collection[int], limit: float) -> Optional[bool]:
    """Wait ``limit`` seconds until no process of a rank that has ended is listed on its GPUs: the
    driver frees memory some time after it. Return whether it did; None where that is not known.
    """
    if not _sees_all() or nvidia_smi() is None:
        return None

    def have_left() -> bool:
        return not any(process["pid"] in pids for process in processes_on(uuids, limit))

    try:
        return processes.wait_until(have_left, limit, pause=0.2)
    except GpuError:
        return None


def ask(*options: str, limit: float = LIMIT_S) -> List[str]:
    """Return the lines that nvidia-smi prints, none without a driver; GpuError if it fails."""
    program, process = nvidia_smi(), None
    if program is None:
        return []
    try:
        # Not subprocess.run: it would wait for one that cannot be killed, in a driver's call.
        process = subprocess.Popen(
            [program, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        lines = process.communicate(timeout=limit)[0].decode(errors="replace").splitlines()
    except (OSError, subprocess.TimeoutExpired) as error:
        if process is not None:
            process.kill()
        raise GpuError("%s is unresponsive: %s" % (program, error)) from None
    if process.returncode:
        printed = [line.strip() for line in lines if line.strip()]
        raise GpuError("%s fails: %s" % (program, [process.returncode, *printed][-1]))
    return lines
