"""Judges from a host's facts whether a framework, such as TensorFlow, can be installed there.

Each fault has a remedy. ``setup.yml``, the doctor and the start of a job use these functions.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import yaml

from train.gang import REPOSITORY, login_failures
from train.gang.errors import UserError
from train.host import suitability
from train.host.host_facts import Suitability

_ROLE = REPOSITORY / "roles/tensorflow"
#: The role that prepares a host, and the one that installs the framework.
PREPARES, INSTALLS = "training_host", "tensorflow"
DRIVER = "nvidia_driver"
#: The roles of setup.yml that matter here.
ROLES = (PREPARES, DRIVER, INSTALLS)
#: Variables that select the framework. The first one that is set counts.
_FRAMEWORK = ("tensorflow_framework", "train_job_framework")
#: Variables of the roles that decide what a host needs.
VARIABLES = (
    *_FRAMEWORK,
    "tensorflow_environment",
    "tensorflow_python",
    "tensorflow_python_supported",
    "tensorflow_requirements",
    "tensorflow_root",
    "tensorflow_variant",
    "tensorflow_wheelhouse",
    "training_host_folders",
    "training_host_nfs",
    "training_host_packages",
    "training_host_user",
)
#: The oldest Python that runs this project's modules and jobs, which use none of Ansible's modules.
HOST_PYTHON = (3, 8)
#: Distributions whose python3 is too old, with its version and the first suitable release.
_TOO_OLD = {
    ("debian", "10"): ("3.7", "Debian 12"),
    ("debian", "11"): ("3.9", "Debian 12"),
    ("ubuntu", "18.04"): ("3.6", "Ubuntu 22.04"),
    ("ubuntu", "20.04"): ("3.8", "Ubuntu 22.04"),
}
#: Commands that install Python in a home directory without root, and the path of the result.
_INSTALL_UV = "curl -LsSf https://astral.sh/uv/install.sh | sh"
_INSTALL_PYTHON = "~/.local/bin/uv python install {version}"
_PYTHON_OF_UV = "~/.local/bin/python{version}"
#: The version to suggest, if it is supported.
_SUGGESTED = "3.12"


class HostFault(NamedTuple):
    """The reason why a host cannot be used for the framework, with a remedy."""

    kind: str
    sentence: str  # the same for all hosts with this fault
    expected: str
    remedy: str
    measured: str = ""  # may differ between hosts

    @property
    def found(self) -> str:
        """The sentence, with the measured value."""
        return f"{self.sentence} ({self.measured})" if self.measured else self.sentence


@dataclass(frozen=True)
class Needs:
    """Requirements of a framework on a host."""

    values: Mapping[str, Any]  # of VARIABLES
    framework: Mapping[str, Any]  # its entry in __tensorflow_frameworks of the role
    roles: Collection[str]  # roles of setup.yml that will run on the host
    host_python: str  # the oldest Python that runs the modules of the Ansible in use

    @property
    def request(self) -> dict[str, Any]:
        """The request for host/suitability.py."""
        return {
            "python": str(self.values["tensorflow_python"]),
            "supported": self.supported,
            "root": str(self.values["tensorflow_root"]),
            "environment": str(self.values["tensorflow_environment"]),
        }

    @property
    def supported(self) -> list[str]:
        """The oldest and the newest version of Python for which there are wheels."""
        return [str(version) for version in self.values["tensorflow_python_supported"]]

    @property
    def title(self) -> str:
        """The name of the framework, such as ``TensorFlow``."""
        return str(self.framework["title"])

    @property
    def locked(self) -> str:
        """The object of sentences about requirements, such as ``the locked TensorFlow``."""
        return self.title if self.is_bare else f"the locked {self.title}"

    @property
    def is_bare(self) -> bool:
        """Whether only an environment without packages is created, in one variant."""
        return "any" in self.framework["space_mb"]

    @property
    def is_own_lock(self) -> bool:
        """Whether the user has set a lock, which then decides what a host needs."""
        return bool(self.values["tensorflow_requirements"])

    def variant(self, facts: Suitability) -> str:
        """Return the variant of the framework for the host: ``cpu``, ``gpu`` or ``any``."""
        variant = str(self.values["tensorflow_variant"])
        if self.is_bare:
            return "any"
        if variant != "auto":
            return variant
        has_driver = facts["nvidia"] == "driver" or (facts["nvidia"] and DRIVER in self.roles)
        return "gpu" if has_driver else "cpu"

    def space_mb(self, variant: str) -> int:
        """Return the free space that an installation needs, in units of 10^6 bytes."""
        space = self.framework["space_mb"][variant]
        download = 0 if self.values["tensorflow_wheelhouse"] else space["download"]
        return int(space["installed"] + download)

    def prepares_package(self, facts: Suitability, name: str) -> bool:
        """Return whether the role training_host will install a package."""
        return PREPARES in self.roles and name in self.packages(facts)

    def packages(self, facts: Suitability) -> list[str]:
        """Return the packages that the role training_host installs on this kind of host."""
        by_family = self.values["training_host_packages"]
        found = by_family.get(_family(facts)) if isinstance(by_family, Mapping) else None
        return [str(name) for name in found] if isinstance(found, list) else []

    def prepares_folder(self) -> bool:
        """Return whether the role training_host will create ``tensorflow_root`` as root."""
        paths = self._paths("training_host_folders")
        root = str(self.values["tensorflow_root"])
        as_root = bool(self.values["training_host_user"]) or not root.startswith("~")
        is_listed = any(_is_at_or_below(root, path) for path in paths)
        return PREPARES in self.roles and as_root and is_listed

    def mounts_folder(self, facts: Suitability) -> bool:
        """Return whether the role training_host will mount a share for ``tensorflow_root``."""
        paths = self._paths("training_host_nfs")
        return PREPARES in self.roles and any(
            _is_at_or_below(facts["root"], path) and not _is_at_or_below(facts["mount_point"], path)
            for path in paths
        )

    def _paths(self, name: str) -> list[str]:
        """Return the paths in the list variable ``name``, without entries that are invalid.

        The role itself reports those.
        """
        found = self.values[name]
        entries = found if isinstance(found, list) else []
        return [str(one["path"]) for one in entries if isinstance(one, Mapping) and "path" in one]


def _is_at_or_below(path: str, folder: str) -> bool:
    return path.rstrip("/") == folder.rstrip("/") or path.startswith(folder.rstrip("/") + "/")


@functools.cache
def _role() -> dict[str, Any]:
    """Return the defaults of both roles, and the role tensorflow's facts about its own locks."""
    found: dict[str, Any] = {}
    for path in (
        _ROLE / "defaults/main.yml",
        _ROLE / "vars/main.yml",
        REPOSITORY / "roles" / PREPARES / "defaults/main.yml",
    ):
        found.update(yaml.safe_load(path.read_text(encoding="utf-8")))
    return found


