#!/usr/bin/python
"""Checks a host before a rank starts on it.

It takes its arguments as JSONARGS modules do, in its own text, and imports nothing of Ansible's:
see train/gang/host_modules.py.
"""

from __future__ import annotations

DOCUMENTATION = r"""
module: rank_preflight
short_description: Check a host before a rank starts on it
description:
  - Looks at everything on a host that a rank needs, changes nothing, and fails with all that is
    wrong in one message.
options:
  root:
    description: Folder of the jobs on the host.
    type: path
    required: true
  job:
    description: Id of the job; empty when it is not chosen yet.
    type: str
    required: true
  attempt:
    description: Which start of the gang this is; from 2 on, the job is there already.
    type: int
    required: true
  python:
    description: Interpreter of the environment with TensorFlow.
    type: path
    required: true
  address:
    description: Name or address that the other ranks use for this one.
    type: str
    required: true
  port:
    description: TCP port of the rank; left out for a rank without one.
    type: int
  min_free_mb:
    description: Free space that the folder of the jobs must have, in MiB.
    type: int
    required: true
  gpus:
    description:
      - GPUs that the rank wants, V(auto), V(none), or a list of indices or UUIDs; left out for a
        rank whose environment is to be left alone. It is handed on to the plan, which alone knows
        the other ranks.
    type: raw
  lease_dir:
    description: Where the jobs of the machine note which of them has which port and GPU.
    type: path
    required: true
  wait:
    description:
      - Seconds that the job is to wait for ports and GPUs that other jobs have. With 0 they are an
        error.
    type: float
    required: true
  foreign_gpu:
    description:
      - What to do about a process on a GPU that belongs to no job, V(refuse) it, V(warn) of it, or
        V(ignore) it.
    type: str
    choices: [refuse, warn, ignore]
    required: true
attributes:
  check_mode:
    support: full
author: The maintainers
"""

EXAMPLES = r"""
- name: Check the host
  rank_preflight:
    root: ~/train
    job: digits-1
    attempt: 1
    python: ~/train/venv/bin/python
    address: 10.0.0.7
    port: 12345
    min_free_mb: 1024
    gpus: auto
    lease_dir: /tmp/train-leases
    wait: 0
    foreign_gpu: refuse
"""

RETURN = r"""
host:
  description:
    - What the host is. C(machine) is the same for two ranks of one machine, C(tensorflow) is null
      where the interpreter belongs to no virtual environment.
    - C(gpus) are the machine's NVIDIA GPUs with the UUIDs of their MIG instances. C(gpus_wanted) is
      what the rank wants; null where its environment is to be left alone, as with V(auto) and a
      TensorFlow that can use no GPU.
    - C(gpus_busy) tells of GPUs and MIG instances that are not to be had, by UUID, C(why), what
      would help (C(remedy)), and whether the job C(waits) for them.
  returned: success
  type: dict
  sample:
    address: 10.0.0.7
    port: 12345
    machine: 5f0c/node7/net
    root: /home/train/train
    python: /home/train/train/venv/bin/python
    tensorflow: 2.21.0
    host_python: /usr/bin/python3
    cores: 8
    memory_mb: 32000
    gpus:
      - index: 0
        uuid: GPU-6b0a3d6c-3a41-4f0e-9d2f-0c8a1f5f7e11
        instances: []
    gpus_wanted: auto
    gpus_busy: {}
    lease_dir: /tmp/train-leases
"""

import base64
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import time
from typing import Any

# Ansible puts the arguments here: <<INCLUDE_ANSIBLE_MODULE_JSON_ARGS>>
PARAMS = json.loads("<<INCLUDE_ANSIBLE_MODULE_COMPLEX_ARGS>>")
_archive = os.memfd_create("launcher")
os.write(_archive, base64.b64decode(PARAMS["launcher"]))
sys.path.insert(0, "/proc/self/fd/%d" % _archive)

from host import gpus, leases, processes, ranks, records

#: Seconds after which a process that has ended is off the driver's list.
SETTLE = 1.0
WAIT = "or wait for it (-e train_job_wait=SECONDS)"
#: What the role firewall leaves on a host: its rules, and the unit that loads them.
FIREWALL_RULES = "/etc/train-firewall/rules.nft"
FIREWALL_UNIT = "train-firewall.service"
#: Seconds that the answer may take; it is a matter of milliseconds.
FIREWALL_S = 5.0


