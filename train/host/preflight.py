"""Checks all requirements of a rank on a host before it starts, without changing anything."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from . import (
    environments,
    frameworks,
    gloo,
    gpus,
    host_facts,
    leases,
    metadata,
    ports,
    preemption,
    processes,
    rank_files,
    ranks,
    records,
    suitability,
)
from .call_types import CallError, CallResult, Params, for_each_rank
from .suggested import suggest

#: Seconds after which the driver no longer lists an ended process.
PAUSE_S = 1.0
WAIT = "or queue for it (-e train_job_queue_timeout=SECONDS)"
#: Files of the role firewall on a host: its rules, and the unit that loads them.
FIREWALL_RULES = "/etc/train-firewall/rules.nft"
FIREWALL_UNIT = "train-firewall.service"
#: Folders of the programs that list the rules, which answer within milliseconds.
SYSTEM_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
FIREWALL_S = 5.0
#: Time limit in seconds of an interpreter that searches for a framework.
IMPORT_CHECK_S = 30.0
#: Seconds for a cloud's metadata server to answer.
METADATA_S = 1.0
_SETUP = f"run `{suggest('setup', tags='tensorflow')}`"
#: The remedy if TensorFlow is missing.
INSTALL = f"{_SETUP} to install TensorFlow"
#: The same for each framework that setup.yml installs.
INSTALLS = {frameworks.TENSORFLOW: INSTALL, frameworks.JAX: f"{_SETUP} to install JAX"}


def check_job(root: str, job: str, attempt: int) -> List[str]:
    """Return the reasons why ``job`` cannot be started under ``root``."""
    job_dir = os.path.join(root, "jobs", job)
    if not job or attempt > 1 or not os.path.isdir(job_dir):
        return []
    for path in ranks.in_job(job_dir):
        if ranks.observe(path)["phase"] in records.ALIVE_PHASES:
            attach, stop = (suggest(name, job=job) for name in ("attach", "stop"))
            return [
                f"job {job} is already running ({os.path.basename(path)}): attach to it "
                f"with `{attach}`, stop it with `{stop}`, or choose another train_job_id"
            ]
    return [f"job {job} already exists: choose another train_job_id, or remove {job_dir}"]


def check_preemption(root: str, job: str, setting: str) -> List[str]:
    """Return the reasons why a rank must not use this host, which will be reclaimed.

    Args:
        job: the job that does not use hosts that it has left; empty for none.
        setting: ``train_job_preemption``.
    """
    noticed = preemption.of_job(root, job) if job else None
    if noticed is not None:
        ago = max(0.0, time.time() - noticed["at"])
        return [f"a notice of preemption came {ago:.0f} s ago, so the job does not use this host"]
    found = metadata.ask_once(setting, METADATA_S)
    if found is None or found.seconds is None:
        return []
    return ["its metadata server reports that this host will be reclaimed (train_job_preemption)"]


def check_port(
    port: int, job: str, held: List[leases.Entry], wait: float, known: Optional[Set[int]] = None
) -> List[str]:
    """Return the reasons why a job cannot bind ``port``. For ``known`` see ports.is_free.

    If the job can ``wait`` for other jobs, a port that another job holds is not a reason.
    """
    choose = "choose another train_job_port"
    for lease in held:
        if lease["resource"] == f"port/{port}":
            if wait or (lease["job"] == job and lease["own"]):
                return []
            return [f"port {port} is {leases.whose(lease)}: stop that job, {choose}, {WAIT}"]
    if ports.is_free(port, known):
        return []
    return [f"port {port} is in use by {ports.listener(port)}: end that process, or {choose}"]


def existing(folder: str) -> str:
    """Return the nearest existing folder at or above ``folder``."""
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder


def check_space(root: str, min_free_mb: int) -> List[str]:
    """Return a problem if the folder of jobs is not writable, or has too little free space."""
    parent = existing(root)
    if not os.access(parent, os.W_OK | os.X_OK):
        return [f"{parent} is not writable: choose another train_job_root"]
    disk = os.statvfs(parent)
    free_mb = disk.f_bavail * disk.f_frsize // 2**20
    if free_mb < min_free_mb:
        return [
            f"{parent} has {free_mb} MiB free, but at least {min_free_mb} MiB are "
            "required (train_job_min_free_mb): free up space, or choose another train_job_root"
        ]
    return []


def lacks(python: str, module: str) -> bool:
    """Return whether an interpreter finds no module of that name; False if it does not run."""
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('%s') is None)" % module
    try:
        # In /, because the current folder may contain a file of that name.
        done = processes.run([python, "-c", code], cwd="/", timeout=IMPORT_CHECK_S)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 1


def check_noexec(python: str) -> List[str]:
    """Return a problem if libraries in an interpreter's environment cannot be loaded (noexec)."""
    environment = os.path.dirname(os.path.dirname(python))
    if not suitability.is_noexec(environment, "pyvenv.cfg"):
        return []
    point, _ = suitability.mount_of(environment)
    remedy = suitability.NOEXEC_REMEDY % shlex.quote(point)
    return [f"{suitability.NOEXEC % (point, environment)}: {remedy}"]


