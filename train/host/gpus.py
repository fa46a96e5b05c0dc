"""Lists the NVIDIA GPUs of this machine, and the processes on them, with nvidia-smi."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import subprocess
import time
from typing import Collection, Dict, Iterable, List, Optional, Tuple, TypedDict

from . import host_facts, plain_text, processes, rank_environment
from .leases import user_name

#: Folders with files of the driver. A container has the files of its own GPUs only.
DEV = "/dev"
PROC = "/proc/driver/nvidia"
#: The kernel's name of the machine's initial pid namespace.
INITIAL_PIDS = "pid:[4026531836]"
#: Time limit of nvidia-smi in seconds: without the persistence daemon, it wakes every GPU.
LIMIT_S = 60.0
#: The field with reasons of a throttled clock: in older drivers, and in newer ones.
REASONS = ("clocks_throttle_reasons.active", "clocks_event_reasons.active")
_AS_CSV = ("--format=csv,noheader,nounits",)
_MPS = "nvidia-cuda-mps"
_GPU = re.compile(r"GPU ([0-9]+): .*\(UUID: (GPU-[^)]+)\)")
_INSTANCE = re.compile(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)")


class GpuProcess(TypedDict):
    """A process that computes on a GPU."""

    uuid: str  # may be the UUID of the GPU if an instance is in use
    pid: int
    name: str
    memory_mb: Optional[int]  # None if unknown


def device_nodes() -> List[str]:
    """Return the device files of this machine's GPUs."""
    return glob.glob(os.path.join(DEV, "nvidia[0-9]*"))


class GpuError(Exception):
    """nvidia-smi failed or did not answer; the message can be shown to users."""


def nvidia_smi() -> Optional[str]:
    """Return the path of nvidia-smi; None if it is missing or no NVIDIA driver is loaded."""
    nodes = device_nodes()
    is_loaded = nodes or os.path.exists(os.path.join(PROC, "version"))
    if not is_loaded:
        return None
    import shutil  # slow to import

    return shutil.which("nvidia-smi")


def list_gpus() -> List[host_facts.Gpu]:
    """Return the GPUs in the order of their indices, or an empty list without a driver.

    Raise GpuError if nvidia-smi fails.
    """
    gpus: List[host_facts.Gpu] = []
    for line in ask("-L"):  # its only listing that includes MIG instances
        gpu, instance = _GPU.match(line), _INSTANCE.match(line)
        if gpu:
            gpus.append({"index": int(gpu.group(1)), "uuid": gpu.group(2), "instances": []})
        elif instance and gpus:
            gpus[-1]["instances"].append(instance.group(1))
    return sorted(gpus, key=lambda found: int(found["index"]))


def query(fields: Iterable[str], limit: float) -> Tuple[List[Dict[str, str]], str]:
    """Query ``fields`` of the GPUs, except those that this version of nvidia-smi does not know.

    Return each GPU's values by field, and the first other line of output (such as an error about a
    lost GPU) or an empty string. Raise GpuError if nvidia-smi fails.
    """
    supported, end = list(fields), time.monotonic() + limit
    while True:
        try:
            left = end - time.monotonic()
            lines = ask("--query-gpu=" + ",".join(supported), *_AS_CSV, limit=left)
            break
        except GpuError as error:
            unknown = re.search('Field "([^"]+)" is not a valid field', str(error))
            if not unknown or unknown.group(1) not in supported:
                raise
            supported.remove(unknown.group(1))
    rows, others = [], ""
    for line in lines:
        values = [value.strip() for value in line.split(",")]
        if len(values) == len(supported):
            rows.append(dict(zip(supported, values)))
        else:
            others = others or line
    return rows, others


def processes_on(uuids: Collection[str], limit: float = LIMIT_S) -> List[GpuProcess]:
    """Return the processes that compute on GPUs or MIG instances, as the driver lists them.

    In a container, the driver lists few or none, with the machine's pids. Programs that only draw
    and the server that shares a GPU among programs (MPS) are not included. Raise GpuError if
    nvidia-smi fails.
    """
    found: List[GpuProcess] = []
    fields = "gpu_uuid,pid,used_memory,process_name"
    for line in ask("--query-compute-apps=" + fields, *_AS_CSV, limit=limit) if uuids else ():
        values = [value.strip() for value in line.split(",", 3)]
        if len(values) < 4 or values[0] not in uuids or not plain_text.is_number(values[1]):
            continue
        if os.path.basename(values[3]).startswith(_MPS):
            continue
        memory = int(values[2]) if plain_text.is_number(values[2]) else None
        found.append(
            GpuProcess(uuid=values[0], pid=int(values[1]), name=values[3], memory_mb=memory)
        )
    return found


def describe(process: GpuProcess) -> str:
    """Return a description of a process and its owner."""
    pid, words, owner = process["pid"], "", ""
    if _sees_all():
        with contextlib.suppress(OSError):  # it has ended
            owner = ", user " + user_name(os.stat("/proc/%d" % pid).st_uid)
            words = processes.command(pid)
            job = processes.environment(pid).get(rank_environment.ENV_JOB)
            owner += ", job " + job if job else ""
    words = words or process["name"]
    words = "".join(letter if letter.isprintable() else "?" for letter in words[:120])
    memory = "" if process["memory_mb"] is None else ", %d MiB" % process["memory_mb"]
    return "pid %d (%s%s%s)" % (pid, words, owner, memory)


def _sees_all() -> bool:
    """Return whether pids here are those of the driver, which is not the case in a container."""
    return os.readlink("/proc/self/ns/pid") == INITIAL_PIDS


def wait_until_left(uuids: List[str], pids: Collection[int], limit: float) -> Optional[bool]:
    """Wait up to ``limit`` seconds until the processes ``pids`` of an ended rank leave its GPUs.

    Return whether they have left; None if unknown.
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
    """Run nvidia-smi and return its output lines, or an empty list without a driver.

    Raise GpuError if it fails, or takes longer than ``limit`` seconds.
    """
    program, process = nvidia_smi(), None
    if program is None:
        return []
    try:
        # subprocess.run would wait for a process that hangs in the driver.
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
        raise GpuError("%s failed: %s" % (program, [process.returncode, *printed][-1]))
    return lines