def existing_parent(path: str) -> str:
    """Return ``path`` or the nearest folder above it that is there."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def check_job(root: str, job: str, attempt: int) -> list[str]:
    """Return what speaks against starting ``job`` under ``root``."""
    if not job or attempt > 1:
        return []
    job_dir = os.path.join(root, "jobs", job)
    if not os.path.isdir(job_dir):
        return []
    for path in ranks.rank_dirs(root, job):
        if ranks.observe(path)["phase"] in records.ALIVE_PHASES:
            return [
                f"job {job} is running already ({os.path.basename(path)}): attach to it, stop it, "
                "or choose another train_job_id"
            ]
    return [
        f"job {job} is there already, in {job_dir}: choose another train_job_id, or remove that "
        "folder"
    ]


def check_port(port: int, job: str, held: list[dict[str, Any]], wait: float) -> list[str]:
    """Return what speaks against binding ``port``; an earlier attempt of ``job`` does not.

    Args:
        held: the leases of this machine.
        wait: seconds to wait for other jobs.
    """
    for lease in held:
        if lease["resource"] == f"port/{port}":
            if wait or (lease["job"] == job and lease["own"]):
                return []
            return [
                f"port {port} is {leases.whose(lease)}: stop that job, choose another "
                f"train_job_port, {WAIT}"
            ]
    if processes.can_bind(port) and not processes.is_listening(port):
        return []
    return [
        f"port {port} is in use by {processes.listener(port)}: end it or choose another "
        "train_job_port"
    ]


def check_space(root: str, min_free_mb: int) -> list[str]:
    """Return what is wrong with the folder of the jobs."""
    parent = existing_parent(root)
    if not os.access(parent, os.W_OK | os.X_OK):
        return [f"{parent} is not writable: choose another train_job_root"]
    free_mb = shutil.disk_usage(parent).free // 2**20
    if free_mb < min_free_mb:
        return [
            f"{parent} has {free_mb} MiB free, the limit is {min_free_mb} MiB "
            "(train_job_min_free_mb): make space or choose another train_job_root"
        ]
    return []


def installed_tensorflow(python: str) -> tuple[str | None, bool]:
    """Return the version of TensorFlow in the virtual environment of ``python``.

    Also whether it may use GPUs: what is not known as a build for CPUs may.
    """
    environment = os.path.dirname(os.path.dirname(python))
    # What the role tensorflow leaves, also in an environment on top of another one.
    try:
        marker = records.read_json(os.path.join(environment, "tensorflow-venv.json"))
    except (OSError, ValueError):
        marker = None
    if marker is not None:
        return str(marker.get("version")), marker.get("variant") != "cpu"
    pattern = os.path.join(environment, "lib/python3*/site-packages/tensorflow*.dist-info")
    for path in glob.glob(pattern):
        found = re.fullmatch(r"tensorflow(_cpu)?-(.+)\.dist-info", os.path.basename(path))
        if found:
            return found.group(2), found.group(1) is None
    return None, True


def leased_gpus(job: str, held: list[dict[str, Any]], wait: float) -> dict[str, dict[str, Any]]:
    """Return the GPUs and MIG instances that other jobs than ``job`` have; see ``gpus_busy``."""
    remedy = f"stop that job, name other GPUs (train_job_gpus), {WAIT}"
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
    found: list[dict[str, Any]], held: list[dict[str, Any]]
) -> list[tuple[dict[str, Any], str]]:
    """Return the processes on GPUs that no job has, each with a description.

    Raises:
        GpuError: the driver does not tell.
    """
    leased = {uuid for lease in held for uuid in lease["resource"].split("/")[1:]}
    free = []
    for gpu in found:
        # Where an instance is leased, what is listed for the GPU as a whole may be there.
        if not leased & {gpu["uuid"], *gpu["instances"]}:
            free += [gpu["uuid"], *gpu["instances"]]
        elif gpu["uuid"] not in leased:
            free += [uuid for uuid in gpu["instances"] if uuid not in leased]
    listed = gpus.processes_on(free)
    if not all(os.path.exists(f"/proc/{process['pid']}") for process in listed):
        time.sleep(SETTLE)
        listed = gpus.processes_on(free)
    return [(process, gpus.describe(process)) for process in listed]


def asked_for(wanted: Any, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the GPUs that a rank may get a part of."""
    if not isinstance(wanted, list):
        return found
    named = {str(name) for name in wanted}
    return [g for g in found if named & {str(g["index"]), g["uuid"], *g["instances"]}]


