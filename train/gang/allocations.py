"""The nodes that a batch system has allocated to the job of this process: Slurm, PBS or LSF.

They are read from the environment of the batch job, and returned as a host list with slots. Each
task of a node is one slot.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from train.gang import host_slots
from train.gang.errors import UserError
from train.gang.host_slots import HostSlots

#: The batch systems.
SYSTEMS = ("slurm", "pbs", "lsf")
#: Maximum number of nodes of an allocation.
MAX_NODES = 65_536
#: The blocks of ports, of which each batch job uses one. Its number chooses the block, because jobs
#: may share a node.
_FIRST_PORT, _BLOCK, _BLOCKS = 20_000, 16, 625
_PROGRAM_LIMIT = 10.0

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_COUNT = re.compile(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?")
_BRACKETS = re.compile(r"([^][,]*)\[([^][]*)\]")
#: GPUs of nodes in the output of ``scontrol show job --details``.
_DETAILS = re.compile(r"^\s*Nodes=(\S+) .*?\bGRES=(\S+)", re.MULTILINE)
_GPUS = re.compile(r"\bgpu(?::[^,():]+)*\(IDX:([0-9,-]+)\)")

#: Runs a program of the batch system and returns its output, or None if that is not possible.
Program = Callable[[Sequence[str]], str | None]


@dataclass(frozen=True)
class Allocation:
    """The allocation of a batch job.

    Attributes:
        system: one of SYSTEMS.
        job: the id of the batch job.
        hosts: its nodes.
        restarts: number of times that the batch system has restarted the job.
    """

    system: str
    job: str
    hosts: tuple[HostSlots, ...]
    restarts: int = 0


def run_program(words: Sequence[str]) -> str | None:
    """Run a program and return its output, or None if it does not exist or fails."""
    program = shutil.which(words[0])
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, *words[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROGRAM_LIMIT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout


def read(system: str, environment: Mapping[str, str], program: Program = run_program) -> Allocation:
    """Return the allocation of this process.

    Args:
        system: one of SYSTEMS.
        environment: the variables that the batch system sets.
        program: runs programs of the batch system.

    Raises:
        UserError: there is no allocation, or its description is malformed.
    """
    if system == "slurm":
        return _slurm(environment, program)
    return _pbs(environment) if system == "pbs" else _lsf(environment)


def expand(text: str) -> list[str]:
    """Return the names in a node list of Slurm, such as ``gpu[01-03,7],login``.

    Raise UserError if the list is malformed.
    """
    names: list[str] = []
    for part in _parts(text):
        # A prefix with a range of numbers, any number of times, and a suffix.
        rest = _BRACKETS.sub("", part)
        if "[" in rest or "]" in rest or not part:
            raise UserError(f"the node list {text!r} is malformed near {part!r}")
        pieces: list[list[str]] = []
        for prefix, numbers in _BRACKETS.findall(part):
            pieces += [[prefix], _numbers(numbers, text)]
        pieces.append([part[part.rfind("]") + 1 :]])
        size = 1
        for piece in pieces:
            size *= len(piece)
        if len(names) + size > MAX_NODES:
            raise UserError(f"the node list {text!r} has more than {MAX_NODES} nodes")
        names += map("".join, itertools.product(*pieces))
    return names


def counts(text: str) -> list[int]:
    """Return the numbers in a list of Slurm: 2, 2, 2 and 1 for ``2(x3),1``.

    Raise UserError if the list is malformed.
    """
    numbers: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part)
        if match is None:
            raise UserError(f"the list of numbers {text!r} is malformed near {part!r}")
        numbers += [int(match[1])] * int(match[2] or 1)
        if len(numbers) > MAX_NODES:
            raise UserError(f"the list of numbers {text!r} has more than {MAX_NODES} entries")
    return numbers


def gpus_of_nodes(details: str) -> dict[str, list[str]]:
    """Return the indices of a job's GPUs by node, from ``scontrol show job --details``."""
    found: dict[str, list[str]] = {}
    for nodes, resources in _DETAILS.findall(details):
        indices = [
            number for text in _GPUS.findall(resources) for number in _numbers(text, resources)
        ]
        found |= dict.fromkeys(expand(nodes), indices)
    return found


def _parts(text: str) -> list[str]:
    """Split a node list at the commas outside of brackets."""
    return re.split(r",(?![^[\]]*\])", text)


def _numbers(text: str, whole: str) -> list[str]:
    """Return the numbers in ranges such as ``01-03,7``, with their leading zeros.

    Raise UserError, which shows ``whole``, if a range is malformed.
    """
    numbers: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if int(first) > int(last):
            raise UserError(f"{whole!r} is malformed near {part!r}")
        if int(last) - int(first) >= MAX_NODES:
            raise UserError(f"the range {part!r} has more than {MAX_NODES} numbers")
        numbers += [f"{n:0{len(first)}}" for n in range(int(first), int(last) + 1)]
    return numbers