def leased_gpus(job: str, held: List[leases.Entry], wait: float) -> Dict[str, host_facts.BusyGpu]:
    """Return the GPUs and MIG instances that jobs other than ``job`` hold; see ``gpus_busy``."""
    remedy = f"stop that job, choose other GPUs (train_job_gpus), {WAIT}"
    return {
        lease["resource"].rpartition("/")[2]: {
            "why": leases.whose(lease),
            "remedy": remedy,
            "waits": bool(wait),
        }
        for lease in held
        if lease["resource"].startswith("gpu/") and not (lease["job"] == job and lease["own"])
    }


def foreign_processes(
    found: List[host_facts.Gpu], held: List[leases.Entry]
) -> List[Tuple[gpus.GpuProcess, str]]:
    """Return the processes on GPUs that no job has leased, each with a description."""
    leased = {lease["resource"].rpartition("/")[2] for lease in held}
    free = []
    for gpu in found:
        # If an instance is leased, processes listed for the whole GPU may belong to it.
        if not leased & {gpu["uuid"], *gpu["instances"]}:
            free += [gpu["uuid"], *gpu["instances"]]
        elif gpu["uuid"] not in leased:
            free += [uuid for uuid in gpu["instances"] if uuid not in leased]
    listed = gpus.processes_on(free)
    if not all(os.path.exists(f"/proc/{process['pid']}") for process in listed):
        time.sleep(PAUSE_S)
        listed = gpus.processes_on(free)
    return [(process, gpus.describe(process)) for process in listed]


def foreign_gpus(
    warnings: List[str], foreign_gpu: str, found: List[host_facts.Gpu], held: List[leases.Entry]
) -> Dict[str, host_facts.BusyGpu]:
    """Return the GPUs that processes outside of jobs use, see ``gpus_busy``.

    If such GPUs can be shared (``foreign_gpu`` is ``warn``), or if the instance in use is unknown,
    add to ``warnings`` instead.
    """
    try:
        foreign = foreign_processes(found, held)
    except gpus.GpuError as error:
        warnings.append(f"cannot determine which processes use this host's GPUs: {error}")
        return {}
    split = {gpu["uuid"] for gpu in found if gpu["instances"]}
    indices = {uuid: gpu["index"] for gpu in found for uuid in [gpu["uuid"], *gpu["instances"]]}
    busy: Dict[str, List[str]] = {}
    for process, description in foreign:
        # In MIG mode, the driver may not list the instance.
        if foreign_gpu == "warn" or process["uuid"] in split:
            index = indices[process["uuid"]]
            warnings.append(
                f"GPU {index} is in use by {description}, which does not belong to a job"
            )
        else:
            busy.setdefault(process["uuid"], []).append(description)
    remedy = (
        "end that process, choose other GPUs (train_job_gpus), or share the GPU (-e "
        "train_job_foreign_gpu=warn)"
    )
    return {
        uuid: {"why": f"in use by {' and '.join(users)}", "remedy": remedy, "waits": False}
        for uuid, users in busy.items()
    }


def lacks_firewall() -> bool:
    """Return whether the role firewall ran on this host and its table is certainly not loaded."""
    if not os.path.exists(FIREWALL_RULES):
        return False
    root = os.geteuid() == 0  # other users cannot list tables
    command = "nft list table inet train" if root else "systemctl is-active " + FIREWALL_UNIT
    try:
        environment = {"PATH": SYSTEM_PATH, "LC_ALL": "C"}
        done = processes.run(command.split(), env=environment, timeout=FIREWALL_S)
    except (OSError, subprocess.TimeoutExpired):
        return False
    if root:
        return "No such file or directory" in done.stderr
    return done.stdout.strip() in ("inactive", "failed")


class Machine:
    """Facts that are read once for all ranks of a machine, because that takes long."""

    def __init__(self) -> None:
        self.ports = ports.listening()
        self._lacks: Dict[Tuple[str, str], bool] = {}

    def lacks(self, python: str, module: str) -> bool:
        """Return what the function ``lacks`` returns."""
        if (python, module) not in self._lacks:
            self._lacks[python, module] = lacks(python, module)
        return self._lacks[python, module]