def look_for_others(
    warnings: list[str], found: list[dict[str, Any]], held: list[dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the GPUs that processes without a job are on; see ``gpus_busy``.

    Those that are not to be refused are only warned of, in ``warnings``.
    """
    try:
        foreign = foreign_processes(found, held)
    except gpus.GpuError as error:
        warnings.append(f"the processes on this host's GPUs are not known: {error}")
        return {}
    split = {gpu["uuid"] for gpu in found if gpu["instances"]}
    indices = {uuid: gpu["index"] for gpu in found for uuid in [gpu["uuid"], *gpu["instances"]]}
    busy: dict[str, list[str]] = {}
    for process, told in foreign:
        # Of a GPU in MIG mode the driver may not tell which instance it is.
        if PARAMS["foreign_gpu"] == "warn" or process["uuid"] in split:
            warnings.append(
                f"GPU {indices[process['uuid']]} is in use by {told}, which is no job's"
            )
        else:
            busy.setdefault(process["uuid"], []).append(told)
    remedy = (
        "end it, name other GPUs (train_job_gpus), or train beside it (-e "
        "train_job_foreign_gpu=warn)"
    )
    return {
        uuid: {"why": f"in use by {' and '.join(told)}", "remedy": remedy, "waits": False}
        for uuid, told in busy.items()
    }


def lacks_firewall() -> bool:
    """Return whether the role firewall set this host up and its table is known not to be loaded.

    Only root can list tables; others ask for the state of the unit that loads it.
    """
    if not os.path.exists(FIREWALL_RULES):
        return False
    root = os.geteuid() == 0
    look = "nft list table inet train" if root else "systemctl is-active " + FIREWALL_UNIT
    try:
        done = subprocess.run(
            look.split(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
            env={"PATH": "/usr/sbin:/sbin:/usr/bin:/bin", "LC_ALL": "C"},
            timeout=FIREWALL_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    if root:
        return "No such file or directory" in done.stderr
    return done.stdout.strip() in ("inactive", "failed")


class PreflightError(Exception):
    """What is wrong with the host, and what helps; the module's ``msg``."""


def look(warnings: list[str]) -> dict[str, Any]:
    """Return what the host is; what is odd is added to ``warnings``.

    Raises:
        PreflightError: a rank cannot start on it.
    """
    root, python, lease_dir = (
        os.path.abspath(os.path.expanduser(os.path.expandvars(PARAMS[name])))
        for name in ("root", "python", "lease_dir")
    )
    port = int(PARAMS["port"]) if "port" in PARAMS else None
    job, wait = str(PARAMS["job"]), float(PARAMS["wait"])
    if port is not None and not 1 <= port <= 65535:
        raise PreflightError(f"train_job_port is {port}, the limits are 1 and 65535")
    problems = check_job(root, job, int(PARAMS["attempt"]))
    problems += check_space(root, int(PARAMS["min_free_mb"]))
    held = leases.holders(lease_dir)
    if port is not None:
        problems += check_port(port, job, held, wait)
    if not os.access(python, os.X_OK):
        problems.append(
            f"there is no interpreter {python}: run playbooks/setup.yml first or set "
            "train_job_python"
        )
    if problems:
        raise PreflightError("; ".join(problems))

    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as stream:
        lowest, highest = map(int, stream.read().split())
    if port is not None and lowest <= port <= highest:
        warnings.append(
            f"port {port} lies in this host's ephemeral range {lowest}-{highest}: an outgoing "
            "connection can take it; choose one below"
        )
    if port is not None and lacks_firewall():
        warnings.append(
            "the table inet train of the role firewall is not loaded on this host, so whoever "
            f"reaches port {port} may connect: run playbooks/setup.yml --tags firewall"
        )
    tensorflow, takes_gpus = installed_tensorflow(python)
    wanted: Any = PARAMS.get("gpus")
    if wanted == "auto" and not takes_gpus:
        wanted = None
    found: list[dict[str, Any]] = []
    try:
        found = gpus.look()
    except gpus.GpuError as error:
        warnings.append(f"this host's GPUs are not shared out: {error}")
    busy = leased_gpus(job, held, wait)
    if wanted not in (None, "none") and PARAMS["foreign_gpu"] != "ignore":
        busy.update(look_for_others(warnings, asked_for(wanted, found), held))
    if wanted == "auto":
        for gpu in found:
            for uuid in [gpu["uuid"], *gpu["instances"]]:
                if uuid in busy and not busy[uuid]["waits"]:
                    warnings.append(f"GPU {gpu['index']} is left out: it is {busy[uuid]['why']}")
    return {
        "address": PARAMS["address"],
        "port": port,
        "machine": processes.machine(),
        "root": root,
        "python": python,
        "tensorflow": tensorflow,
        "host_python": sys.executable,
        "cores": os.cpu_count(),
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "gpus": found,
        "gpus_wanted": wanted,
        "gpus_busy": busy,
        "lease_dir": lease_dir,
    }


def main() -> None:
    """Run the module."""
    warnings: list[str] = []
    try:
        print(json.dumps({"host": look(warnings), "warnings": warnings}))
    except PreflightError as error:
        print(json.dumps({"failed": True, "msg": str(error)}))
        sys.exit(1)


if __name__ == "__main__":
    main()
