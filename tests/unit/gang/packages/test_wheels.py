"""Which wheels a lock needs for the Pythons of the hosts."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import Marker
from packaging.pylock import Pylock

from tests.support import wheels as wheel_files
from train.gang.errors import UserError
from train.gang.packages import wheels

PURE = "py3-none-any"
HOSTS = {"3.11": ["node-1"], "3.13": ["node-2", "node-3"]}


def lock_of(*packages: dict[str, Any]) -> Pylock:
    return Pylock.from_dict({"lock-version": "1.0", "created-by": "test", "packages": packages})


def package(name: str, *tags: str, sdist: bool = False, **more: Any) -> dict[str, Any]:
    """Return a package of a lock, with a wheel for each of the ``tags``."""
    made: dict[str, Any] = {"name": name, "version": "1.0", **more}
    if sdist:
        source = {"name": f"{name}-1.0.tar.gz", "url": "https://x.invalid/s"}
        made["sdist"] = {**source, "hashes": {"sha256": "5" * 64}}
    made["wheels"] = [
        {
            "name": f"{name}-1.0-{tag}.whl",
            "url": f"https://x.invalid/{number}",
            "hashes": {"sha256": str(number) * 64},
        }
        for number, tag in enumerate(tags)
    ]
    return made


def test_packages_with_only_a_source_are_to_be_built() -> None:
    lock = lock_of(
        package("pure", PURE),
        package("compiled", *(f"cp{n}-cp{n}-manylinux_2_17_x86_64" for n in (311, 313))),
        package("stable", "cp39-abi3-manylinux2014_x86_64"),
        package("source", sdist=True),
        package("windows", sdist=True, marker='sys_platform == "win32"'),
    )
    assert [found.name for found in wheels.without_wheel(lock, HOSTS)] == ["source"]


@pytest.mark.parametrize(
    "tag",
    [
        "cp311-cp311-manylinux_2_17_x86_64",
        "cp313-cp313t-manylinux_2_17_x86_64",
        "cp313-cp313-manylinux_2_17_aarch64",
        "cp313-cp313-manylinux_2_41_x86_64",
        "cp313-cp313-win_amd64",
    ],
)
def test_a_wheel_for_another_python_or_machine_is_refused_with_the_hosts(tag: str) -> None:
    other = "cp311-cp311-manylinux_2_17_x86_64"
    lock = lock_of(package("compiled", other, tag, sdist=True), package("pure", PURE))
    message = r"^compiled 1\.0 has no wheel for Python 3\.13 on node-2, node-3\."
    with pytest.raises(UserError, match=message):
        wheels.without_wheel(lock, HOSTS)


@pytest.mark.parametrize(
    ("marker", "expected"),
    [
        ('python_version < "3.12"', True),
        ('python_version >= "3.12"', False),
        ('sys_platform == "linux" and platform_machine == "x86_64"', True),
        ('implementation_name == "pypy"', False),
        ('extra == "gpu"', False),
    ],
)
def test_markers_are_those_of_the_host_and_not_of_this_machine(marker: str, expected: bool) -> None:
    assert wheels.holds(Marker(marker), "3.11") is expected
    assert wheels.holds(None, "3.11")


def test_a_wheel_that_was_built_has_its_own_hash(tmp_path: Path) -> None:
    built = wheel_files.write(tmp_path, f"source_code-1.0-{PURE}")
    digest = hashlib.sha256(built.read_bytes()).hexdigest()
    lock = lock_of(
        package("pure", PURE, "cp311-cp311-linux_x86_64", marker='python_version < "3.12"'),
        package("source-code", sdist=True),
        package("neither", sdist=True),
    )
    assert [*wheels.requirements(lock, tmp_path)] == [
        f'pure==1.0 ; python_version < "3.12" --hash=sha256:{"0" * 64} --hash=sha256:{"1" * 64}',
        f"source-code==1.0 --hash=sha256:{digest}",
    ]


def test_a_wheel_that_was_compiled_here_is_refused(tmp_path: Path) -> None:
    wheel_files.write(tmp_path, f"pure-1.0-{PURE}")
    wheels.build([], tmp_path, [])
    wheel_files.write(tmp_path, "native-1.0-cp311-cp311-linux_x86_64")
    message = "native has no wheel, and contains code that must be compiled on each host"
    with pytest.raises(UserError, match=re.escape(message)):
        wheels.build([], tmp_path, [])
