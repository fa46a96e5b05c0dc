"""The GPUs that the driver shows, and why TensorFlow may see fewer."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
from typing import List, NamedTuple, Optional, Tuple

from .programs import TAIL_LINES, tail

#: The driver's files. In a container they show the GPUs that it was given.
PROC = "/proc/driver/nvidia"
DEV = "/dev"
#: Longest run of nvidia-smi, in seconds; it initialises every GPU.
SMI_LIMIT_S = 120.0


class Driver(NamedTuple):
    """The driver in use."""

    version: str  # empty where it is not known
    gpus: int  # how many it shows, one or more


def present() -> bool:
    """Whether something shows an NVIDIA driver."""
    return os.path.exists(os.path.join(DEV, "nvidia0")) or os.path.exists(
        os.path.join(PROC, "version")
    )


def detect() -> Optional[Driver]:
    """The driver and its GPUs, None where there are none. Reads files alone, as a rule."""
    try:
        count = len(os.listdir(os.path.join(PROC, "gpus")))
    except OSError:
        count = _count_by_program() if present() else 0
    return Driver(_version(), count) if count else None


def _version() -> str:
    try:
        with open(os.path.join(PROC, "version"), encoding="utf-8", errors="replace") as stream:
            found = re.search(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", stream.read(), re.M)
    except OSError:
        return ""
    return found.group(1) if found else ""


def _count_by_program() -> int:
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    try:
        done = subprocess.run(
            [program, "-L"], capture_output=True, check=False, timeout=SMI_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return len(re.findall(rb"^GPU \d+:", done.stdout, re.M)) if not done.returncode else 0


def explain(driver: Driver, minimum: str, errors: bytes) -> str:
    """Why TensorFlow, which wrote ``errors``, sees fewer GPUs than the driver, and what helps."""
    causes = []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        causes.append(
            f"CUDA_VISIBLE_DEVICES is {visible!r} in the environment of this login: remove it"
            " there (/etc/environment, ~/.ssh/environment, the shell's files)"
        )
    if _older(driver.version, minimum):
        causes.append(
            f"the driver {driver.version} is older than {minimum}: install a newer one (role"
            " nvidia_driver)"
        )
    if re.search(rb"dlopen|Could not load dynamic library|cannot open shared object", errors):
        causes.append(
            "TensorFlow does not find its CUDA libraries: make the lock with"
            " tensorflow[and-cuda], and set no LD_LIBRARY_PATH that leads to others"
        )
    nodes = len(glob.glob(os.path.join(DEV, "nvidia[0-9]*")))
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
    lines: List[bytes] = [line for line in errors.splitlines() if pattern.search(line)]
    return tail(b"\n".join(lines[-TAIL_LINES:]) if lines else errors)


def _older(version: str, minimum: str) -> bool:
    return bool(version) and _numbers(version) < _numbers(minimum)


def _numbers(version: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
