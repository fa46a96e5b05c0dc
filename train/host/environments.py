"""Finds the framework, additional packages and modules in the environment of a rank's Python.

The role tensorflow creates environments and describes each in its ``tensorflow-venv.json``. Only
files are read. Starting Python would take a second on a slow disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import re
from collections.abc import Collection
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from . import frameworks, host_facts, json_files, processes

MARKER = "tensorflow-venv.json"
#: Names of links to the environments with scripts' packages: ``packages-`` and a hash.
PACKAGES_PATTERN = r"packages-[0-9a-f]{12}"


class TensorFlow(NamedTuple):
    """The TensorFlow of an environment."""

    version: Optional[str]  # None if not found in the interpreter's environment
    takes_gpus: bool


def folder_of(python: str) -> str:
    """Return the folder of the environment whose ``bin`` contains an interpreter."""
    return os.path.dirname(os.path.dirname(python))


def tensorflow(python: str) -> TensorFlow:
    """Return the TensorFlow in the environment of an interpreter."""
    marker = _marker(folder_of(python))
    if marker is not None and _framework(marker) == frameworks.TENSORFLOW:
        return TensorFlow(str(marker.get("version")), marker.get("variant") != "cpu")
    pattern = os.path.join(folder_of(python), "lib/python3*/site-packages/tensorflow*.dist-info")
    for path in glob.glob(pattern):
        found = re.fullmatch(r"tensorflow(_cpu)?-(.+)\.dist-info", os.path.basename(path))
        if found:
            return TensorFlow(found.group(2), found.group(1) is None)
    return TensorFlow(None, True)


class Framework(NamedTuple):
    """The framework of a job in an environment."""

    versions: Dict[str, str]  # of the framework and its packages, as far as they were found
    takes_gpus: bool


def framework(python: str, name: str) -> Framework:
    """Return JAX or PyTorch in the environment of an interpreter."""
    found = {}
    for folder in _with_base(folder_of(python)):
        for path in glob.glob(os.path.join(folder, "lib/python3*/*-packages/*-info")):
            # dist-info, or Debian's egg-info
            package, _, version = os.path.basename(path).rpartition(".")[0].partition("-")
            found[package] = version
    packages = frameworks.PACKAGES[name]
    versions = {package: found[package] for package in packages if package in found}
    if name not in found:
        return Framework(versions, True)
    if name == frameworks.JAX:
        return Framework(versions, any(re.match(r"jax_(cuda|rocm)", package) for package in found))
    return Framework(versions, not found[name].endswith("+cpu"))


def _framework(marker: Mapping[str, Any]) -> str:
    """Return the framework that a marker names. Old markers name none."""
    return str(marker.get("framework", frameworks.TENSORFLOW))


def _with_base(folder: str) -> List[str]:
    """Return the folder of an environment, and of the one that it extends, if any."""
    base = (_marker(folder) or {}).get("base")
    beside = os.path.join(os.path.dirname(os.path.realpath(folder)), str(base))
    return [folder, beside] if base else [folder]


def described(python: str) -> Optional[host_facts.Environment]:
    """Return the environment of an interpreter if the role tensorflow can add packages to it.

    Return None if the role did not create it, or if it already is an environment with added
    packages.
    """
    folder = folder_of(python)
    marker = _marker(folder)
    if marker is None or "base" in marker:
        return None
    root = os.path.dirname(folder)
    return {
        "root": root,
        "framework": _framework(marker),
        "variant": str(marker.get("variant")),
        "lock_sha256": str(marker.get("requirements_sha256")),
        "python_series": ".".join(str(marker.get("python")).split(".")[:2]),
        "package_environments": [
            name
            for name in sorted(os.listdir(root))
            if re.fullmatch(PACKAGES_PATTERN, name)
            and _marker(os.path.join(root, name)) is not None
            and os.access(os.path.join(root, name, "bin", "python"), os.X_OK)
        ],
    }


def describe(params: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the ``environment`` of the interpreter ``python``, see `described`."""
    return {"environment": described(os.path.expanduser(str(params["python"])))}


def missing_modules(python: str, names: Sequence[str]) -> Optional[List[str]]:
    """Return the modules of ``names`` that an interpreter does not find.

    Return None if that is unknown, because the environment includes other folders.
    """
    folder = folder_of(python)
    settings = _read(os.path.join(folder, "pyvenv.cfg"))
    if not settings or re.search(r"include-system-site-packages\s*=\s*true", settings):
        return None
    places = [
        place
        for part in _with_base(folder)
        for place in glob.glob(os.path.join(part, "lib/python3*/site-packages"))
    ]
    there = {name for place in places for name in os.listdir(place)}
    ours = {"distutils-precedence.pth", "tensorflow.pth"}
    if not places or any(name.endswith(".pth") and name not in ours for name in there):
        return None
    found = {name.partition(".")[0] for name in there if _is_module(name)}
    return [name for name in names if name not in found]


def remove_unused(pythons: Collection[str], in_use: Collection[str]) -> None:
    """Remove environments with scripts' packages that are no longer used.

    uv's cache is removed with the last one.

    Args:
        pythons: the interpreters of the environments.
        in_use: the interpreters of remaining jobs. Environments that a process of this machine uses
            are kept as well.
    """
    import shutil  # slow to import

    for python in sorted(set(pythons) - set(in_use)):
        link = folder_of(python)
        root, name = os.path.split(link)
        folder = os.path.realpath(link)
        is_ours = re.fullmatch(PACKAGES_PATTERN, name) and os.path.islink(link)
        if not is_ours or os.path.dirname(folder) != os.path.realpath(os.path.join(root, "venvs")):
            continue
        with contextlib.suppress(OSError), open(os.path.join(root, "venvs", ".lock"), "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as the role does while it installs
            if _is_loaded(folder):
                continue
            os.unlink(link)
            if all(os.path.realpath(os.path.join(root, n)) != folder for n in os.listdir(root)):
                # Its marker first, so that a partly removed environment is never used.
                os.unlink(os.path.join(folder, MARKER))
                shutil.rmtree(folder)
            if not any(re.fullmatch(PACKAGES_PATTERN, n) for n in os.listdir(root)):
                # uv's cache for the packages of the next script.
                shutil.rmtree(os.path.join(root, "venvs", ".cache"), ignore_errors=True)


def _is_loaded(folder: str) -> bool:
    """Return whether a visible process was started from an environment or has loaded its files."""
    path = folder.encode() + b"/"
    return any(
        path in processes.read(processes.PROC, str(pid), file)
        for pid in processes.pids()
        for file in ("maps", "cmdline")
    )


def _is_module(name: str) -> bool:
    """Return whether the name of an entry of ``site-packages`` can be imported."""
    return name.endswith((".py", ".so")) or "." not in name


def _marker(folder: str) -> Optional[Dict[str, Any]]:
    with contextlib.suppress(OSError, ValueError):
        return json_files.read_json(os.path.join(folder, MARKER))
    return None


def _read(path: str) -> str:
    with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as stream:
        return stream.read()
    return ""
