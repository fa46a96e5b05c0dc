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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
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
#: Wheels of at least this many bytes are sent separately, so that a broken connection costs less.
LARGE_BYTES = 20 * 10**6


@dataclass(frozen=True)
class Framework:
    """How a lock file of a framework is described."""

    title: str
    distributions: tuple[str, ...]  # that contain it; a lock has one of them
    module: str
    cuda: str  # prefix of the distributions that only a lock for GPUs has
    #: Distributions to import in a new environment, if locked, with their modules.
    imports: Mapping[str, str]


FRAMEWORKS = {
    "tensorflow": Framework(
        "TensorFlow",
        ("tensorflow", "tensorflow-cpu"),
        "tensorflow",
        "nvidia-",
        {"tf-keras": "tf_keras", "tensorboard": "tensorboard"},
    ),
    "jax": Framework("JAX", ("jax",), "jax", "jax-cuda", {"keras": "keras"}),
}


def locks(paths: Iterable[str], framework: str) -> list[dict[str, Any]]:
    """Describe each lock file of a framework.

    Returns:
        For each file ``path``, ``sha256``, ``framework``, ``variant``, ``version``, and
        ``imports``, the modules that must be importable. For frameworks that the role does not
        install, such as ``torch``, the file has no packages: ``framework`` is ``none``, ``variant``
        is ``any``, and the others are empty.
    """
    if framework not in FRAMEWORKS:
        bare = {"framework": "none", "variant": "any", "version": "", "imports": []}
        return [{**_file(path), **bare} for path in paths]
    known = FRAMEWORKS[framework]
    described = []
    for path in paths:
        packages: dict[str, str] = {
            canonicalize_name(need.name): version for need, version, _ in parse(path, False)
        }
        found = [name for name in known.distributions if name in packages]
        if len(found) != 1:
            raise AnsibleFilterError(
                f"tensorflow_requirements: {path} locks "
                f"{' and '.join(found) or f'no {known.title}'}. Lock "
                f"{' or '.join(f'{name}==VERSION' for name in known.distributions)}."
            )
        # The lock of tensorflow-cpu for CPUs may also have packages of NVIDIA.
        cuda = found[0] == known.module and any(name.startswith(known.cuda) for name in packages)
        checked = [module for name, module in known.imports.items() if name in packages]
        described.append(
            {
                **_file(path),
                "framework": framework,
                "variant": "gpu" if cuda else "cpu",
                "version": packages[found[0]],
                "imports": [known.module, *checked],
            }
        )
    if len({lock["version"] for lock in described}) > 1:
        versions = [f"{lock['version']} ({lock['path']})" for lock in described]
        raise AnsibleFilterError(
            f"The locks have {known.title} {' and '.join(versions)}: all ranks of a job need the "
            "same version. Lock both files again with one version."
        )
    return described


def extra_lock(path: str) -> dict[str, Any]:
    """Return ``path`` and ``sha256`` of a lock file of packages on top of a framework."""
    if not list(parse(path, True)):
        raise _no_lock("tensorflow_extra_requirements", path, "it contains no package")
    return _file(path)


def _file(path: str) -> dict[str, Any]:
    return {"path": path, "sha256": hashlib.sha256(Path(path).read_bytes()).hexdigest()}


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
    problem = ""
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
        raise _no_lock(variable, path, problem)


def _no_lock(variable: str, path: str, problem: str) -> AnsibleFilterError:
    options = f"--generate-hashes extra.in -o {path}"
    return AnsibleFilterError(
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
        filters = (locks, extra_lock, pins, clashes, wheels, archive, digest)
        return {f"tensorflow_{each.__name__}": each for each in filters}