def _slurm(environment: Mapping[str, str], program: Program) -> Allocation:
    job = _required("Slurm", environment, "SLURM_JOB_ID", "sbatch or salloc")
    nodes = _required("Slurm", environment, "SLURM_JOB_NODELIST", "sbatch or salloc")
    shown = program(["scontrol", "show", "hostnames", nodes])
    names = shown.split() if shown else expand(nodes)
    slots = [1] * len(names)
    # For a job without a number of tasks, Slurm counts the cores of whole nodes.
    if any(name in environment for name in ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE")):
        text = environment.get("SLURM_TASKS_PER_NODE", "")
        slots = counts(text)
        if len(slots) != len(names):
            raise UserError(
                f"SLURM_TASKS_PER_NODE ({text}) describes {len(slots)} nodes, but "
                f"SLURM_JOB_NODELIST ({nodes}) has {len(names)}"
            )
    gpus = _slurm_gpus(environment, job, program)
    hosts = [
        replace(_host(name, count), gpus=tuple(gpus.get(name, ())))
        for name, count in zip(names, slots, strict=True)
        if count
    ]
    restarts = environment.get("SLURM_RESTART_COUNT", "0")
    return _allocation("slurm", job, hosts, int(restarts) if restarts.isdecimal() else 0)


def _slurm_gpus(
    environment: Mapping[str, str], job: str, program: Program
) -> Mapping[str, Sequence[str]]:
    """Return the indices of the job's GPUs by node; empty if the job can use all visible GPUs.

    On most clusters, a job sees only its own GPUs. They are then numbered from 0, and the indices
    of Slurm would be wrong.
    """
    allocated = environment.get("SLURM_GPUS_ON_NODE", "")
    if not (environment.get("SLURM_JOB_GPUS") and allocated.isdecimal()):
        return {}
    visible = program(["nvidia-smi", "--list-gpus"])
    if visible is None or len(visible.splitlines()) <= int(allocated):
        return {}
    found = gpus_of_nodes(program(["scontrol", "show", "job", "--details", job]) or "")
    node = environment.get("SLURMD_NODENAME", "")
    return found or {node: _numbers(environment["SLURM_JOB_GPUS"], "SLURM_JOB_GPUS")}


def _pbs(environment: Mapping[str, str]) -> Allocation:
    job = _required("PBS", environment, "PBS_JOBID", "qsub")
    path = Path(_required("PBS", environment, "PBS_NODEFILE", "qsub"))
    return _allocation("pbs", job, _file("PBS_NODEFILE", path))


def _lsf(environment: Mapping[str, str]) -> Allocation:
    job = _required("LSF", environment, "LSB_JOBID", "bsub")
    if "LSB_DJOB_HOSTFILE" in environment:
        path = Path(environment["LSB_DJOB_HOSTFILE"])
        return _allocation("lsf", job, _file("LSB_DJOB_HOSTFILE", path))
    if "LSB_MCPU_HOSTS" in environment:
        text = environment["LSB_MCPU_HOSTS"]
        words = text.split()
        if len(words) % 2 or not all(word.isdecimal() for word in words[1::2]):
            raise UserError(f"LSB_MCPU_HOSTS ({text}) is malformed: expected HOST SLOTS HOST SLOTS")
        pairs = zip(words[::2], words[1::2], strict=True)
        return _allocation("lsf", job, [_host(name, int(count)) for name, count in pairs])
    names = _required("LSF", environment, "LSB_HOSTS", "bsub").split()
    slots = {name: names.count(name) for name in dict.fromkeys(names)}
    return _allocation("lsf", job, [_host(name, count) for name, count in slots.items()])


def _required(system: str, environment: Mapping[str, str], name: str, commands: str) -> str:
    value = environment.get(name, "").strip()
    if not value:
        raise UserError(
            f"{name} is not set, so this is not a batch job of {system}: run the command in a job "
            f"of {commands}, or list the hosts with --hosts"
        )
    return value


def _file(variable: str, path: Path) -> list[HostSlots]:
    try:
        return host_slots.read_file(path)
    except OSError as error:
        raise UserError(f"cannot read {path} ({variable}): {error.strerror}") from None


def _host(name: str, slots: int) -> HostSlots:
    """Return a node with its slots. Raise UserError if its name or number of slots is invalid."""
    (entry,) = host_slots.parse_list(f"{name} slots={slots}") if slots else (HostSlots(name, 0),)
    return entry


def _allocation(system: str, job: str, hosts: Sequence[HostSlots], restarts: int = 0) -> Allocation:
    """Return an allocation whose ranks use the batch job's block of ports.

    Raise UserError if it has no hosts.
    """
    if not hosts:
        raise UserError(f"the allocation of job {job} has no tasks")
    number = re.match(r"[0-9]+", job)
    block = int(number[0]) % _BLOCKS if number else 0
    port = _FIRST_PORT + block * _BLOCK
    return Allocation(system, job, tuple(replace(host, port=port) for host in hosts), restarts)
