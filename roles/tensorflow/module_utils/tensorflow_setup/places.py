"""Where environments are on a host, which of them are finished, and which link points to which."""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import Any, Dict, NamedTuple, Optional

from .gpus import Driver
from .interpreter import Interpreter, Lock
from .programs import SetupError

MARKER = "tensorflow-venv.json"
#: Names under the root that are no link to an environment.
RESERVED = ("venvs", "jobs")


def read_marker(folder: str) -> Optional[Dict[str, Any]]:
    """The marker of a finished environment, None for anything else."""
    try:
        with open(os.path.join(folder, MARKER), encoding="utf-8") as stream:
            marker = json.load(stream)
    except (OSError, ValueError):
        return None
    return marker if isinstance(marker, dict) and "requirements_sha256" in marker else None


class Environment(NamedTuple):
    """An environment under ``venvs/``."""

    folder: str
    sha256: str  # of the lock file that it is made from
    requirements: str  # that file on the control node, for messages

    @property
    def name(self) -> str:
        """The folder's name, by which others refer to it."""
        return os.path.basename(self.folder)

    @property
    def python(self) -> str:
        """Its interpreter."""
        return os.path.join(self.folder, "bin", "python")

    def packages(self, python: Interpreter) -> str:
        """Where its packages are."""
        return os.path.join(self.folder, "lib", f"python{python.short}", "site-packages")

    def marker(self) -> Optional[Dict[str, Any]]:
        """Its marker, None where it is not finished or made from another lock."""
        marker = read_marker(self.folder)
        return marker if marker and marker["requirements_sha256"] == self.sha256 else None

    def finished(self) -> bool:
        """Whether every package is there, and the Python that it was made from still is."""
        return self.marker() is not None and os.access(self.python, os.X_OK)

    def write_marker(self, content: Dict[str, Any]) -> None:
        """Write its marker; from then on it is finished."""
        path = os.path.join(self.folder, MARKER)
        with open(path + ".new", "w", encoding="utf-8") as stream:
            json.dump({**content, "requirements_sha256": self.sha256}, stream, indent=2)
            stream.write("\n")
        os.replace(path + ".new", path)


class Place(NamedTuple):
    """What is wanted on this host."""

    root: str  # folder of the environments and links
    link: str  # has to point to the environment
    lock: Lock
    base: Environment  # with TensorFlow
    extra: Optional[Environment]  # on top of it, if that is wanted
    driver: Optional[Driver]  # with the GPUs that TensorFlow has to see; None where there are none
    require_gpus: bool  # whether it is an error if TensorFlow sees fewer

    @property
    def folder(self) -> str:
        """Where all environments are."""
        return os.path.join(self.root, "venvs")

    @property
    def wanted(self) -> Environment:
        """The environment that the link has to point to."""
        return self.extra or self.base

    def accepted(self) -> bool:
        """Whether all that has to be importable was imported once, and the GPUs were seen."""
        if not set(self.lock.imports) <= set((self.base.marker() or {}).get("imports", [])):
            return False
        if self.driver is None:
            return True
        seen = self.gpus_seen()
        return seen is not None and (seen >= self.driver.gpus or not self.require_gpus)

    def gpus_seen(self) -> Optional[int]:
        """How many GPUs TensorFlow saw with this driver, None if that is not known."""
        found = (self.base.marker() or {}).get("gpus")
        if self.driver is None or not isinstance(found, dict):
            return None
        if (found.get("driver"), found.get("of_driver")) != self.driver:
            return None
        return int(found["of_tensorflow"])

    def linked(self) -> bool:
        """Whether the link points to the environment."""
        return os.path.islink(self.link) and self.target() == os.path.realpath(self.wanted.folder)

    def ready(self) -> bool:
        """Whether nothing is left to do."""
        finished = self.base.finished() and (self.extra is None or self.extra.finished())
        return finished and self.accepted() and self.linked()

    def target(self) -> Optional[str]:
        """Where the link points, None where there is none."""
        return os.path.realpath(self.link) if os.path.islink(self.link) else None

    def switch_link(self) -> None:
        """Point the link to the environment, in one step, and note when it was switched."""
        before = self.target()
        new = f"{self.link}.{os.getpid()}"
        if os.path.lexists(new):
            os.unlink(new)
        os.symlink(os.path.relpath(self.wanted.folder, os.path.dirname(self.link)), new)
        os.replace(new, self.link)
        # The markers' times show which environment was in use last.
        for folder in (before, self.wanted.folder):
            if folder and read_marker(folder):
                os.utime(os.path.join(folder, MARKER))


def locate(
    params: Dict[str, Any], lock: Lock, python: Interpreter, driver: Optional[Driver]
) -> Place:
    """What is wanted on this host, from the module's parameters."""
    root, link = params["root"], params["environment"]
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", link) or link in RESERVED:
        raise SetupError(
            f"tensorflow_environment is {link!r}: take a name of letters, digits and . _ -, other"
            f" than {', '.join(RESERVED)}."
        )
    if params["keep"] < 0:
        raise SetupError(
            f"tensorflow_keep is {params['keep']}: write how many environments stay, or 0 for all."
        )
    name = f"tensorflow-{lock.version}-{lock.variant}-py{python.short}-{lock.sha256:.12}"
    base = Environment(os.path.join(root, "venvs", name), lock.sha256, lock.path)
    top, extra = params["extra"], None
    if top:
        digest = hashlib.sha256(f"{name}\n{top['sha256']}\n".encode()).hexdigest()
        folder = os.path.join(root, "venvs", f"extra-{digest:.12}")
        extra = Environment(folder, top["sha256"], top["path"])
    driver = driver if lock.variant == "gpu" else None
    link = os.path.join(root, link)
    return Place(root, link, lock, base, extra, driver, params["require_gpus"])
