"""The host's Python, and the lock that is for this host."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any, Dict, List, Tuple

from . import gpus
from .programs import SetupError, ending, numbers, tail

PROBE = "import platform, sys, venv; print(sys.executable); print(platform.python_version())"


def choose_lock(locks: List[Dict[str, Any]], variant: str) -> Dict[str, Any]:
    """The lock for this host; a single one is for every host that does not ask for the other."""
    by_variant = {lock["variant"]: lock for lock in locks}
    if variant == "auto" and len(locks) == 1:
        return locks[0]
    if variant == "auto":
        variant = "gpu" if gpus.present() else "cpu"
    if variant not in by_variant:
        offered = ", ".join(f"{lock['path']} ({lock['variant']})" for lock in locks)
        raise SetupError(
            f"tensorflow_variant is {variant}, but the lock is {offered}. Set tensorflow_variant to"
            f" auto, or tensorflow_requirements to a lock for {variant}."
        )
    return by_variant[variant]


def find_python(command: str, supported: List[str]) -> Tuple[str, str]:
    """The host's Python, its path and version, if it will do."""
    oldest, newest = supported
    remedy = (
        f"Install a complete Python {oldest} to {newest} (Debian: python3, not python3-minimal) and"
        " set tensorflow_python to it."
    )
    program = shutil.which(os.path.expanduser(command))
    if program is None:
        raise SetupError(
            f"tensorflow_python: there is no program {command!r} on this host. {remedy}"
        )
    done = subprocess.run([program, "-I", "-c", PROBE], capture_output=True, check=False)
    answer = done.stdout.decode(errors="replace").splitlines()
    if done.returncode or len(answer) != 2:
        raise SetupError(
            f"tensorflow_python: {program} is no Python 3 with the module venv"
            f" ({ending(done.returncode)}). {remedy}\n{tail(done.stderr)}"
        )
    if not numbers(oldest) <= numbers(answer[1])[:2] <= numbers(newest):
        raise SetupError(
            f"tensorflow_python: {program} is Python {answer[1]}; the locked TensorFlow needs"
            f" {oldest} to {newest}. {remedy}"
        )
    return answer[0], answer[1]
