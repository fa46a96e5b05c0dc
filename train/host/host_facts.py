"""Facts about a host that decide whether and how a rank can run there."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, TypedDict


class Gpu(TypedDict):
    """A GPU of a machine, with the UUIDs of its MIG instances."""

    index: int
    uuid: str
    instances: List[str]


class BusyGpu(TypedDict):
    """Why a GPU is not available, what to do about that, and whether the job waits for the GPU."""

    why: str
    remedy: str
    waits: bool


class Environment(TypedDict):
    """An environment of the role tensorflow, to which packages can be added."""

    root: str  # the folder that contains its link
    framework: str  # "tensorflow", "jax", or "none" for an environment without packages
    variant: str  # "cpu", "gpu", or "any" without a framework
    python_series: str  # such as "3.11"
    lock_sha256: str  # hash of its lock file
    package_environments: List[str]  # links next to its own, to environments based on it


class _HostFacts(TypedDict):
    machine: str  # the same for two ranks of one machine
    address: str
    cores: int
    memory_mb: int
    port: Optional[int]
    root: str
    python: str
    host_python: str
    lease_dir: str
    tensorflow: Optional[str]  # None if not found in the interpreter's environment
    environment: Optional[Environment]  # None if the role tensorflow did not create it
    missing_modules: Optional[List[str]]  # modules that the script imports; None if unknown
    gpus: List[Gpu]
    gpus_wanted: Any  # None if the environment is not to be changed
    gpus_busy: Dict[str, BusyGpu]  # GPUs that are not free, by UUID


class HostFacts(_HostFacts, total=False):
    """Facts about a host that matter to a rank. Jobs of older versions lack the last ones."""

    versions: Dict[str, str]  # of the packages of the job's framework, except TensorFlow's
    gloo_address: str  # with JAX: the address on which gloo listens; empty if there is none


class OtherPython(TypedDict):
    """An interpreter of a version for which TensorFlow has wheels."""

    path: str
    version: str


class Suitability(TypedDict):
    """Facts that decide whether TensorFlow can be installed and used on a host.

    An empty string means missing or unknown.
    """

    machine: str  # the architecture, such as x86_64
    has_avx: bool
    nvidia: str  # ``driver``, or ``device`` for a GPU without one
    host_python: str  # version of the Python that ran the check
    os_id: str  # ID, ID_LIKE and VERSION_ID of os-release(5)
    os_like: str
    os_version: str
    os_name: str
    interpreter: str  # the interpreter for environments
    python_version: str  # and its version
    implementation: str
    bits: int
    free_threaded: bool
    has_venv: bool
    glibc: str  # such as ``glibc 2.31``
    python_error: str  # why it could not be run
    others: List[OtherPython]  # suitable interpreters, if that one is unsuitable
    root: str  # the folder for environments
    parent: str  # the nearest existing folder
    obstacle: str  # a file or a dangling link below it that prevents the folder
    write_error: str
    is_noexec: bool
    mount_point: str
    mount_options: str
    free_mb: int  # in units of 10^6 bytes
    is_installed: bool  # whether an environment exists
