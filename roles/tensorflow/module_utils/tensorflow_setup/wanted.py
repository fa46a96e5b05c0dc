"""What is wanted on this host, with its Python and its lock, and how much of it is there."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from typing import Any, Dict, List, NamedTuple, Tuple

from . import gpus
from .programs import SetupError, ending, numbers, tail

MARKER = "tensorflow-venv.json"
#: Without symbolic links: an environment made through one, as uv makes them, may not find the
#: standard library. Without the module venv, most of that is missing, as in python3-minimal.
PROBE = """\
import os, platform, sys, venv
print(os.path.realpath(sys.executable))
print(platform.python_version())
"""


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
            f"tensorflow_python: {program} is not a complete Python 3"
            f" ({ending(done.returncode)}). {remedy}\n{tail(done.stderr)}"
        )
    if not numbers(oldest) <= numbers(answer[1])[:2] <= numbers(newest):
        raise SetupError(
            f"tensorflow_python: {program} is Python {answer[1]}; the locked TensorFlow needs"
            f" {oldest} to {newest}. {remedy}"
        )
    return answer[0], answer[1]


def read_marker(folder: str) -> Dict[str, Any]:
    """The marker of a finished environment, empty for anything else."""
    try:
        with open(os.path.join(folder, MARKER), encoding="utf-8") as stream:
            marker = json.load(stream)
    except (OSError, ValueError):
        return {}
    return marker if isinstance(marker, dict) and "requirements_sha256" in marker else {}


class Environment(NamedTuple):
    """An environment under ``venvs/``, made from one lock file."""

    part: str  # "tensorflow", or "extra" for packages on top of it
    folder: str
    packages: str  # the folder of its packages
    sha256: str  # of the lock file
    lock: str  # that file on the control node, for messages

    @property
    def name(self) -> str:
        """The folder's name, by which others refer to it."""
        return os.path.basename(self.folder)

    @property
    def python(self) -> str:
        """Its interpreter."""
        return os.path.join(self.folder, "bin", "python")

    def marker(self) -> Dict[str, Any]:
        """Its marker, empty where it is not finished or made from another lock."""
        marker = read_marker(self.folder)
        return marker if marker.get("requirements_sha256") == self.sha256 else {}

    def finished(self) -> bool:
        """Whether every package is there, and the Python that it was made from still is."""
        return bool(self.marker()) and os.access(self.python, os.X_OK)

    def write_marker(self, content: Dict[str, Any]) -> None:
        """Write its marker; from then on it is finished."""
        path = os.path.join(self.folder, MARKER)
        with open(path + ".new", "w", encoding="utf-8") as stream:
            json.dump({**content, "requirements_sha256": self.sha256}, stream, indent=2)
            stream.write("\n")
        os.replace(path + ".new", path)


class Wanted:
    """The environments and the link that the module's parameters want on this host."""

    def __init__(self, params: Dict[str, Any]) -> None:
        self.params = params
        self.lock = choose_lock(params["locks"], params["variant"])
        self.python, self.python_version = find_python(params["python"], params["supported_python"])
        #: The driver with the GPUs that TensorFlow has to see; None where there are none.
        self.driver = gpus.detect() if self.lock["variant"] == "gpu" else None
        #: What TensorFlow's environment has to be tried with, as its marker has it.
        self.trial = {"imports": self.lock["imports"], "driver": self.driver and [*self.driver]}
        self.root = params["root"]
        self.folder = os.path.join(self.root, "venvs")
        self.link = os.path.join(self.root, params["environment"])
        self.short = ".".join(self.python_version.split(".")[:2])
        version, variant, sha256 = (self.lock[key] for key in ("version", "variant", "sha256"))
        name = f"tensorflow-{version}-{variant}-py{self.short}-{sha256:.12}"
        #: The environment with TensorFlow, on which the extra one is put.
        self.base = self._environment("tensorflow", name, self.lock)
        self.environments = [self.base]
        if params["extra"]:
            both = f"{name}\n{params['extra']['sha256']}\n"
            name = f"extra-{hashlib.sha256(both.encode()).hexdigest():.12}"
            self.environments.append(self._environment("extra", name, params["extra"]))
        #: The one that the link has to point to.
        self.environment = self.environments[-1]

    def _environment(self, part: str, name: str, lock: Dict[str, Any]) -> Environment:
        folder = os.path.join(self.folder, name)
        packages = os.path.join(folder, "lib", f"python{self.short}", "site-packages")
        return Environment(part, folder, packages, lock["sha256"], lock["path"])

    def tried(self) -> Dict[str, Any]:
        """The result of that trial, empty where there was none."""
        marker = self.base.marker()
        return marker if marker.get("trial") == self.trial else {}

    def accepted(self) -> bool:
        """Whether the trial is done, and good enough."""
        tried = self.tried()
        return bool(tried) and not (tried["problem"] and self.params["require_gpus"])

    def missing(self) -> List[str]:
        """What has to be installed or done, see the module's result C(parts)."""
        parts = [each.part for each in self.environments if not each.finished()]
        if self.base.finished() and not self.accepted():
            parts.append("trial")
        return parts + ([] if self.linked() else ["link"])

    def target(self) -> str:
        """The folder to which the link points, empty where there is no link."""
        return os.path.realpath(self.link) if os.path.islink(self.link) else ""

    def linked(self) -> bool:
        """Whether that is the environment."""
        return self.target() == os.path.realpath(self.environment.folder)

    def switch_link(self) -> None:
        """Point the link to the environment, in one step, and note when it was switched."""
        before = self.target()
        new = f"{self.link}.{os.getpid()}"
        if os.path.lexists(new):
            os.unlink(new)
        os.symlink(os.path.relpath(self.environment.folder, self.root), new)
        os.replace(new, self.link)
        # The markers' times show which environment was in use last.
        for folder in (before, self.environment.folder):
            if read_marker(folder):
                os.utime(os.path.join(folder, MARKER))
