"""Ansible filters: contents of lock files, wheels for a host, archives, and hashes of programs.

The lock files are those of ``uv pip compile --generate-hashes`` and ``pip-compile
--generate-hashes``.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import re
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleFilterError
from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

#: Distributions that contain the package ``tensorflow``.
TENSORFLOWS = {"tensorflow", "tensorflow-cpu", "tensorflow-intel", "tf-nightly", "tf-nightly-cpu"}
#: Distributions to import in a new environment, if locked, with their modules.
CHECKED_IMPORTS = {"tf-keras": "tf_keras", "tensorboard": "tensorboard"}
#: Wheels of at least this many bytes are sent separately, so that a broken connection costs less.
LARGE_BYTES = 20 * 10**6


def locks(paths: Iterable[str], extra: bool = False) -> list[dict[str, Any]]:
    """Describe each lock file: ``path``, ``sha256``, ``variant``, ``version`` and ``imports``.

    ``imports`` are the modules that must be importable. With ``extra``, the files are for packages
    on top of TensorFlow, and only ``path`` and ``sha256`` are returned.
    """
    described = []
    for path in paths:
        packages: dict[str, str] = {
            canonicalize_name(need.name): version for need, version, _ in parse(path, extra)
        }
        lock: dict[str, Any] = {"path": path}
        lock["sha256"] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        if not extra:
            found = [name for name in ("tensorflow", "tensorflow-cpu") if name in packages]
            if len(found) != 1:
                raise AnsibleFilterError(
                    f"tensorflow_requirements: {path} locks "
                    f"{' and '.join(found) or 'no TensorFlow'}. Lock either tensorflow==VERSION "
                    "or tensorflow-cpu==VERSION."
                )
            cuda = found == ["tensorflow"] and any(name.startswith("nvidia-") for name in packages)
            checked = [module for name, module in CHECKED_IMPORTS.items() if name in packages]
            lock["variant"] = "gpu" if cuda else "cpu"
            lock["version"] = packages[found[0]]
            lock["imports"] = ["tensorflow", *checked]
        described.append(lock)
    if len({lock.get("version") for lock in described}) > 1:
        versions = [f"{lock['version']} ({lock['path']})" for lock in described]
        raise AnsibleFilterError(
            f"The locks have TensorFlow {' and '.join(versions)}: all ranks of a job need the "
            "same version. Lock both files again with one version."
        )
    return described


def pins(path: str, python: str) -> list[dict[str, str]]:
    """Return the packages in a lock file that apply to a Python version on Linux.

    Each has ``name``, ``version`` and ``line``: the requirement with hashes but without conditions.
    """
    short = ".".join(python.split(".")[:2])
    # pip would evaluate conditions for the Python that it runs under, even with --python-version.
    host = {
        "python_version": short,
        "python_full_version": python if python.count(".") > 1 else f"{short}.0",
        "platform_machine": "x86_64",
        "platform_system": "Linux",
        "sys_platform": "linux",
    }
    return [
        {
            "name": canonicalize_name(need.name),
            "version": version,
            "line": " ".join([f"{need.name}=={version}", *hashes]),
        }
        for need, version, hashes in parse(path, True)
        if need.marker is None or need.marker.evaluate(host)
    ]


def parse(path: str, extra: bool) -> Iterator[tuple[Requirement, str, list[str]]]:
    """Yield each package of a lock file: requirement, version, options with hashes.

    Raise AnsibleFilterError if the file is missing or invalid. ``extra`` is for the message.
    """
    variable = "tensorflow_extra_requirements" if extra else "tensorflow_requirements"
    if not Path(path).is_file():
        raise AnsibleFilterError(
            f"{variable}: there is no lock file {path} on the control node (a relative path starts"
            " at the playbook's folder)."
        )
    without_comments = re.sub(r"(?m)(^|[ \t])#.*$", "", Path(path).read_text(encoding="utf-8"))
    lines = [line.strip() for line in re.sub(r"\\\n", " ", without_comments).splitlines()]
    problem = "" if any(lines) else "it contains no package"
    for line in filter(None, lines):
        name, *hashes = re.split(r"\s(?=--hash[= ])", line)
        try:
            need = Requirement(name)
            pinned = re.fullmatch(r"==([^*,]+)", str(need.specifier))
        except InvalidRequirement:
            pinned = None
        if pinned and hashes:
            yield need, str(Version(pinned[1])), [option.strip() for option in hashes]
        else:
            lacks = "has no hash" if pinned else "is not NAME==VERSION"
            problem = problem or f"{name.strip():.60} {lacks}"
    if problem:
        options = f"--generate-hashes extra.in -o {path}"
        raise AnsibleFilterError(
            f"{variable}: {path} is not a lock file with hashes: {problem}. List the packages in a"
            f" file extra.in and lock them with `uv pip compile {options}` or"
            f" `pip-compile {options}`."
        )


def clashes(above: Iterable[dict[str, str]], below: Iterable[dict[str, str]]) -> list[str]:
    """Return the packages in ``above`` that would hide another version in ``below``.

    All distributions of TensorFlow count as versions of the same package.
    """
    there = {pin["name"]: pin["version"] for pin in below}
    tensorflow = next((name for name in there if name in TENSORFLOWS), "")
    found = []
    for pin in above:
        name, version = pin["name"], pin["version"]
        if there.get(name, version) != version:
            found.append(f"{name} {version} (installed: {there[name]})")
        elif tensorflow and name in TENSORFLOWS and name not in there:
            found.append(f"{name} {version} (installed: {tensorflow})")
    return found


def wheels(wanted: Iterable[dict[str, str]], folder: str, python: str) -> dict[str, list[str]]:
    """Return the wheels of packages for a Python version on Linux.

    The result has the paths of ``large`` and ``small`` wheels, and the ``missing`` packages. If
    there are several wheels for a package, all are returned, and the host chooses one.
    """
    release = tuple(int(part) for part in python.split(".")[:2])
    there: dict[tuple[str, Version], list[Path]] = {}
    for path in sorted(Path(folder).expanduser().glob("*.whl")):
        try:
            name, version, _, tags = parse_wheel_filename(path.name)
        except InvalidWheelFilename:
            continue
        platforms = {tag.platform for tag in tags if tag.platform.endswith(("any", "x86_64"))}
        fitting = {
            *cpython_tags(release, platforms=platforms),
            *compatible_tags(release, f"cp{release[0]}{release[1]}", [*platforms]),
        }
        if fitting & tags:
            there.setdefault((name, version), []).append(path)
    found: dict[str, list[str]] = {"small": [], "large": [], "missing": []}
    for pin in wanted:
        paths = there.get((pin["name"], Version(pin["version"])), [])
        for path in paths:
            found["large" if path.stat().st_size >= LARGE_BYTES else "small"].append(str(path))
        found["missing"] += [] if paths else [f"{pin['name']} {pin['version']}"]
    return found


def archive(files: dict[str, str]) -> str:
    """Pack files into an archive, unless this run has already done so, and return its path.

    ``files`` are paths by their names in the archive.
    """
    content = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
    path, part = (Path(constants.DEFAULT_LOCAL_TMP, content + end) for end in (".tar", ".part"))
    with part.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # processes of other hosts may pack the same files
        if not path.exists():
            with tarfile.open(part, "w") as packed:
                for name, file in files.items():
                    packed.add(Path(file).resolve(), name)
            part.replace(path)
    return str(path)


@functools.cache
def digest(path: str) -> str:
    """Return the first 12 characters of a file's SHA-256."""
    return hashlib.sha256(Path(path).expanduser().read_bytes()).hexdigest()[:12]


class FilterModule:
    """The role's filters."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        filters = (locks, pins, clashes, wheels, archive, digest)
        return {f"tensorflow_{each.__name__}": each for each in filters}
