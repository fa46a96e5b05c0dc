"""What lock files lock: for the choice of an environment, for conflicts, for a folder of wheels."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

#: What is imported once in a new environment, where the lock has it: distribution to module.
CHECKED_IMPORTS = {"tf-keras": "tf_keras", "tensorboard": "tensorboard", "scikit-learn": "sklearn"}
#: Distributions that all bring the package ``tensorflow``.
TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tf-nightly", "tf-nightly-cpu")
PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE)


@dataclass(frozen=True)
class Pin:
    """A locked package.

    Attributes:
        name: in its canonical form, such as ``scikit-learn``.
        hashes: as they stand in the lock, such as ``sha256:0ab1...``; empty where it has none.
        requirement: with its condition, without its hashes.
        line: where it begins in the file.
    """

    name: str
    version: str
    hashes: tuple[str, ...]
    requirement: Requirement
    line: int

    def __str__(self) -> str:
        """Name and version as a lock writes them."""
        return f"{self.name} {self.version}"


def describe_lock(path: str) -> dict[str, Any]:
    """What a lock file locks, as the option ``locks`` of the module ``tensorflow_venv`` wants it.

    Raises:
        AnsibleActionFail: when it cannot be read or does not lock exactly one TensorFlow.
    """
    text = _read(path, "tensorflow_requirements")
    pins: dict[str, str] = {canonicalize_name(name): version for name, version in PIN.findall(text)}
    found = [name for name in ("tensorflow", "tensorflow-cpu") if name in pins]
    if len(found) != 1:
        raise AnsibleActionFail(
            f"tensorflow_requirements: {path} locks {' and '.join(found) or 'no TensorFlow'}; it"
            " has to lock one of tensorflow==VERSION and tensorflow-cpu==VERSION. Make it with a"
            " tool that writes versions and hashes (uv pip compile --generate-hashes)."
        )
    has_cuda = found == ["tensorflow"] and any(name.startswith("nvidia-") for name in pins)
    imports = [module for name, module in CHECKED_IMPORTS.items() if name in pins]
    return {
        "path": path,
        "variant": "gpu" if has_cuda else "cpu",
        "version": pins[found[0]],
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "imports": ["tensorflow", *imports],
    }


def describe_locks(names: Sequence[str], find: Callable[[str], str]) -> list[dict[str, Any]]:
    """What several lock files lock, one for each variant.

    Args:
        names: as the role's user writes them.
        find: tells where a file is; raises AnsibleError where there is none.

    Raises:
        AnsibleActionFail: they do not lock one and the same TensorFlow.
    """
    locks: dict[str, dict[str, Any]] = {}
    for name in names:
        lock = describe_lock(find_lock(name, find, "tensorflow_requirements"))
        for other in locks.values():
            if other["version"] != lock["version"]:
                raise AnsibleActionFail(
                    f"{other['path']} locks TensorFlow {other['version']}, {lock['path']} locks"
                    f" {lock['version']}: ranks of one job need one version. Make both again."
                )
        locks[lock["variant"]] = lock
    return list(locks.values())


def find_lock(name: str, find: Callable[[str], str], variable: str) -> str:
    """Where a lock file is that the variable names.

    Raises:
        AnsibleActionFail: there is none.
    """
    try:
        return find(str(Path(name).expanduser()))
    except AnsibleError as error:
        raise AnsibleActionFail(
            f"{variable}: there is no lock file {name} on the control node"
            " (a relative path starts at the playbook's folder)."
        ) from error


def describe_extra(path: str) -> dict[str, str]:
    """The lock file of packages on top, as the option ``extra_requirements`` wants it.

    Raises:
        AnsibleActionFail: a line is no locked package with a hash.
    """
    remedy = (
        "Write what the script needs into a file extra.in and lock it with one of"
        f" `uv pip compile --generate-hashes extra.in -o {path}`,"
        f" `pip-compile --generate-hashes extra.in -o {path}`."
    )
    text = _read(path, "tensorflow_extra_requirements")
    try:
        pins = parse(text)
    except ValueError as error:
        raise AnsibleActionFail(
            f"tensorflow_extra_requirements: {path} is no lock file: {error}. {remedy}"
        ) from error
    bare = [f"{pin.name} (line {pin.line})" for pin in pins if not pin.hashes]
    if bare or not pins:
        lacks = f"has no hash for {listed(bare)}" if bare else "names no package"
        raise AnsibleActionFail(f"tensorflow_extra_requirements: {path} {lacks}. {remedy}")
    return {"path": path, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def read_pins(path: str, python: str) -> list[Pin]:
    """The packages of a lock file that are for a host's Python.

    Raises:
        AnsibleActionFail: a line is no locked package.
    """
    try:
        return applying(parse(_read(path, "lock file")), python)
    except ValueError as error:
        raise AnsibleActionFail(f"{path} is no lock file: {error}.") from error


def parse(text: str) -> list[Pin]:
    """The packages of a lock file.

    Raises:
        ValueError: a line is none; the message says which.
    """
    pins = []
    for number, line in _logical_lines(text):
        words, *hashes = re.split(r"\s--hash[= ]", line)
        try:
            requirement = Requirement(words)
        except InvalidRequirement as error:
            raise ValueError(f"line {number} is no NAME==VERSION: {words.strip():.60}") from error
        specifiers = list(requirement.specifier)
        exact = len(specifiers) == 1 and specifiers[0].operator == "=="
        if not exact or specifiers[0].version.endswith(".*"):
            raise ValueError(f"line {number} locks no version: {words.strip():.60}")
        pins.append(
            Pin(
                canonicalize_name(requirement.name),
                str(Version(specifiers[0].version)),
                tuple(word.strip() for word in hashes),
                requirement,
                number,
            )
        )
    return pins


def _logical_lines(text: str) -> Iterable[tuple[int, str]]:
    """Lines that go on after a backslash as one, without comments, and where each begins."""
    held, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        start = start if held else number
        bare = re.sub(r"(^|\s)#.*", "", line).rstrip()
        held += bare.removesuffix("\\") + " "
        if not bare.endswith("\\"):
            if held.strip():
                yield start, held.strip()
            held = ""
    if held.strip():
        yield start, held.strip()


def applying(pins: Iterable[Pin], python: str) -> list[Pin]:
    """Those of the pins whose condition holds for Linux on x86_64 with the given Python.

    pip would judge the conditions by the Python that it runs under, also with --python-version.

    Args:
        pins: of one or more locks.
        python: a version such as ``3.11`` or ``3.11.2``.
    """
    short = ".".join(python.split(".")[:2])
    environment = {
        "python_version": short,
        "python_full_version": python if python.count(".") > 1 else f"{short}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "platform_machine": "x86_64",
        "platform_system": "Linux",
        "sys_platform": "linux",
        "os_name": "posix",
    }
    return [
        pin
        for pin in pins
        if pin.requirement.marker is None or pin.requirement.marker.evaluate(environment)
    ]


def requirement_lines(pins: Iterable[Pin]) -> str:
    """A lock file of the pins, without their conditions."""
    lines = [
        " ".join([f"{pin.name}=={pin.version}", *(f"--hash={value}" for value in pin.hashes)])
        for pin in pins
    ]
    return "\n".join(lines) + "\n"


def refuse_conflicts(lock: dict[str, Any], extra: dict[str, str], python: str) -> None:
    """Refuse packages on top that would shadow others in the environment below.

    Args:
        lock: of the environment below, see describe_lock.
        extra: the packages on top, see describe_extra.
        python: the host's version.

    Raises:
        AnsibleActionFail: with all of them.
    """
    below = {pin.name: pin.version for pin in read_pins(lock["path"], python)}
    clashes, doubles = [], []
    for pin in read_pins(extra["path"], python):
        if pin.name in TENSORFLOWS and pin.name not in below:
            doubles.append(pin.name)
        elif below.get(pin.name, pin.version) != pin.version:
            clashes.append(f"{pin} (there: {below[pin.name]})")
    if not clashes and not doubles:
        return
    compile_command = f"uv pip compile --generate-hashes -c {lock['path']}"
    said = []
    if clashes:
        said.append(
            f"{extra['path']} locks other versions than the environment of TensorFlow"
            f" {lock['version']} has: {listed(clashes)}. Lock it within that one's versions:"
            f" `{compile_command} extra.in -o {extra['path']}`"
        )
    if doubles:
        said.append(
            f"{extra['path']} would bring {listed(doubles)} beside the TensorFlow {lock['version']}"
            " that is there. Lock it without:"
            f" `echo {doubles[0]} | {compile_command} --excludes /dev/stdin extra.in"
            f" -o {extra['path']}`"
        )
    raise AnsibleActionFail(
        f"tensorflow_extra_requirements: {'. '.join(said)}. Nothing was changed."
    )


def listed(words: Sequence[str], limit: int = 8) -> str:
    """The first words of a list that may be long."""
    more = f" and {len(words) - limit} more" if len(words) > limit else ""
    return ", ".join(words[:limit]) + more


def _read(path: str, variable: str) -> str:
    try:
        return Path(path).read_bytes().decode()
    except (OSError, ValueError) as error:
        raise AnsibleActionFail(f"{variable}: cannot read {path}: {error}") from error
