"""The control node's plugins of the role ``tensorflow``: locks, wheels, pip for the hosts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleLookupError

from tests.conftest import REPOSITORY
from tests.host_roles import load
from tests.tensorflow_role import ROLE, lock_plugin, pip_plugin

pytest_plugins = ("tests.tensorflow_role",)
filters = load(ROLE / "filter_plugins" / "tensorflow_wheels.py")
HASH = " \\\n    --hash=sha256:" + 64 * "0" + "\n"
LOWER = (
    f"# made by a tool\ntensorflow-cpu==2.21.0{HASH}    # via b\n"
    f"numpy==2.4.6 ; python_full_version < '3.12'{HASH}"
    f"numpy==2.5.0 ; python_full_version >= '3.12'{HASH}Typing_Extensions==4.16.0{HASH}"
    f"mac==1 ; sys_platform == 'darwin'{HASH}"
)


def pins(tmp_path: Path, text: str, python: str = "3.11.2") -> list[dict[str, Any]]:
    path = tmp_path / "pins.txt"
    path.write_text(text)
    found: list[dict[str, Any]] = lock_plugin.describe(str(path), True, python)["pins"]
    return found


@pytest.mark.parametrize(
    ("python", "numpy"), [("3.11", "2.4.6"), ("3.12", "2.5.0"), ("3.12.4", "2.5.0")]
)
def test_conditions_are_judged_for_the_hosts_python(
    tmp_path: Path, python: str, numpy: str
) -> None:
    found = pins(tmp_path, LOWER, python)
    assert [pin["name"] for pin in found] == ["tensorflow-cpu", "numpy", "typing-extensions"]
    assert found[1]["line"] == f"numpy=={numpy} --hash=sha256:{64 * '0'}"


@pytest.mark.parametrize(
    ("extra", "text", "said"),
    [
        (False, f"keras==3.0{HASH}", "locks no TensorFlow"),
        (False, f"tensorflow==1{HASH}tensorflow_cpu==1{HASH}", "locks tensorflow and tensorflow-"),
        (True, "six==1.17.0\n", r"line 1 \(six==1.17.0\) has no hash"),
        (True, f"six==1{HASH}# from a tool\nsix>=1\n", r"line 4 \(six>=1\) locks no version"),
        (True, "six==1.*\n", "locks no version"),
        (True, "-r other.txt\n", r"line 1 \(-r other.txt\) is no NAME==VERSION"),
        (True, "six @ https://example.org/six.whl\n", "locks no version"),
        (True, "# nothing\n", "names no package"),
    ],
)
def test_files_that_are_no_locks_are_refused(
    tmp_path: Path, extra: bool, text: str, said: str
) -> None:
    path = tmp_path / "extra.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        lock_plugin.describe(str(path), extra, None)


def test_one_tensorflow_in_both_variants() -> None:
    paths = [ROLE / "files" / f"{variant}.txt" for variant in ("cpu", "gpu")]
    cpu, gpu = (lock_plugin.describe(str(path), False, None) for path in paths)
    assert (cpu["variant"], gpu["variant"]) == ("cpu", "gpu")
    assert cpu["version"] == gpu["version"]
    assert cpu["imports"] == ["tensorflow", "tf_keras", "tensorboard", "sklearn"] == gpu["imports"]


def test_packages_that_clash_with_those_below(tmp_path: Path) -> None:
    upper = (
        f"numpy==2.5.0{HASH}typing-extensions==4.15.0{HASH}six==1.17.0{HASH}tensorflow==2.21.0{HASH}"
        f"tensorflow-cpu==2.21.0{HASH}mac==2 ; sys_platform == 'darwin'{HASH}"
    )
    versions = ["typing-extensions 4.15.0 (there: 4.16.0)"]
    versions.append("tensorflow 2.21.0 (there: tensorflow-cpu)")
    for python, numpy in [("3.11.2", ["numpy 2.5.0 (there: 2.4.6)"]), ("3.12.1", [])]:
        below = pins(tmp_path, LOWER, python)
        assert filters.clashes(pins(tmp_path, upper, python), below) == numpy + versions


def test_a_host_gets_the_wheels_that_fit_it(tmp_path: Path) -> None:
    grpc = "/w/grpcio-1.0-{0}-{0}-manylinux2014_x86_64.manylinux_2_17_x86_64.whl"
    pure = "/w/six-1.0-py2.py3-none-any.whl"
    stable = "/w/protobuf-7.0-cp310-abi3-manylinux_2_28_x86_64.whl"
    arm = "/w/protobuf-7.0-cp310-abi3-manylinux_2_28_aarch64.whl"
    others = ["/w/other-1-py3-none-any.whl", "/w/six-2.0-py3-none-any.whl", "/w/no.whl"]
    paths = [grpc.format("cp311"), grpc.format("cp312"), pure, stable, arm, *others]
    wanted = pins(tmp_path, f"grpcio==1{HASH}six==1.0{HASH}protobuf==7.0{HASH}")
    found = filters.wheels(wanted, paths, "3.11.2")
    assert found == {"paths": [grpc.format("cp311"), stable, pure], "missing": []}
    assert filters.wheels(wanted, [*paths[:3], arm], "3.13.1")["missing"] == [
        "grpcio 1",
        "protobuf 7.0",
    ]


def test_pip_runs_from_the_archive_and_must_fit_the_host(tmp_path: Path, pip_zip: str) -> None:
    command = [sys.executable, "-I", f"{pip_zip}/pip", "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert pip_zip in said
    with pytest.raises(AnsibleLookupError, match=r"the host has 3\.6\.9: install an older pip"):
        pip_plugin.pack(tmp_path, "3.6.9")
    assert list(tmp_path.iterdir()) == []


LOCKS = [*(ROLE / "files").glob("*.txt"), *(REPOSITORY / "requirements").glob("*.txt")]


@pytest.mark.parametrize("lock", sorted(LOCKS), ids=lambda path: path.name)
def test_locks_have_hashes_and_name_no_place(lock: Path) -> None:
    text = lock.read_text()
    requirements = [line for line in text.splitlines() if re.match(r"[A-Za-z0-9]", line)]
    assert requirements
    for line in requirements:
        assert re.match(r"[\w.-]+(\[[\w,-]+\])?==[\w.!+]+( ; .*)? \\$", line), line
    assert text.count(" \\\n    --hash=sha256:") >= len(requirements)
    assert not re.search(r"://|(?m:^\s*-)(?!-hash=sha256:)@ |/", text)


@pytest.mark.parametrize("name", ["control", "dev"])
def test_ansible_core_by_python(name: str) -> None:
    text = (REPOSITORY / "requirements" / f"{name}.txt").read_text()
    assert re.search(r"^ansible-core==2\.19\.\d+ ; python_full_version < '3\.12' ", text, re.M)
    assert re.search(r"^ansible-core==2\.21\.\d+ ; python_full_version >= '3\.12' ", text, re.M)
