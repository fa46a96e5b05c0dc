"""Collects facts about a host for the doctor, which judges them on the control node."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import timeit
from typing import Dict, List, Tuple, TypedDict

from . import (
    environments,
    frameworks,
    gpus,
    host_facts,
    leases,
    load,
    plain_text,
    ports,
    preflight,
    probe,
    processes,
    rank_environment,
    rank_files,
    ranks,
    records,
    suitability,
)
from .call_types import CallResult, Params
from .processes import read_text
from .threads import ask_all

#: Seconds for which other load is sampled; minimum age of the processes in seconds; repetitions of
#: the timed loop.
SAMPLE_S, SETTLED_S, LOOPS = 0.3, 10.0, 20
#: The wait of a process for a core counts at most this many times its CPU time.
WAITED = 8.0
#: Number of ports after the rank's own to try if that is in use.
SPARE_PORTS = 50
#: Time limits in seconds of nvidia-smi, of the import of TensorFlow and of resolving all names; MiB
#: to write.
SMI_S, IMPORT_S, RESOLVE_S, WRITTEN_MB = 15.0, 120.0, 15.0, 16
#: Packages to compare by version.
_PACKAGES = (
    *("tensorflow", "tensorflow_cpu", "keras", "tf_keras", "numpy", "protobuf", "grpcio"),
    *("jax", "jaxlib", "torch"),
)
_IMPORT = """
import json, os, time, timeit
# A thread that waits for others says nothing about the processor's speed: use one.
os.environ.update(OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
began = time.monotonic()
import numpy, tensorflow as tf
found = {"version": tf.__version__, "seconds": time.monotonic() - began}
found["cuda"] = tf.sysconfig.get_build_info().get("cuda_version") or ""
found["gpus"] = len(tf.config.list_physical_devices("GPU"))
one = numpy.ones((512, 512), numpy.float32)
# The fastest one is the one that had the cores for itself.
least = min(timeit.repeat(lambda: one @ one, repeat=30, number=1))
found["gflops"] = 2 * 512**3 / least / 1e9
print("\\n" + json.dumps(found))
"""
#: The same for JAX or PyTorch.
_BRIEF = """
import json, time
began = time.monotonic()
import %s as imported
print("\\n" + json.dumps({"version": imported.__version__, "seconds": time.monotonic() - began}))
"""
_GPU_FIELDS = (
    *("index", "uuid", "name", "memory.total", "memory.used", "driver_version", "compute_cap"),
    *("ecc.errors.uncorrected.volatile.total", "clocks.sm", "clocks.max.sm", "power.limit"),
    *("power.default_limit", "pcie.link.gen.max", "pcie.link.width.current", "pcie.link.width.max"),
    *("persistence_mode", "mig.mode.current", "pstate", "gpu_recovery_action"),
    *gpus.REASONS,
)


class Interface(TypedDict):
    """A network interface; ``addresses`` are IPv4, ``speed`` is in Mbit/s (0: unknown)."""

    addresses: List[str]
    speed: int
    mtu: int


class Imported(TypedDict, total=False):
    """Properties that the framework reports, or only the ``error`` if it could not be imported.

    JAX and PyTorch are only imported: ``version`` and ``seconds``.
    """

    version: str
    seconds: float
    cuda: str
    gpus: int
    gflops: float
    error: str


class Checkup(TypedDict):
    """Facts about a host. Sizes are in MiB, rates in MiB/s; 0 or an empty string means unknown."""

    machine: str
    host_python: str
    kernel: str
    libc: str
    cpu: str
    cores: int
    usable_cores: float  # by affinity and by the limit of the control group
    memory: int
    memory_limit: int  # of the control group; 0 without one
    memory_free: int
    swap: int
    shm: int
    root: str
    free: int
    write_error: str
    write_rate: float  # with fsync; 0 if not measured
    nofile: int
    proxy: str  # the variable that makes gRPC use a proxy in a login
    resolved: Dict[str, List[str]]  # addresses by name; empty if it cannot be resolved
    own: List[str]  # names that resolve to this host itself
    port: int
    port_holder: str  # the process that listens on the port; empty if it is free
    port_job: bool  # whether that is a running job
    spare_port: int  # the port itself if it is free, or else a free one after it
    leftovers: List[str]  # descriptions of processes of jobs that have ended
    jobs: List[str]  # running jobs of this user
    leases: List[str]  # descriptions of the leases of all users
    firewall_off: bool
    busy_cores: float  # cores that older processes outside of jobs use or wait for
    busy_with: str  # the process that uses most
    steal: float  # the part of all cores' time that the hypervisor gave to others
    loops: float  # thousands of iterations of a plain loop per second of CPU time
    clocksource: str
    interfaces: Dict[str, Interface]
    python: str
    framework: str
    python_error: str
    packages: Dict[str, str]
    imported: Imported
    suitability: host_facts.Suitability  # for an installation of TensorFlow
    gpus: List[Dict[str, str]]  # fields of nvidia-smi, by name
    gpu_error: str
    gpu_processes: List[str]  # descriptions of processes that belong to no job
    xid: List[str]


def check(params: Params) -> CallResult:
    """Return a ``checkup`` of this host.

    Args:
        params: ``root``, ``python``, ``lease_dir`` and ``port`` of a rank; ``addresses``, names
            and addresses of all hosts; ``framework``; ``full``, whether to import it and to measure
            the write rate; ``suitability``, the request of suitability.examine.
    """
    root, python, lease_dir = (
        rank_files.expand(params[n]) for n in ("root", "python", "lease_dir")
    )
    port, full, framework = int(params["port"]), bool(params["full"]), str(params["framework"])
    began, stolen = time.monotonic(), _stolen()
    found = {
        "root": root,
        "python": python,
        "port": port,
        **_speed(),  # first, because the other checks are load, too
        **_system(),
        **_limits(),
        **_disk(root, full),
        **_names(params["addresses"]),
        **_jobs(port, lease_dir),
        **_environment(python, full, framework),
        "suitability": suitability.examine(params["suitability"]),
        **_gpus(lease_dir),
    }
    took = (time.monotonic() - began) * (os.cpu_count() or 1)
    found["steal"] = round(max(0.0, _stolen() - stolen) / took, 3)
    return {"checkup": found}


def _field(text: str, name: str) -> str:
    """Return the value of ``name`` in lines such as ``name : value``, or an empty string."""
    found = re.search("^%s[ \t]*:[ \t]*(.*)$" % re.escape(name), text, re.MULTILINE)
    return found.group(1).strip() if found else ""


def _system() -> CallResult:
    cpus = read_text("/proc/cpuinfo")
    clocksource = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
    interfaces = {}
    for path in glob.glob("/sys/class/net/*"):
        name = os.path.basename(path)
        speed, mtu = read_text(path + "/speed").strip(), read_text(path + "/mtu").strip()
        address = probe.address_of(name)
        if address and not address.startswith("127."):
            interfaces[name] = {
                "addresses": [address],
                "speed": int(speed) if plain_text.is_number(speed) else 0,
                "mtu": int(mtu or 0),
            }
    return {
        "machine": processes.machine(),
        "host_python": sys.executable,
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "cpu": _field(cpus, "model name"),
        "cores": os.cpu_count() or 1,
        "clocksource": read_text(clocksource).strip(),
        "interfaces": interfaces,
        "proxy": probe.proxy("self"),
        "firewall_off": preflight.lacks_firewall(),
    }


def _limits() -> CallResult:
    memory = read_text("/proc/meminfo")

    def mib(name: str) -> int:
        return int((_field(memory, name) or "0").split()[0]) // 1024

    shm = shutil.disk_usage("/dev/shm").total >> 20 if os.path.isdir("/dev/shm") else 0
    quota = load.limit(os.getpid()).get("quota_cores") or float(os.cpu_count() or 1)
    return {
        "usable_cores": float(min(len(os.sched_getaffinity(0)), quota)),
        "memory": mib("MemTotal"),
        "memory_limit": _memory_limit(mib("MemTotal")),
        "memory_free": mib("MemAvailable"),
        "swap": mib("SwapTotal"),
        "shm": shm,
        "nofile": min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 2**31),
    }


def _memory_limit(memory: int) -> int:
    """Return the lowest limit of this control group and its parents in MiB; 0 if there is none."""
    trees = processes.control_groups(read_text("/proc/self/cgroup"), "memory")
    names = ("memory.max", "memory.limit_in_bytes")  # cgroup versions 2 and 1
    texts = [read_text(path, name) for folders in trees for path in folders for name in names]
    limits = [int(text) >> 20 for text in texts if plain_text.is_number(text.strip())]
    return min((limit for limit in limits if limit < memory), default=0)


def _disk(root: str, full: bool) -> CallResult:
    parent = preflight.existing(root)
    found = {"free": shutil.disk_usage(parent).free >> 20, "write_error": "", "write_rate": 0.0}
    try:
        with tempfile.TemporaryFile(dir=parent) as stream:
            began, data = time.monotonic(), os.urandom(1 << 20)
            for _ in range(WRITTEN_MB if full else 1):
                stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
            if full:
                found["write_rate"] = round(WRITTEN_MB / (time.monotonic() - began), 1)
    except OSError as error:
        found["write_error"] = "%s: %s" % (parent, error.strerror)
    return found


def _names(names: List[str]) -> CallResult:
    def resolve(name: str) -> List[str]:
        places = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        return sorted({str(place[4][0]) for place in places})

    # In parallel, because an unresponsive name server takes seconds for each name.
    known, _ = ask_all(names, resolve, RESOLVE_S)
    own = [name for name in known if probe.is_own(name)]
    return {"resolved": {name: known.get(name, []) for name in names}, "own": own}


def _jobs(port: int, lease_dir: str) -> CallResult:
    running, leftovers, of_job = set(), [], False
    for pid, rank_dir in processes.marked(rank_environment.ENV_RANK_DIR):
        if not os.path.isabs(rank_dir):
            continue  # not set by this program
        job, task = ("/-/" + rank_dir.rstrip(os.sep)).split(os.sep)[-2:]
        state = ranks.observe(rank_dir) if os.path.isdir(rank_dir) else {}
        if state.get("phase") in records.ALIVE_PHASES:
            running.add(job)
            of_job = of_job or state.get("port") == port
        elif os.path.isdir(rank_dir) or processes.shares_mounts(pid):  # not in a container
            leftovers.append("pid %d of %s %s (%s)" % (pid, job, task, processes.command(pid)[:80]))
    spares = range(port, min(port + SPARE_PORTS, 65_536))
    spare = next(filter(ports.is_free, spares), port)
    held = leases.holders(lease_dir)
    return {
        "port_holder": "" if spare == port else ports.listener(port),
        "port_job": of_job or any(lease["resource"] == "port/%d" % port for lease in held),
        "spare_port": spare,
        "leftovers": leftovers[:20],
        "jobs": sorted(running)[:100],
        "leases": sorted({leases.whose(lease) for lease in held})[:100],
    }


def _environment(python: str, full: bool, framework: str) -> CallResult:
    found: CallResult = {
        "framework": framework,
        **{"python_error": "", "packages": {}, "imported": {}},
    }
    if not os.access(python, os.X_OK):
        found["python_error"] = "no such interpreter: %s" % python
        return found
    pattern = os.path.join(os.path.dirname(os.path.dirname(python)), "lib/python3*/site-packages")
    for folder in glob.glob(pattern):
        found["packages"]["python"] = folder.split(os.sep)[-2].replace("python", "")
        for path in glob.glob(folder + "/*.dist-info"):
            name, _, version = os.path.basename(path)[: -len(".dist-info")].rpartition("-")
            name = name.lower()
            if name in _PACKAGES or name.startswith("nvidia_"):
                found["packages"]["tensorflow" if name == "tensorflow_cpu" else name] = version
    below = environments.tensorflow(python).version  # also if the user's environment is based on it
    if below:
        found["packages"].setdefault("tensorflow", below)
    if full and framework != frameworks.NONE:
        is_tensorflow = framework == frameworks.TENSORFLOW
        found["imported"] = _import(python, _IMPORT if is_tensorflow else _BRIEF % framework)
    return found


def _import(python: str, program: str) -> Imported:
    try:
        environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="2")
        done = processes.run([python, "-c", program], env=environment, timeout=IMPORT_S)
        found: Imported = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"error": "the import did not finish within %g s" % IMPORT_S}
    except OSError as error:
        return {"error": str(error)}
    except (IndexError, ValueError):
        said = done.stderr.strip().splitlines()[-1:] or ["exit code %d" % done.returncode]
        return {"error": said[0][:500]}
    return found


def _gpus(lease_dir: str) -> CallResult:
    found: CallResult = {"gpus": [], "gpu_error": "", "gpu_processes": [], "xid": []}
    try:
        found["gpus"], found["gpu_error"] = gpus.query(_GPU_FIELDS, SMI_S)
        foreign = preflight.foreign_processes(gpus.list_gpus(), leases.holders(lease_dir))
        found["gpu_processes"] = [words for _, words in foreign][:20]
    except gpus.GpuError as error:
        found["gpu_error"] = str(error)
    with contextlib.suppress(OSError):  # on many systems only root may read it
        descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb", 0) as stream:
            for line in iter(lambda: stream.read(8192) or b"", b""):  # until the last message
                if b"NVRM: Xid" in line:
                    said = line.decode("utf-8", "replace").partition(";")[2].strip()
                    found["xid"] = [*found["xid"][-19:], said[:200]]
    return found


def _speed() -> CallResult:
    before, began = _cpu_times(), time.monotonic()
    time.sleep(SAMPLE_S)
    after, took = _cpu_times(), time.monotonic() - began
    used = {}
    for pid in set(before) & set(after):
        had, waited = (now - then for now, then in zip(after[pid], before[pid]))
        used[pid] = had + min(waited, WAITED * had)
    for pid, _ in processes.marked(rank_environment.ENV_RANK_DIR):
        used.pop(pid, None)
    most = max(used, key=lambda pid: used[pid], default=0)
    times = timeit.repeat("pass", timer=time.thread_time, repeat=LOOPS, number=20_000)
    return {
        "busy_cores": round(sum(used.values()) / took, 2),
        "busy_with": "pid %d (%s)" % (most, processes.command(most)[:80]) if most else "",
        "loops": round(20 / max(min(times), 1e-6), 1),
    }


def _stolen() -> float:
    """Return the CPU seconds that the hypervisor gave to other machines; see proc(5)."""
    words = read_text("/proc/stat").split("\n", 1)[0].split()
    return int(words[8]) / os.sysconf("SC_CLK_TCK") if len(words) > 8 else 0.0


def _cpu_times() -> Dict[int, Tuple[float, float]]:
    """Return two times in seconds for each process that is older than SETTLED_S, by pid.

    They are its CPU time, and the time that its main thread has waited for a core.
    """
    ticks, found = os.sysconf("SC_CLK_TCK"), {}
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    for pid in processes.pids():
        with contextlib.suppress(OSError, IndexError):  # it has ended
            fields = processes.stat(pid)
            if now - int(fields[19]) / ticks > SETTLED_S:
                used = (int(fields[11]) + int(fields[12])) / ticks
                found[pid] = used, processes.waited(str(pid))
    return found
