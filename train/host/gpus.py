"""The NVIDIA GPUs of this machine, as its driver names them.

Standard library only, Python 3.8 and newer. Nothing is imported that would open a GPU, and nothing
is changed.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
from typing import Any, Dict, List

#: Where a driver shows itself. A container has the GPUs in it that it was given.
DEV = "/dev"
PROC = "/proc/driver/nvidia"
#: Longest answer of nvidia-smi, in seconds: without the persistence daemon it wakes every GPU.
LIMIT_S = 60.0
_GPU = re.compile(r"GPU (\d+): .*\(UUID: (GPU-[^)]+)\)")
_INSTANCE = re.compile(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)")


class GpuError(Exception):
    """There is a driver that does not tell its GPUs; the message says why."""


def present() -> bool:
    """Tell whether something shows an NVIDIA driver; reads two folders."""
    nodes = glob.glob(os.path.join(DEV, "nvidia[0-9]*"))
    return bool(nodes) or os.path.exists(os.path.join(PROC, "version"))


def look() -> List[Dict[str, Any]]:
    """Return the GPUs in the order of their indices, which is that of their PCI addresses.

    Each has ``index`` (int), ``uuid``, and ``instances``, the UUIDs of its MIG instances. Where no
    driver shows itself, or no ``nvidia-smi`` is there to ask, there are none.

    Raises:
        GpuError: nvidia-smi fails.
    """
    program = shutil.which("nvidia-smi") if present() else None
    if program is None:
        return []
    try:
        done = subprocess.run(
            [program, "-L"],  # of all its listings the one with MIG instances
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GpuError("%s does not answer: %s" % (program, error)) from None
    lines = done.stdout.decode(errors="replace").splitlines()
    if done.returncode:
        said = [line.strip() for line in lines if line.strip()]
        raise GpuError("%s fails: %s" % (program, said[-1] if said else done.returncode))
    return parse(lines)


def parse(lines: List[str]) -> List[Dict[str, Any]]:
    """Return the GPUs that the lines of ``nvidia-smi -L`` name; see ``look``."""
    gpus: List[Dict[str, Any]] = []
    for line in lines:
        gpu, instance = _GPU.match(line), _INSTANCE.match(line)
        if gpu:
            gpus.append({"index": int(gpu.group(1)), "uuid": gpu.group(2), "instances": []})
        elif instance and gpus:
            gpus[-1]["instances"].append(instance.group(1))
    return sorted(gpus, key=lambda found: int(found["index"]))
