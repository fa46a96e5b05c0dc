"""A folder with the wheels of lock files, from which hosts without a network install.

``SHA256SUMS`` in the folder is written when pip has checked every wheel: what it names is whole.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible.errors import AnsibleActionFail
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from roles.tensorflow.control.locks import (
    Pin,
    applying,
    listed,
    parse,
    read_pins,
    requirement_lines,
)

SUMS = "SHA256SUMS"
#: The newest platform whose wheels are taken: all releases that the role names have this libc.
PLATFORM = "manylinux_2_34_x86_64"
#: Newer than any: which of the wheels that are there fit a host is for its pip to say.
NEWEST = "manylinux_2_99_x86_64"
#: What wheels for older C libraries were called before their names told the version.
OLD_PLATFORMS = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
CHUNK = 1024 * 1024


@dataclass(frozen=True)
class Wheel:
    """A wheel of the folder."""

    path: str
    name: str
    size: int
    sha256: str


def platforms(newest: str) -> list[str]:
    """The platform tags that a host with ``newest`` takes, the best first.

    Raises:
        AnsibleActionFail: it is no such tag.
    """
    found = re.fullmatch(r"manylinux_2_(\d+)_(\w+)", newest)
    if not found:
        raise AnsibleActionFail(
            f"tensorflow_wheelhouse_platform is {newest!r}: write manylinux_2_N_MACHINE with the"
            f" hosts' version 2.N of the C library, such as {PLATFORM}."
        )
    tags = []
    for minor in range(int(found.group(1)), 4, -1):
        tags.append(f"manylinux_2_{minor}_{found.group(2)}")
        if minor in OLD_PLATFORMS:
            tags.append(f"{OLD_PLATFORMS[minor]}_{found.group(2)}")
    return tags


def fitting_tags(python: str, newest: str) -> set[Tag]:
    """The tags of the wheels that a host takes."""
    major, minor = (int(part) for part in python.split(".")[:2])
    names = platforms(newest)
    tags = set(cpython_tags((major, minor), [f"cp{major}{minor}"], names))
    return tags | set(compatible_tags((major, minor), f"cp{major}{minor}", [*names, "any"]))


def select(folder: Path, pins: Iterable[Pin], python: str, newest: str = NEWEST) -> list[Wheel]:
    """The wheels of the folder that a host needs.

    Raises:
        AnsibleActionFail: some are not there.
    """
    if not folder.is_dir():
        raise AnsibleActionFail(
            f"tensorflow_wheelhouse_source: there is no folder {folder} on the control node."
            f" {_remedy(folder, python)}"
        )
    sums = read_sums(folder)
    tags = fitting_tags(python, newest)
    there: dict[tuple[str, str], list[str]] = {}
    for name in sums:
        try:
            project, version, _, wheel_tags = parse_wheel_filename(name)
        except InvalidWheelFilename:
            continue
        if tags & wheel_tags and (folder / name).is_file():
            there.setdefault((project, str(version)), []).append(name)
    chosen, missing = [], []
    for pin in pins:
        names = [
            name
            for name in there.get((canonicalize_name(pin.name), pin.version), [])
            if f"sha256:{sums[name]}" in pin.hashes
        ]
        if not names:
            missing.append(str(pin))
        for name in names:
            path = folder / name
            chosen.append(Wheel(str(path), name, path.stat().st_size, sums[name]))
    if missing:
        raise AnsibleActionFail(
            f"tensorflow_wheelhouse_source: {folder} has no wheel for Python {python} of"
            f" {listed(missing)}. {_remedy(folder, python)}"
        )
    return chosen


def _remedy(folder: Path, python: str) -> str:
    short = ".".join(python.split(".")[:2])
    return (
        "Fill it with playbooks/wheelhouse.yml and the variables of these hosts"
        f" (tensorflow_wheelhouse_source={folder}, tensorflow_wheelhouse_pythons with {short})."
    )


def fill(
    folder: Path,
    locks: Sequence[Path],
    pythons: Sequence[str],
    newest: str = PLATFORM,
    environment: Mapping[str, str] | None = None,
) -> list[str]:
    """Download the wheels of lock files into the folder; return the names of the new ones.

    Of two processes that want the same folder at once, the second waits for the first.

    Args:
        folder: made where it is missing.
        locks: lock files with hashes.
        pythons: versions of the hosts' Python, such as ``3.11``.
        newest: the newest platform tag that the hosts take.
        environment: what pip's has to have beside that of this process.

    Raises:
        AnsibleActionFail: with the end of pip's standard error.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        before = {path.name for path in folder.glob("*.whl")}
        wanted = lacking(folder, locks, pythons, newest)
        for lock, python in wanted:
            _download(folder, lock, python, newest, environment or {})
        if wanted or not (folder / SUMS).is_file():
            _write_sums(folder)
    for lock, python in wanted:
        select(folder, read_pins(str(lock), python), python, newest)
    return sorted({path.name for path in folder.glob("*.whl")} - before)


def lacking(
    folder: Path, locks: Sequence[Path], pythons: Sequence[str], newest: str
) -> list[tuple[Path, str]]:
    """The locks and Pythons for which the folder lacks a wheel, or has a damaged one."""
    found = []
    for lock in locks:
        for python in pythons:
            try:
                wheels = select(folder, read_pins(str(lock), python), python, newest)
            except AnsibleActionFail:
                found.append((lock, python))
            else:
                if any(_digest(Path(wheel.path)) != wheel.sha256 for wheel in wheels):
                    found.append((lock, python))
    return found


def _download(
    folder: Path, lock: Path, python: str, newest: str, environment: Mapping[str, str]
) -> None:
    pins = applying(parse(lock.read_text(encoding="utf-8")), python)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as scratch:
        wanted = Path(scratch, "requirements.txt")
        wanted.write_text(requirement_lines(pins), encoding="utf-8")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input"]
        command += ["--disable-pip-version-check", "--no-deps", "--require-hashes"]
        command += ["--only-binary", ":all:", "--requirement", str(wanted), "--dest", str(folder)]
        command += ["--python-version", python, "--implementation", "cp"]
        for name in [*platforms(newest), "any"]:
            command += ["--platform", name]
        # pip unpacks and keeps wheels in TMPDIR until all are there; /tmp is small on many hosts.
        done = subprocess.run(
            command,
            env={**os.environ, "TMPDIR": scratch, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise AnsibleActionFail(
            f"pip could not download the wheels of {lock} for Python {python} (exit code"
            f" {done.returncode}). What is complete in {folder} stays; mend what the last lines"
            " name (tensorflow_index_url sets the index, tensorflow_wheelhouse_pythons and"
            " tensorflow_wheelhouse_platform what the wheels are for), and run again.\n"
            + "\n".join(lines[-10:])
        )


def read_sums(folder: Path) -> dict[str, str]:
    """The wheels of the folder by name, with their hashes; computed where no file tells them."""
    try:
        text = (folder / SUMS).read_text(encoding="utf-8")
    except FileNotFoundError:  # filled by hand
        return {path.name: _digest(path) for path in folder.glob("*.whl")}
    lines = (line.split(maxsplit=1) for line in text.splitlines() if line.strip())
    return {name.lstrip("*"): digest for digest, name in lines}


def _write_sums(folder: Path) -> None:
    new = folder / f"{SUMS}.new"
    lines = [f"{_digest(path)}  {path.name}\n" for path in sorted(folder.glob("*.whl"))]
    new.write_text("".join(lines), encoding="utf-8")
    new.replace(folder / SUMS)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