def needs(
    values: Mapping[str, Any],
    roles: Collection[str],
    modules_python: tuple[int, ...] = HOST_PYTHON,
) -> Needs:
    """Return the requirements of a host.

    Args:
        values: values of VARIABLES that are set. The others have the roles' defaults.
        roles: roles of setup.yml that will run on the host.
        modules_python: the oldest Python that runs the modules of the Ansible in use.

    Raises:
        UserError: the role tensorflow would reject a value.
    """
    defaults = _role()
    supported = values.get("tensorflow_python_supported", [])
    if "tensorflow_python_supported" in values and not (
        isinstance(supported, list)
        and len(supported) == 2
        and all(re.fullmatch(r"3\.[0-9]+", str(version)) for version in supported)
    ):
        raise UserError(
            f"tensorflow_python_supported is {supported}: specify the oldest and newest Python, "
            'such as ["3.10", "3.13"]'
        )
    frameworks = defaults["__tensorflow_frameworks"]
    chosen = next((name for name in _FRAMEWORK if name in values), "")
    name = str(values[chosen]) if chosen else "tensorflow"
    if name not in frameworks:
        raise UserError(f"{chosen} is {name!r:.40}: choose from {', '.join(frameworks)}")
    framework = frameworks[name]
    found = {
        **{name: defaults.get(name) for name in VARIABLES},
        "tensorflow_environment": framework["environment"],
        "tensorflow_python_supported": framework["pythons"],
        **values,
    }
    host_python = ".".join(map(str, max(HOST_PYTHON, modules_python)))
    return Needs({name: found[name] for name in VARIABLES}, framework, roles, host_python)


def judge(facts: Suitability, needed: Needs) -> list[HostFault]:
    """Return the faults that prevent an installation of the framework on a host."""
    return [*_machine(facts, needed), *_python(facts, needed), *folder_faults(facts, needed)]


