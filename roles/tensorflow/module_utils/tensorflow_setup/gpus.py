"""The GPUs that the driver shows, and why TensorFlow may see fewer."""

from __future__ import annotations

import glob
import os
import re
from contextlib import suppress
from typing import NamedTuple, Optional

from .programs import numbers, tail

#: The driver's files. In a container they show the GPUs that it was given.
PROC = "/proc/driver/nvidia"
DEV = "/dev"


class Driver(NamedTuple):
    """The driver in use."""

    version: str  # empty where it is not known
    gpus: int  # how many it shows, one or more


def present() -> bool:
    """Whether something shows an NVIDIA driver."""
    return any(os.path.exists(path) for path in (f"{DEV}/nvidia0", f"{PROC}/version"))


def detect() -> Optional[Driver]:
    """The driver and its GPUs, None where there are none. Reads files alone."""
    try:
        count = len(os.listdir(os.path.join(PROC, "gpus")))
    except OSError:
        count = _device_files()
    path, version = os.path.join(PROC, "version"), None
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as stream:
        version = re.search(
            r"^NVRM version:.*?\s([0-9]+\.[0-9]+(?:\.[0-9]+)?)\s", stream.read(), re.M
        )
    return Driver(version.group(1) if version else "", count) if count else None


def _device_files() -> int:
    return len(glob.glob(os.path.join(DEV, "nvidia[0-9]*")))


def explain(driver: Driver, minimum: str, errors: bytes) -> str:
    """Why TensorFlow, which wrote ``errors``, sees fewer GPUs than the driver, and what helps."""
    causes = []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        causes.append(
            f"CUDA_VISIBLE_DEVICES is {visible!r} in the environment of this login: remove it"
            " there (/etc/environment, ~/.ssh/environment, the shell's files)"
        )
    if driver.version and numbers(driver.version) < numbers(minimum):
        causes.append(
            f"the driver {driver.version} is older than {minimum}: install a newer one (role"
            " nvidia_driver)"
        )
    if re.search(rb"dlopen|Could not load dynamic library|cannot open shared object", errors):
        causes.append(
            "TensorFlow does not find its CUDA libraries: make the lock with"
            " tensorflow[and-cuda], and set no LD_LIBRARY_PATH that leads to others"
        )
    nodes = _device_files()
    if nodes < driver.gpus:
        causes.append(
            f"there are {nodes} device files {DEV}/nvidia* for {driver.gpus} GPUs: start a"
            " container with all of them (--gpus all); on a host, nvidia-smi makes them"
        )
    if not causes:
        causes.append(
            "see nvidia-smi and the last lines; of GPUs in MIG mode, CUDA shows a process one"
            " instance"
        )
    return "; ".join(causes)


def relevant(errors: bytes) -> str:
    """Those of TensorFlow's last lines that are about GPUs; the last lines where none is."""
    pattern = re.compile(rb"cuda|cudnn|nccl|gpu|nvidia|dlopen|dynamic library", re.I)
    lines = [line for line in errors.splitlines() if pattern.search(line)]
    return tail(b"\n".join(lines) if lines else errors)
