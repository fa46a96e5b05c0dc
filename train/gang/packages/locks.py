"""Locks the packages that a script requests, with hashes, within the lock of its framework.

They are resolved once, on the control node, for the Python versions of all hosts. A lock is cached
under the hash of its inputs, so that the same file gives the same packages until the lock is
removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import Marker
from packaging.pylock import Pylock
from packaging.utils import canonicalize_name
from packaging.version import Version

from train.gang.errors import UserError
from train.gang.packages import uv, wheels
from train.gang.packages.requested import Line, Requested
from train.gang.scratch import Scratch

#: Distributions that contain the package ``tensorflow``. Requests for any of them are satisfied by
#: the locked one. They are never installed unless the script requests them by name.
TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-intel", "tf-nightly")
JAX = "jax"
#: The beginning of JAX's extras for GPUs. The variant that is installed on a host satisfies them.
_JAX_GPUS = "cuda"


@dataclass(frozen=True)
class Lock:
    """A folder with a lock from uv, without the packages of the framework's environment.

    The folder also contains the lock as lines of requirements with the hashes of wheels, and any
    wheels to send to the hosts.
    """

    folder: Path

    @property
    def pylock(self) -> Path:
        """The lock in the format of PEP 751. It does not exist if nothing needs to be installed."""
        return self.folder / "pylock.toml"

    @property
    def requirements(self) -> Path:
        """The lines that hosts install, empty if the framework's environment has all packages."""
        return self.folder / "requirements.txt"

    @property
    def wheels(self) -> Path:
        """The wheels to send to the hosts. Without this folder, hosts use their own index."""
        return self.folder / "wheels"


@dataclass(frozen=True)
class Pin:
    """A locked package. If there is a marker, the version applies only to matching Pythons."""

    name: str
    version: str
    marker: Marker | None


def pins(lock: str) -> Iterator[Pin]:
    """Yield the packages in a lock file of uv or pip-compile."""
    for name, version, marker in re.findall(
        r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;\\]+)(?:[ \t]*;[ \t]*([^\\\n]+))?",
        lock,
        re.MULTILINE,
    ):
        yield Pin(canonicalize_name(name), version, Marker(marker.strip()) if marker else None)


def cache_folder() -> Path:
    """Return the folder for cached locks, according to the XDG base directory specification."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "train/locks"


def make(
    requested: Requested,
    bases: Sequence[Path],
    pythons: Mapping[str, Sequence[str]],
    cache: Path,
    *,
    send_all: bool = False,
) -> Lock:
    """Return the lock of a script's requirements.

    Raise UserError if they contradict the framework's lock, cannot be resolved, or lack a wheel.

    Args:
        bases: the hosts' locks of the framework, one for each variant. Without a framework, the
            lock is empty.
        pythons: host names by Python version, such as ``3.11``.
        cache: the folder for cached locks.
        send_all: whether to download all wheels to the control node and send them to the hosts.
            This also happens if the file sets indexes, which hosts may not know, or if a package
            has no wheel.
    """
    base_texts = [base.read_text(encoding="utf-8") for base in bases]
    locked = [pin for text in base_texts for pin in pins(text)]
    versions = sorted(pythons, key=Version)
    found = [text for line in requested.lines for text in _contradictions(line, locked, versions)]
    if found:
        raise UserError("\n".join([*found, _ways_out(locked)]))
    kept = Lock(cache / _key(requested, base_texts, versions, send_all))
    if kept.requirements.is_file():
        return kept
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = Lock(Path(tempfile.mkdtemp(prefix=".new-", dir=cache)))
    try:
        lines: list[str] = []
        wanted = [line for line in requested.packages if _is_lacking(line, locked)]
        if wanted:
            _resolve(requested, wanted, bases, locked, versions[0], new.pylock)
            lock = Pylock.from_dict(tomllib.loads(new.pylock.read_text(encoding="utf-8")))
            to_build = wheels.without_wheel(lock, pythons)
            wheels.build(to_build, new.wheels, requested.indexes)
            if send_all or to_build or requested.indexes:
                wheels.download(lock, pythons, new.wheels, requested.indexes)
            lines = [*wheels.requirements(lock, new.wheels)]
        new.requirements.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        with contextlib.suppress(OSError):  # another command has made the same lock
            new.folder.rename(kept.folder)
    finally:
        shutil.rmtree(new.folder, ignore_errors=True)
    return kept


def _name(line: Line) -> str:
    return canonicalize_name(line.requirement.name)


def _is_lacking(line: Line, locked: Sequence[Pin]) -> bool:
    """Return whether a line requests a package or extra that the environment may lack."""
    name, extras, there = _name(line), line.requirement.extras, {pin.name for pin in locked}
    if name in TENSORFLOWS and there.intersection(TENSORFLOWS):
        return False
    if name == JAX:
        extras = {extra for extra in extras if not extra.startswith(_JAX_GPUS)}
    return bool(extras) or name not in there


def _key(
    requested: Requested, bases: Sequence[str], versions: Sequence[str], send_all: bool
) -> str:
    """Return the hash of all inputs of a resolution, except the content of the index."""
    lines = [(str(line.requirement), line.is_constraint) for line in requested.lines]
    parts = [lines, requested.indexes, bases, versions, send_all]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _contradictions(line: Line, locked: Sequence[Pin], versions: Sequence[str]) -> Iterator[str]:
    """Yield the contradictions between a line and the versions in the framework's lock."""
    name, wanted = _name(line), line.requirement
    names = TENSORFLOWS if name in TENSORFLOWS else (name,)
    needing = [python for python in versions if wheels.holds(wanted.marker, python)]
    there = {
        pin.version: pin.name
        for pin in locked
        if pin.name in names and any(wheels.holds(pin.marker, python) for python in needing)
    }
    refused = [v for v in there if not wanted.specifier.contains(v, prereleases=True)]
    if refused:
        yield (
            f"{line.place} requires {wanted}, but the environment of {_framework(locked)} has "
            f"{there[refused[0]]} {' and '.join(refused)}."
        )


