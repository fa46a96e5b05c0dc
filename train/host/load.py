"""Reads counters of a rank's CPU time, and the limits and the load of its host."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import time
from typing import Dict, List, Optional, Tuple, TypedDict

from . import gpus, processes
from .plain_text import is_number
from .processes import control_groups, numbers, read_text

SYS = "/sys"
#: File in the rank's folder with the last output of nvidia-smi.
GPU_FILE = "gpus.csv"
#: Seconds between two runs of nvidia-smi, and after a failed one; time limit of a run.
GPU_EVERY_S = 10.0
GPU_RETRY_S = 120.0
GPU_LIMIT_S = 3.0
#: Maximum number of processors whose clock is read: some kernels need 10 ms for an idle one.
_CLOCKS = 4
_FIELDS = ("index", "uuid", "clocks.sm", "clocks.max.sm", "utilization.gpu")

_TICKS = os.sysconf("SC_CLK_TCK")


class Facts(TypedDict, total=False):
    """Counters of a process, its process group and its host, as far as the host has them."""

    t: float  # seconds of the host's monotonic clock
    machine: str  # the boot id: the same for ranks on one machine
    cpu_s: float  # CPU seconds of the process group, including ended children
    wait_s: float  # seconds in which its threads were ready to run and waited for a core
    stopped: bool  # whether the process is stopped by a signal
    nice: int  # the niceness of its threads (their median)
    cores: int  # logical cores that it may use
    quota_cores: float  # CPU limit of its cgroup in cores; absent without a limit
    periods: int  # past periods of that limit, and
    throttled: int  # those in which the limit was reached
    thermal: int  # times that the processors slowed down because of heat
    mhz: int  # highest current clock of the cores on which it runs, and
    max_mhz: int  # their maximum clock
    busy_s: float  # CPU seconds of all processes of the machine, and
    steal_s: float  # CPU seconds that its hypervisor gave to other machines
    all_cores: int  # the machine's logical cores
    cpu_pressure: float  # percentage of the last 10 s in which a process waited for a core
    tcp_sent: int  # TCP segments that the host (its network namespace) sent, and
    tcp_resent: int  # those that it retransmitted
    gpus: List[GpuLoad]  # the GPUs that the process may use


class GpuLoad(TypedDict):
    """The current state of a GPU from nvidia-smi."""

    index: int
    uuid: str
    mhz: int
    max_mhz: int
    busy: Optional[int]  # percent
    reasons: int  # NVML's bits for the reasons of a throttled clock


def facts(pid: int, folder: Optional[str] = None) -> Facts:
    """Return facts about ``pid``, which leads a process group; empty if it has ended.

    The output of nvidia-smi is stored in ``folder``. Without a folder, nvidia-smi is not run.
    """
    group = _group(pid)
    if pid not in group:
        return {}
    found: Facts = {"t": round(time.monotonic(), 3)}
    with contextlib.suppress(OSError):
        found["machine"] = processes.boot_id()
    for read in (_time, limit, _machine, _network):
        with contextlib.suppress(ValueError, IndexError, KeyError):  # other kernels, other formats
            found.update(read(pid, group))
    used = [] if folder is None else _gpus(pid, group, folder)
    if used:
        found["gpus"] = used
    return found


def _number(*parts: str) -> int:
    """Return the number in a file, or 0."""
    text = read_text(*parts).strip()
    return int(text) if is_number(text) else 0


def _group(pid: int) -> Dict[int, List[str]]:
    """Return by pid the ``stat`` fields of a process and of the others in its process group."""
    group = {}
    for member in {pid, *processes.in_group(pid)}:
        with contextlib.suppress(OSError, IndexError):  # it has ended
            fields = processes.stat(member)
            if fields[0] not in "ZX":
                group[member] = fields
    return group


def _time(pid: int, group: Dict[int, List[str]]) -> Facts:
    """Return the CPU time of the processes, and the clock rate of the cores on which they run."""
    ticks = sum(int(value) for fields in group.values() for value in fields[11:15])
    waited: List[float] = []
    nices: List[int] = []
    running = [int(group[pid][36])]
    for member in group:
        for thread in numbers(processes.PROC, str(member), "task"):
            with contextlib.suppress(OSError, IndexError):  # it has ended
                path = "%d/task/%s" % (member, thread)
                waited.append(processes.waited(path))
                fields = processes.stat(path)
                nices.append(int(fields[16]))
                if fields[0] == "R":
                    running.insert(0, int(fields[36]))
    found: Facts = {
        "cpu_s": round(ticks / _TICKS, 2),
        "stopped": group[pid][0] in "Tt",
        "nice": sorted(nices)[(len(nices) - 1) // 2] if nices else int(group[pid][16]),
    }
    if any(waited):  # not every kernel counts this
        found["wait_s"] = round(sum(waited), 3)
    status = read_text(processes.PROC, str(pid), "status")
    allowed = re.search(r"^Cpus_allowed_list:\s*(\S+)", status, re.M)
    if allowed:
        ends = [part.split("-") for part in allowed.group(1).split(",")]
        found["cores"] = sum(int(end[-1]) - int(end[0]) + 1 for end in ends)
    clocks: List[Tuple[int, int]] = []
    for core in list(dict.fromkeys(running))[:_CLOCKS]:
        folder = os.path.join(SYS, "devices/system/cpu/cpu%d/cpufreq" % core)
        now, most = _number(folder, "scaling_cur_freq"), _number(folder, "cpuinfo_max_freq")
        if now and most:
            clocks.append((now, most))
    if clocks:
        found["mhz"], found["max_mhz"] = (max(values) // 1000 for values in zip(*clocks))
    return found


def limit(pid: int, group: Optional[Dict[int, List[str]]] = None) -> Facts:
    """Return the CPU limit of the nearest control group that has one; empty without a limit."""
    listed = read_text(processes.PROC, str(pid), "cgroup")
    for folders in control_groups(listed, "cpu", os.path.join(SYS, "fs/cgroup")):
        for folder in folders:
            words = read_text(folder, "cpu.max").split()  # version 2
            if not words:  # version 1
                names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
                words = [read_text(folder, name).strip() for name in names]
            if len(words) == 2 and is_number(words[0]) and is_number(words[1]):
                lines = read_text(folder, "cpu.stat").splitlines()
                counts = dict(line.split()[:2] for line in lines)
                return {
                    "quota_cores": round(int(words[0]) / int(words[1]), 2),
                    "periods": int(counts["nr_periods"]),
                    "throttled": int(counts["nr_throttled"]),
                }
    return {}


def _machine(pid: int, group: Dict[int, List[str]]) -> Facts:
    """Return the CPU time of all processes of the machine, and the state of its cores."""
    lines = read_text(processes.PROC, "stat").splitlines()
    user, nice, system, _, _, irq, softirq, steal = (int(v) for v in lines[0].split()[1:9])
    found: Facts = {
        "busy_s": round((user + nice + system + irq + softirq) / _TICKS, 2),
        "steal_s": round(steal / _TICKS, 2),
        "all_cores": sum(1 for line in lines if re.match(r"cpu[0-9]", line)),
    }
    text = read_text(processes.PROC, "pressure/cpu")
    pressure = re.search(r"^some avg10=([0-9.]+)", text, re.M)
    if pressure:
        found["cpu_pressure"] = float(pressure.group(1))
    folders = glob.glob(os.path.join(SYS, "devices/system/cpu/cpu[0-9]*/thermal_throttle"))
    if folders:
        cores = sum(_number(folder, "core_throttle_count") for folder in folders)
        package = max(_number(folder, "package_throttle_count") for folder in folders)
        found["thermal"] = cores + package
    return found


def _network(pid: int, group: Dict[int, List[str]]) -> Facts:
    lines = read_text(processes.PROC, str(pid), "net/snmp").splitlines()
    header, values = [line.split() for line in lines if line.startswith("Tcp:")]
    counts = dict(zip(header, values))
    return {"tcp_sent": int(counts["OutSegs"]), "tcp_resent": int(counts["RetransSegs"])}


def _gpus(pid: int, group: Dict[int, List[str]], folder: str) -> List[GpuLoad]:
    """Return the state of the GPUs that the process may use, from nvidia-smi."""
    opened = (path for member in group for path in processes.opened(member))
    if gpus.nvidia_smi() is None or not any(re.match(r"/dev/nvidia[0-9]", path) for path in opened):
        return []
    path = os.path.join(folder, GPU_FILE)
    text, age = read_text(path), float("inf")
    with contextlib.suppress(OSError):
        age = time.time() - os.stat(path).st_mtime
    if not 0 <= age < (GPU_EVERY_S if text else GPU_RETRY_S):
        text = ""
        with contextlib.suppress(gpus.GpuError):
            rows, _ = gpus.query((*_FIELDS, *gpus.REASONS), GPU_LIMIT_S)
            for row in rows:
                reasons = next((row[name] for name in gpus.REASONS if name in row), "")
                text += ",".join([*(row.get(name, "") for name in _FIELDS), reasons]) + "\n"
        with contextlib.suppress(OSError):  # on a full disk, nvidia-smi is run again
            with open(path, "w", encoding="utf-8") as stream:
                stream.write(text)
            os.utime(path)
    visible = processes.environment(pid).get("CUDA_VISIBLE_DEVICES")
    names = None if visible is None else visible.split(",")
    found = [gpu for gpu in map(_parse, text.splitlines()) if gpu is not None]
    if names is None:
        return found
    return [gpu for gpu in found if str(gpu["index"]) in names or gpu["uuid"] in names]


def _parse(line: str) -> Optional[GpuLoad]:
    """Return the GPU in a line of GPU_FILE; None if a value is missing, such as ``[N/A]``."""
    words = line.split(",")
    try:
        return {
            "index": int(words[0]),
            "uuid": words[1],
            "mhz": int(words[2]),
            "max_mhz": int(words[3]),
            "busy": int(words[4]) if is_number(words[4]) else None,
            "reasons": int(words[5], 16),
        }
    except (ValueError, IndexError):
        return None