def _machine(facts: Suitability, needed: Needs) -> Iterator[HostFault]:
    if needed.is_own_lock:
        return
    machines = _role()["__tensorflow_machines"]
    if facts["machine"] not in machines:
        yield HostFault(
            "architecture",
            f"{needed.locked} has no build for the architecture {facts['machine']}",
            " or ".join(machines),
            "remove the host, or set tensorflow_requirements to a lock for this "
            "architecture (roles/tensorflow/README.md, Another version)",
        )
    elif not facts["has_avx"] and needed.framework["needs_avx"]:
        yield HostFault(
            "no-avx",
            f"the processor lacks AVX, which {needed.title} requires",
            "a processor with AVX",
            "remove the host; if it is a virtual machine, set its CPU model to that "
            "of the physical machine (QEMU: -cpu host)",
        )
    name, _, version = facts["glibc"].partition(" ")
    if facts["python_error"] or facts["implementation"] != "cpython":
        return
    least = str(needed.framework["glibc"])
    if name != "glibc" or numbers(version) < numbers(least):
        sentence = f"the C library is not glibc ({facts['os_name']})"
        if name == "glibc":
            sentence = f"the C library {facts['glibc']} is too old for {needed.locked}"
        remedy = "use a newer distribution with glibc, such as Debian 12 or Ubuntu 22.04"
        yield HostFault("c-library", sentence, f"glibc {least} or newer", remedy)


