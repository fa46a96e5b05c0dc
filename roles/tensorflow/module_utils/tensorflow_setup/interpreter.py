"""The host's Python, and the lock that is for this host."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from typing import Any, Dict, List, NamedTuple, Tuple

from . import gpus
from .programs import SetupError, tail

PROBE = """
import importlib.util, json, platform, sys
print(json.dumps({
    "executable": sys.executable,
    "version": platform.python_version(),
    "has_venv": importlib.util.find_spec("venv") is not None,
    "system": " ".join((platform.system(), platform.machine()) + platform.libc_ver()),
}))
"""


class Lock(NamedTuple):
    """One lock file, as the control node has read it."""

    path: str
    variant: str
    version: str
    sha256: str
    imports: List[str]


class Interpreter(NamedTuple):
    """The host's Python."""

    executable: str
    version: str
    has_venv: bool
    system: str

    @property
    def short(self) -> str:
        """Major and minor version as they are written, e.g. ``3.11``."""
        return ".".join(self.version.split(".")[:2])


def choose_lock(locks: List[Dict[str, Any]], variant: str) -> Lock:
    """The lock for this host; a single one is for every host that does not ask for the other."""
    by_variant = {entry["variant"]: Lock(**entry) for entry in locks}
    if variant == "auto":
        if len(by_variant) == 1:
            return next(iter(by_variant.values()))
        variant = "gpu" if gpus.present() else "cpu"
    if variant not in by_variant:
        offered = ", ".join(f"{lock.path} ({lock.variant})" for lock in by_variant.values())
        raise SetupError(
            f"tensorflow_variant is {variant}, but the lock is {offered}. Set tensorflow_variant to"
            f" auto, or tensorflow_requirements to a lock for {variant}."
        )
    return by_variant[variant]


def examine_python(command: str, supported: List[str], lock: Lock) -> Interpreter:
    """Find out what the host's Python is, and whether it will do."""
    if len(supported) != 2 or not all(re.fullmatch(r"\d+\.\d+", limit) for limit in supported):
        raise SetupError(
            f"tensorflow_python_supported is {supported}: write the oldest and the newest Python,"
            ' such as ["3.10", "3.13"].'
        )
    oldest, newest = (_numbers(limit) for limit in supported)
    limits = f"{supported[0]} to {supported[1]}"
    others = [shutil.which(f"python3.{minor}") for minor in range(oldest[1], newest[1] + 1)]
    there = ", ".join(path for path in others if path)
    remedy = f"Install Python {limits} and set tensorflow_python to it"
    remedy += f" (this host has {there})." if there else "."
    program = shutil.which(os.path.expanduser(command))
    if program is None:
        raise SetupError(
            f"tensorflow_python: there is no program {command!r} on this host. {remedy}"
        )
    done = subprocess.run([program, "-I", "-c", PROBE], capture_output=True, check=False)
    try:
        python = Interpreter(**json.loads(done.stdout))
    except (ValueError, TypeError):
        raise SetupError(
            f"tensorflow_python: {program} is no Python 3 (exit code {done.returncode})."
            f" {remedy}\n{tail(done.stderr)}"
        ) from None
    if not oldest <= _numbers(python.short) <= newest:
        raise SetupError(
            f"tensorflow_python: {program} is Python {python.version}; TensorFlow {lock.version}"
            f" needs {limits}. {remedy}"
        )
    if not python.has_venv:
        raise SetupError(
            f"tensorflow_python: {program} has no module venv, which is part of Python's standard"
            " library. Install the complete one (Debian: python3, not python3-minimal), or set"
            " tensorflow_python to another."
        )
    return python


def _numbers(version: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
