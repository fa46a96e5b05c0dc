"""The modules in an interpreter's environment, and the removal of packages that no job uses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from train.host import environments

NAME = "packages-0123456789ab"


def make(root: Path, name: str, link: str, *modules: str, **marker: Any) -> str:
    """Create an environment like the role, and return its interpreter."""
    folder = root / "venvs" / name
    packages = folder / "lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    for module in modules:
        (packages / module).mkdir()
    (folder / "bin").mkdir()
    (folder / "bin/python").symlink_to(sys.executable)
    (folder / "pyvenv.cfg").write_text("include-system-site-packages = false\n")
    known = {"version": "2.21.0", "variant": "cpu", "python": "3.11.2"}
    known |= {"requirements_sha256": "0", **marker}
    (folder / environments.MARKER).write_text(json.dumps(known))
    (root / link).symlink_to(f"venvs/{name}")
    (root / "venvs/.lock").touch()
    return str(root / link / "bin/python")


@pytest.fixture
def python(tmp_path: Path) -> str:
    return make(tmp_path, "tensorflow-1", "venv", "numpy", "tensorflow")


def test_the_role_s_environment_is_described(tmp_path: Path, python: str) -> None:
    above = make(tmp_path, "extra-1", NAME, "pandas", base="tensorflow-1")
    broken = make(tmp_path, "extra-2", "packages-ba9876543210", base="tensorflow-1")
    os.unlink(broken)
    assert environments.tensorflow(python) == ("2.21.0", False)
    assert environments.described(python) == {
        **{"root": str(tmp_path), "framework": "tensorflow", "variant": "cpu"},
        **{"python_series": "3.11", "lock_sha256": "0"},
        "package_environments": [NAME],
    }
    assert environments.described(above) is None
    assert environments.described(sys.executable) is None


def test_the_environments_of_other_frameworks(tmp_path: Path) -> None:
    """Neither their version nor that of packages on top of them counts as TensorFlow's."""
    jax = make(tmp_path, "jax-1", "venv-jax", "jax", framework="jax", version="0.10.2")
    make(tmp_path, "bare-1", "venv-bare", framework="none", version="", variant="any")
    above = make(tmp_path, "extra-1", NAME, base="jax-1", framework="jax", version="0.10.2")
    packages = tmp_path / "venv-jax/lib/python3.11/site-packages"
    (packages / "jax-0.10.2.dist-info").mkdir()
    for python in (jax, above):
        assert environments.tensorflow(python) == (None, True)
        assert environments.framework(python, "jax") == ({"jax": "0.10.2"}, False)
    found = environments.describe({"python": jax})["environment"]
    assert (found["framework"], found["package_environments"]) == ("jax", [NAME])
    bare = environments.describe({"python": str(tmp_path / "venv-bare/bin/python")})
    assert bare["environment"]["framework"] == "none"


def test_missing_modules(tmp_path: Path, python: str) -> None:
    packages = tmp_path / "venv/lib/python3.11/site-packages"
    (packages / "six.py").touch()
    (packages / "_ext.cpython-311-x86_64-linux-gnu.so").touch()
    (packages / "scipy-1.0.dist-info").mkdir()
    names = ["_ext", "numpy", "pandas", "scipy", "six"]
    assert environments.missing_modules(python, names) == ["pandas", "scipy"]
    above = make(tmp_path, "extra-1", NAME, "pandas", base="tensorflow-1")
    assert environments.missing_modules(above, names) == ["scipy"]
    (packages / "__editable__.mine.pth").touch()
    assert environments.missing_modules(python, names) is None
    (packages / "__editable__.mine.pth").unlink()
    (tmp_path / "venv/pyvenv.cfg").write_text("include-system-site-packages = true\n")
    assert environments.missing_modules(python, names) is None
    assert environments.missing_modules("/usr/bin/python3", names) is None


@contextmanager
def running(python: str) -> Iterator[None]:
    process = subprocess.Popen([python, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        yield
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def test_packages_of_no_job_go(tmp_path: Path, python: str) -> None:
    one = make(tmp_path, "extra-1", NAME, base="tensorflow-1")
    two = make(tmp_path, "extra-2", "packages-ba9876543210", base="tensorflow-1")
    same = make(tmp_path, "extra-3", "packages-333333333333", base="tensorflow-1")
    (tmp_path / "packages-444444444444").symlink_to("venvs/extra-3")
    mine = tmp_path / "elsewhere"
    mine.mkdir()
    (tmp_path / "packages-555555555555").symlink_to(mine)
    theirs = str(tmp_path / "packages-555555555555/bin/python")
    with running(str(tmp_path / "venvs/extra-2/bin/python")):
        environments.remove_unused([python, one, two, same, theirs], [])
    assert sorted(path.name for path in tmp_path.glob("*")) == [
        *("elsewhere", "packages-444444444444", "packages-555555555555"),
        *("packages-ba9876543210", "venv", "venvs"),
    ]
    left = ["extra-2", "extra-3", "tensorflow-1"]
    assert sorted(path.name for path in (tmp_path / "venvs").glob("[!.]*")) == left
    environments.remove_unused([two], [two])
    assert (tmp_path / "packages-ba9876543210").exists()
    environments.remove_unused([two], [])
    assert not (tmp_path / "venvs/extra-2").exists()


def test_uvs_cache_goes_with_the_last_packages(tmp_path: Path, python: str) -> None:
    one = make(tmp_path, "extra-1", NAME, base="tensorflow-1")
    two = make(tmp_path, "extra-2", "packages-ba9876543210", base="tensorflow-1")
    cache = tmp_path / "venvs/.cache"
    cache.mkdir()
    environments.remove_unused([one], [])
    assert cache.exists()
    environments.remove_unused([two], [])
    assert not cache.exists()