def numbers(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version, for comparisons."""
    return tuple(int(part) for part in re.findall(r"[0-9]+", version)[:2])


def _python(facts: Suitability, needed: Needs) -> Iterator[HostFault]:
    command = str(needed.values["tensorflow_python"])
    oldest, newest = needed.supported
    expected = f"Python {oldest} to {newest}"
    remedy = python_remedy(facts, needed)
    # Part of the sentence, because hosts with the same sentence share a remedy.
    other = "".join(f"; {one['path']} is suitable" for one in facts["others"][:1])
    least = needed.host_python
    if numbers(facts["host_python"]) < numbers(least):
        sentence = (
            f"Python {facts['host_python']}, which Ansible uses on this host, is too old for "
            "Ansible's modules"
        )
        also = f"also set ansible_python_interpreter to a newer Python: {remedy}"
        yield HostFault("host-python-too-old", sentence, f"Python {least} or newer", also)
    if facts["python_error"]:
        if not needed.prepares_package(facts, command):
            sentence = f"{facts['python_error']} (tensorflow_python){other}"
            yield HostFault("no-python", sentence, expected, remedy)
        return
    version, where = facts["python_version"], facts["interpreter"]
    if numbers(version) < numbers(oldest):
        sentence = f"Python {version} ({where}) is too old for {needed.locked}{other}"
        yield HostFault("python-too-old", sentence, expected, remedy)
    elif numbers(version) > numbers(newest):
        sentence = f"Python {version} ({where}) is too new for {needed.locked}{other}"
        yield HostFault("python-too-new", sentence, expected, remedy)
    elif facts["implementation"] != "cpython" or facts["free_threaded"] or facts["bits"] != 64:
        name = "free-threaded" if facts["free_threaded"] else f"{facts['bits']}-bit"
        build = facts["implementation"] if facts["implementation"] != "cpython" else name
        sentence = (
            f"the Python at {where} is {build}, and {needed.title} has no build for this kind of "
            f"Python{other}"
        )
        yield HostFault("python-build", sentence, f"a standard 64-bit CPython, {expected}", remedy)
    elif not facts["has_venv"] and not needed.prepares_package(facts, command):
        sentence = f"the Python at {where} lacks the module venv{other}"
        yield HostFault(
            "no-venv", sentence, "Python with the module venv", _venv_remedy(facts, remedy)
        )


def _venv_remedy(facts: Suitability, otherwise: str) -> str:
    if _family(facts) == "debian" and facts["interpreter"] == "/usr/bin/python3":
        return "run on the host: `sudo apt-get install python3` (python3-minimal is not enough)"
    return otherwise


def _family(facts: Suitability) -> str:
    """Return the distribution's family, as in training_host_packages, or an empty string."""
    names = {facts["os_id"], *facts["os_like"].split()}
    if names & {"debian", "ubuntu"}:
        return "debian"
    return "redhat" if names & {"rhel", "centos", "fedora", "rocky", "almalinux"} else ""


def python_remedy(facts: Suitability, needed: Needs) -> str:
    """Return instructions to get a suitable Python for a host."""
    if facts["others"]:
        other = facts["others"][0]
        return (
            f"set tensorflow_python to {other['path']}, which is Python {other['version']} on this "
            "host"
        )
    oldest, newest = needed.supported
    if _family(facts) == "redhat":
        known = [name for name in needed.packages(facts) if re.fullmatch(r"python3\.[0-9]+", name)]
        can_install = numbers(facts["host_python"]) >= numbers(needed.host_python)
        if known and can_install and PREPARES in needed.roles:
            return f"set tensorflow_python to {known[0]}, which setup.yml installs (training_host)"
        package = (known or [f"python{_version(oldest, newest)}"])[0]
        return (
            f"run on the host: `sudo dnf install {package}`, and set tensorflow_python to {package}"
        )
    return _remedy_without_package(facts, _version(oldest, newest))


def _version(oldest: str, newest: str) -> str:
    is_in_range = numbers(oldest) <= numbers(_SUGGESTED) <= numbers(newest)
    return _SUGGESTED if is_in_range else newest


def _remedy_without_package(facts: Suitability, version: str) -> str:
    """Return instructions to install a Python that the host's distribution does not have."""
    commands = f"{_INSTALL_UV} && {_INSTALL_PYTHON.format(version=version)}"
    remedy = (
        f"install Python {version} in the user's home directory and set tensorflow_python to "
        f"{_PYTHON_OF_UV.format(version=version)}; run on the host, without root: `{commands}`"
    )
    _, release = _TOO_OLD.get((facts["os_id"], facts["os_version"]), ("", ""))
    if release:
        remedy += (
            f". Or upgrade the host to {release} or newer: {facts['os_name']} has no suitable "
            "Python package"
        )
    return remedy


def folder_faults(facts: Suitability, needed: Needs) -> Iterator[HostFault]:
    """Yield the faults of ``tensorflow_root``, the folder of the environments."""
    root, parent, point = facts["root"], facts["parent"], facts["mount_point"]
    choose = "set tensorflow_root, train_job_root and train_job_python to another folder"
    if needed.mounts_folder(facts):
        return
    if facts["obstacle"]:
        sentence = f"{facts['obstacle']} is a file or a broken link, but must be a folder"
        remedy = f"move this file away, or {choose}"
        yield HostFault("obstacle", sentence, "a folder, or an unused path", remedy)
        return
    is_read_only = "ro" in facts["mount_options"].split(",")
    if facts["write_error"] and (is_read_only or not needed.prepares_folder()):
        sentence = f"{parent} is not writable: {facts['write_error']}"
        remedy = (
            f"run on the host: `ls -ld {shlex.quote(parent)}`, and make the user the owner "
            "of the folder"
        )
        if is_read_only:
            remedy = f"run on the host: `sudo mount -o remount,rw {shlex.quote(point)}`"
        yield HostFault("not-writable", sentence, "a writable folder", f"{remedy}, or {choose}")
    if facts["is_noexec"]:
        sentence = suitability.NOEXEC % (point, root)
        remedy = suitability.NOEXEC_REMEDY % shlex.quote(point)
        yield HostFault("noexec", sentence, "a filesystem without noexec", remedy)
    variant = needed.variant(facts)
    need = needed.space_mb(variant)
    if not facts["is_installed"] and not needed.is_own_lock and facts["free_mb"] < need:
        yield HostFault(
            "no-space",
            f"not enough space for {needed.title} ({variant}) on the filesystem of {parent}",
            f"{need} MB free",
            f"free up space, or {choose} on another filesystem; run on the host: `df -h "
            f"{shlex.quote(parent)}`",
            f"{facts['free_mb']} MB free",
        )


def without_python(os_id: str, os_version: str, os_name: str, needed: Needs) -> list[HostFault]:
    """Return the faults of a host that has no Python at all.

    The role training_host installs the distribution's Python, which may be too old.
    """
    version, _ = _TOO_OLD.get((os_id, os_version), ("", ""))
    oldest, newest = needed.supported
    expected = f"Python {oldest} to {newest}"
    if version:
        sentence = f"Python is missing, and the version in {os_name} ({version}) is too old"
        facts: Any = {"others": [], "os_id": os_id, "os_version": os_version, "os_name": os_name}
        remedy = _remedy_without_package(facts, _version(oldest, newest))
        return [HostFault("python-too-old", sentence, expected, remedy)]
    if PREPARES in needed.roles:
        return []
    sentence = login_failures.KINDS["no-python"].sentence
    remedy = (
        f"install python3 ({needed.host_python} or newer), or set ansible_python_interpreter to "
        "its path"
    )
    return [HostFault("no-python", sentence, expected, remedy)]


def lines(faults: Mapping[str, Sequence[HostFault]]) -> list[str]:
    """Return a text for each fault, with its hosts and the first host's remedy.

    Args:
        faults: by inventory host.
    """
    groups: dict[tuple[str, str], dict[str, HostFault]] = {}
    for host in sorted(faults, key=login_failures.natural):
        for fault in faults[host]:
            groups.setdefault((fault.kind, fault.sentence), {})[host] = fault
    return [_line(group) for group in groups.values()]


def _line(group: Mapping[str, HostFault]) -> str:
    first = next(iter(group.values()))
    measured = [fault.measured for fault in group.values()]
    if len(group) > 1 and first.measured:
        measured = [f"{host}: {fault.measured}" for host, fault in group.items()]
    shown = f" ({'; '.join(measured)})" if first.measured else ""
    return (
        f"{login_failures.names_of(list(group))}: {first.sentence}{shown}; expected: "
        f"{first.expected}{login_failures.REMEDY}{first.remedy}"
    )
