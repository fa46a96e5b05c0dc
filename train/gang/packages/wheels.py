"""Finds a wheel for each locked package and each Python of the hosts, and builds missing ones.

Only pure Python packages are built, because they need no compiler.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from packaging.markers import Marker
from packaging.pylock import Package, Pylock
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

from train.gang.errors import UserError
from train.gang.packages import uv

#: Newest glibc version 2.N of wheels to consider. A host's pip rejects wheels that are too new.
_NEWEST_GLIBC = 40
#: Time limit of a run of pip, in seconds.
_LIMIT_S = 900.0


def holds(marker: Marker | None, python: str) -> bool:
    """Return whether a marker is true on a host with this Python, such as ``3.11``."""
    return marker is None or marker.evaluate(
        {
            "implementation_name": "cpython",
            "implementation_version": f"{python}.0",
            "os_name": "posix",
            "platform_machine": "x86_64",
            "platform_python_implementation": "CPython",
            "platform_system": "Linux",
            "python_full_version": f"{python}.0",
            "python_version": python,
            "sys_platform": "linux",
            "extra": "",
        }
    )


def _tags(python: str) -> set[Tag]:
    """Return the tags of wheels that a Python accepts on Linux x86_64."""
    major, minor = (int(part) for part in python.split("."))
    return {
        *cpython_tags((major, minor), platforms=_platforms()),
        *compatible_tags((major, minor), f"cp{major}{minor}", _platforms()),
    }


def _platforms() -> list[str]:
    """Return the wheel platforms that Linux x86_64 accepts, newest first."""
    versions = [f"manylinux_2_{version}_x86_64" for version in range(_NEWEST_GLIBC, 4, -1)]
    return [*versions, *(f"manylinux{year}_x86_64" for year in (2014, 2010, 1)), "linux_x86_64"]


def without_wheel(lock: Pylock, pythons: Mapping[str, Sequence[str]]) -> list[Package]:
    """Return the packages for these Pythons that have only a source distribution.

    Raise UserError if a package has wheels, but none for one of the Pythons.

    Args:
        pythons: host names by Python version, such as ``3.11``.
    """
    lacking: dict[str, Package] = {}
    problems: list[str] = []
    for python, hosts in pythons.items():
        tags = _tags(python)
        for package in lock.packages:
            if not holds(package.marker, python) or _has_wheel(package, tags):
                continue
            if package.wheels or package.sdist is None:
                problems.append(
                    f"{package.name} {package.version} has no wheel for Python {python} on "
                    f"{', '.join(hosts)}."
                )
            else:
                lacking[package.name] = package
    if problems:
        remedy = (
            "Request another version, or use another Python on these hosts (tensorflow_python)."
        )
        raise UserError("\n".join([*problems, remedy]))
    return [*lacking.values()]


def _has_wheel(package: Package, tags: Collection[Tag]) -> bool:
    names = [wheel.filename for wheel in package.wheels or ()]
    return any(not parse_wheel_filename(name)[-1].isdisjoint(tags) for name in names)


def build(packages: Sequence[Package], folder: Path, indexes: Sequence[str]) -> None:
    """Build a wheel of each package from its locked source, in ``folder``.

    Raise UserError if a package cannot be built, or its wheel does not fit every host.

    Args:
        indexes: options of pip that set the package index of the sources.
    """
    for package in packages:
        assert package.sdist is not None
        line = _line(package, [package.sdist.hashes["sha256"]])
        problem = _pip(["wheel", "--wheel-dir", str(folder)], [*indexes, line])
        if problem:
            raise UserError(
                f"{package.name} {package.version} has no wheel, and building one from "
                f"source failed: request another version, or use another package. {problem}"
            )
    for path in folder.glob("*.whl"):
        _, _, _, tags = parse_wheel_filename(path.name)
        if any(tag.platform != "any" for tag in tags):
            raise UserError(
                f"{path.name.split('-')[0]} has no wheel, and contains code that must be "
                "compiled on each host: request another version, or use another package"
            )


def download(lock: Pylock, pythons: Collection[str], folder: Path, indexes: Sequence[str]) -> None:
    """Download a lock's wheels for these Pythons, except those already in ``folder``.

    Raise UserError if an index lacks them or cannot be reached.
    """
    there = {parse_wheel_filename(path.name)[0] for path in folder.glob("*.whl")}
    for python in pythons:
        lines = [
            _line(package, _hashes(package)).replace(f" ; {package.marker}", "")
            for package in lock.packages
            if package.name not in there and holds(package.marker, python)
        ]
        command = ["download", "--dest", str(folder), "--only-binary", ":all:"]
        command += ["--implementation", "cp", "--python-version", python]
        command += [word for name in _platforms() for word in ("--platform", name)]
        problem = _pip(command, [*indexes, *lines])
        if problem:
            raise UserError(f"the wheels for Python {python} cannot be downloaded. {problem}")


def _pip(command: Sequence[str], lines: Sequence[str]) -> str:
    """Run pip with lines of requirements. Return an error message or an empty string."""
    options = ["--quiet", "--no-input", "--disable-pip-version-check", "--no-deps"]
    options += ["--require-hashes", "--requirement", "/dev/stdin"]
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-m", "pip", command[0], *options, *command[1:]],
            input="\n".join(lines),  # not as arguments: an index URL may contain a password
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return f"The download took more than {_LIMIT_S:.0f} s."
    if done.returncode:
        return f"Last lines of pip's output:\n{uv.last_lines(done.stderr)}"
    return ""


def _hashes(package: Package) -> list[str]:
    return [wheel.hashes["sha256"] for wheel in package.wheels or () if "sha256" in wheel.hashes]


def requirements(lock: Pylock, folder: Path) -> Iterator[str]:
    """Yield a line for each package of a lock, with the hashes of its wheels.

    ``folder`` contains the wheels that were built.
    """
    built: dict[str, list[str]] = {}
    for path in folder.glob("*.whl"):
        name = canonicalize_name(parse_wheel_filename(path.name)[0])
        built.setdefault(name, []).append(hashlib.sha256(path.read_bytes()).hexdigest())
    for package in lock.packages:
        hashes = built.get(package.name) or _hashes(package)
        if hashes:
            yield _line(package, hashes)


def _line(package: Package, hashes: Sequence[str]) -> str:
    marker = f" ; {package.marker}" if package.marker else ""
    options = "".join(f" --hash=sha256:{digest}" for digest in hashes)
    return f"{package.name}=={package.version}{marker}{options}"
