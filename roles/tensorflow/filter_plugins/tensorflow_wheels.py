"""Ansible filters: lock files against each other, and against a folder of wheels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

#: Distributions that all have the package ``tensorflow``.
TENSORFLOWS = {"tensorflow", "tensorflow-cpu", "tensorflow-intel", "tf-nightly", "tf-nightly-cpu"}


class FilterModule:
    """The filters by name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return them."""
        return {"tensorflow_clashes": clashes, "tensorflow_wheels": wheels}


def clashes(pins: Iterable[dict[str, str]], below: Iterable[dict[str, str]]) -> list[str]:
    """The packages that would shadow another version, or another TensorFlow, below them."""
    there = {pin["name"]: pin["version"] for pin in below}
    tensorflow = next((name for name in there if name in TENSORFLOWS), "")
    found = []
    for pin in pins:
        name, version = pin["name"], pin["version"]
        if there.get(name, version) != version:
            found.append(f"{name} {version} (there: {there[name]})")
        elif tensorflow and name in TENSORFLOWS and name not in there:
            found.append(f"{name} {version} (there: {tensorflow})")
    return found


def wheels(
    pins: Iterable[dict[str, str]], paths: Iterable[str], python: str
) -> dict[str, list[str]]:
    """The wheels of the packages for a Python on Linux: C(paths), and C(missing), the packages of
    which there is none. Of a package that has several, the host's pip takes the one that fits.
    """
    release = tuple(int(part) for part in python.split(".")[:2])
    there: dict[tuple[str, Version], list[str]] = {}
    for path in paths:
        try:
            name, version, _, tags = parse_wheel_filename(Path(path).name)
        except InvalidWheelFilename:
            continue
        platforms = {tag.platform for tag in tags if tag.platform.endswith(("any", "x86_64"))}
        fitting = {
            *cpython_tags(release, platforms=platforms),
            *compatible_tags(release, f"cp{release[0]}{release[1]}", [*platforms]),
        }
        if fitting & tags:
            there.setdefault((name, version), []).append(path)
    found = [(pin, there.get((pin["name"], Version(pin["version"])), [])) for pin in pins]
    return {
        "paths": sorted({path for _, paths in found for path in paths}),
        "missing": [f"{pin['name']} {pin['version']}" for pin, paths in found if not paths],
    }