def _framework(locked: Sequence[Pin]) -> str:
    """Return the name of the locked framework, with its version, or an empty string."""
    for pin in locked:
        if pin.name in TENSORFLOWS or pin.name == JAX:
            return f"{'JAX' if pin.name == JAX else 'TensorFlow'} {pin.version}"
    return ""


def _ways_out(locked: Sequence[Pin]) -> str:
    """Return the remedies if requirements contradict each other or the framework's lock."""
    framework = _framework(locked).partition(" ")[0]
    lock = (
        f"lock {framework} with other versions (tensorflow_requirements of the role tensorflow); "
        if framework
        else ""
    )
    return (
        f"Change or remove that requirement; {lock}or train in your own environment "
        "(train_job_python)."
    )


def _resolve(
    requested: Requested,
    wanted: Sequence[Line],
    bases: Sequence[Path],
    locked: Sequence[Pin],
    oldest: str,
    output: Path,
) -> None:
    """Write the lock for the lines in ``wanted`` to ``output``."""
    constraints = [line for line in requested.lines if line.is_constraint]
    unwanted = [name for name in TENSORFLOWS if name not in map(_name, wanted)]
    with Scratch("lock") as folder:
        mine = _write(folder / "constraints.txt", map(_text, constraints))
        excluded = _write(folder / "excluded.txt", unwanted)
        asked = _write(folder / "requirements.in", [*requested.indexes, *map(_text, wanted)])
        command = ["--universal", "--python-version", oldest, "--format=pylock.toml"]
        command += [f"--constraints={path}" for path in (*bases, mine)]
        command += [f"--excludes={excluded}", f"--output-file={output}"]
        command += [f"--no-emit-package={name}" for name in sorted({pin.name for pin in locked})]
        try:
            uv.compile_lock([*command, str(asked)])
        except uv.ResolutionError as error:
            framework = _framework(locked)
            together = f" together with the environment of {framework}" if framework else ""
            raise UserError(
                f"{requested.path} cannot be resolved for Python {oldest} and newer{together}: "
                f"{error} {_ways_out(locked)}"
            ) from error


def _text(line: Line) -> str:
    return str(line.requirement)


def _write(path: Path, lines: Iterable[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path