def check(params: Params, machine: Machine) -> CallResult:
    """Check this host for a rank. Raise CallError if a rank cannot start on it.

    Return ``host`` (host_facts.HostFacts), ``lacks_framework``, the ``ranks`` of an earlier
    attempt on this host, and ``warnings``.

    Args:
        params: variables of the role with the same names; ``job``, empty if not chosen yet;
            ``host``, ``beside`` and ``names``, see ranks.find; ``port``, absent for a rank without
            one; ``framework``; ``gpus``, absent if the environment is not to be changed;
            ``modules``, imported by the script from packages; ``wait``, the seconds to wait for
            other jobs: with 0, resources that they hold are an error.
    """
    root, python, lease_dir = (
        rank_files.expand(params[n]) for n in ("root", "python", "lease_dir")
    )
    port = int(params["port"]) if "port" in params else None
    job, wait, framework = str(params["job"]), float(params["wait"]), str(params["framework"])
    if port is not None and not 1 <= port <= 65535:
        raise CallError(f"train_job_port is {port}, expected 1 to 65535")
    problems = check_job(root, job, int(params["attempt"]))
    left = job if params.get("avoids_preempted") else ""
    problems += check_preemption(root, left, str(params.get("preemption", metadata.OFF)))
    problems += check_space(root, int(params["min_free_mb"]))
    held = leases.holders(lease_dir)
    if port is not None:
        problems += check_port(port, job, held, wait, machine.ports)
    if not os.access(python, os.X_OK):
        problems.append(
            f"no such interpreter: {python}; {INSTALLS.get(framework, f'{_SETUP} to create it')}, "
            "or set train_job_python to another interpreter"
        )
    else:
        problems += check_noexec(python)
    if problems:
        raise CallError("; ".join(problems))

    warnings: List[str] = []
    if port is not None:
        ephemeral = processes.read_text("/proc/sys/net/ipv4/ip_local_port_range")
        lowest, highest = map(int, ephemeral.split())
        if lowest <= port <= highest:
            warnings.append(
                f"port {port} is in this host's ephemeral port range {lowest}-{highest}, so "
                "an outgoing connection may take it: choose a port below the range"
            )
        if lacks_firewall():
            warnings.append(
                "the table inet train of the role firewall is not loaded on this host, so any "
                f"host can connect to port {port}: run `{suggest('setup', tags='firewall')}`"
            )
    of_framework = environments.Framework({}, True)
    tensorflow = environments.TensorFlow(None, True)
    if framework == frameworks.TENSORFLOW:
        tensorflow = environments.tensorflow(python)
    elif framework in frameworks.PACKAGES:
        of_framework = environments.framework(python, framework)
    wanted: Any = params.get("gpus")
    if wanted == "auto" and not (tensorflow.takes_gpus and of_framework.takes_gpus):
        wanted = None
    found: List[host_facts.Gpu] = []
    try:
        found = gpus.list_gpus()
    except gpus.GpuError as error:
        warnings.append(f"this host's GPUs are not assigned to ranks: {error}")
    busy = leased_gpus(job, held, wait)
    if wanted not in (None, "none") and params["foreign_gpu"] != "ignore":
        asked = found
        if isinstance(wanted, list):
            names = {str(name) for name in wanted}
            asked = [g for g in found if names & {str(g["index"]), g["uuid"], *g["instances"]}]
        busy.update(foreign_gpus(warnings, params["foreign_gpu"], asked, held))
    for gpu in found if wanted == "auto" else ():
        for uuid in [gpu["uuid"], *gpu["instances"]]:
            if uuid in busy and not busy[uuid]["waits"]:
                warnings.append(f"GPU {gpu['index']} is skipped: it is {busy[uuid]['why']}")
    host: host_facts.HostFacts = {
        "address": params["address"],
        "port": port,
        "machine": processes.machine(),
        "root": root,
        "python": python,
        "tensorflow": tensorflow.version,
        "versions": of_framework.versions,
        "environment": environments.described(python),
        "missing_modules": environments.missing_modules(python, params["modules"]),
        "host_python": sys.executable,
        "cores": os.cpu_count() or 1,
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "gpus": found,
        "gpus_wanted": wanted,
        "gpus_busy": busy,
        "lease_dir": lease_dir,
    }
    if framework == frameworks.JAX:
        host["gloo_address"] = gloo.own_address()
    earlier: List[str] = []
    if int(params["attempt"]) > 1:
        earlier = ranks.find(root, params["host"], job, params["beside"], params["names"])
    return {
        "host": host,
        "lacks_framework": (
            framework != frameworks.NONE
            and tensorflow.version is None
            and framework not in of_framework.versions
            and machine.lacks(python, framework)
        ),
        "ranks": [ranks.identify(path, ranks.specification(path)) for path in earlier],
        "warnings": warnings,
    }


def check_all(params: Params) -> CallResult:
    """Check this host for several ranks, see ``check`` and ``call_types.for_each_rank``."""
    machine = Machine()
    return for_each_rank(params, lambda of_rank: check(of_rank, machine))
