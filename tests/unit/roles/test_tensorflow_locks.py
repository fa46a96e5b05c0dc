"""The filters of the role ``tensorflow`` on the control node: locks, wheels, archives."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.tensorflow_ansible.cluster.plugins.filter import tensorflow_locks as locks

from tests.support.lab import REPOSITORY

LOCKS = REPOSITORY / "roles/tensorflow/files"
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
    return locks.pins(str(path), python)


def test_conditions_and_clashes_are_judged_for_the_hosts_python(tmp_path: Path) -> None:
    upper = (
        f"numpy==2.5.0{HASH}typing-extensions==4.15.0{HASH}six==1.17.0{HASH}tensorflow==2.21.0{HASH}"
        f"tensorflow-cpu==2.21.0{HASH}mac==2 ; sys_platform == 'darwin'{HASH}"
    )
    versions = ["typing-extensions 4.15.0 (installed: 4.16.0)"]
    versions.append("tensorflow 2.21.0 (installed: tensorflow-cpu)")
    for python, numpy in (("3.11", "2.4.6"), ("3.12", "2.5.0"), ("3.12.4", "2.5.0")):
        clash = ["numpy 2.5.0 (installed: 2.4.6)"] if numpy == "2.4.6" else []
        below = pins(tmp_path, LOWER, python)
        assert [pin["name"] for pin in below] == ["tensorflow-cpu", "numpy", "typing-extensions"]
        assert below[1]["line"] == f"numpy=={numpy} --hash=sha256:{64 * '0'}"
        assert locks.clashes(pins(tmp_path, upper, python), below) == clash + versions


@pytest.mark.parametrize(
    ("framework", "text", "message"),
    [
        ("tensorflow", f"keras==3.0{HASH}", "locks no TensorFlow. Lock tensorflow==VERSION or"),
        ("tensorflow", f"tensorflow==1{HASH}tensorflow_cpu==1{HASH}", "locks tensorflow and tens"),
        ("jax", f"tensorflow==1{HASH}", "locks no JAX. Lock jax==VERSION"),
        ("", "six==1.17.0\n", "six==1.17.0 has no hash"),
        ("", f"six==1{HASH}# from a tool\nsix>=1\n", "six>=1 is not NAME==VERSION"),
        ("", "six==1.*\n", "is not NAME==VERSION"),
        ("", "-r other.txt\n", "-r other.txt is not NAME==VERSION"),
        ("", "six @ https://example.org/six.whl\n", "is not NAME==VERSION"),
        ("", "# nothing\n", "contains no package"),
    ],
)
def test_files_that_are_no_locks(tmp_path: Path, framework: str, text: str, message: str) -> None:
    """Without a framework, the file is for packages on top of one."""
    path = tmp_path / "extra.txt"
    path.write_text(text)
    with pytest.raises(AnsibleFilterError, match=message):
        locks.locks([str(path)], framework) if framework else locks.extra_lock(str(path))


def test_one_tensorflow_in_both_variants(tmp_path: Path) -> None:
    paths = [str(LOCKS / f"{variant}.txt") for variant in ("cpu", "gpu")]
    cpu, gpu = locks.locks(paths, "tensorflow")
    assert (cpu["variant"], gpu["variant"]) == ("cpu", "gpu")
    assert cpu["imports"] == ["tensorflow", "tf_keras", "tensorboard"] == gpu["imports"]
    other = tmp_path / "other.txt"
    other.write_text(f"tensorflow==1.0{HASH}")
    with pytest.raises(AnsibleFilterError, match=r"and 1\.0 .*: all ranks of a job need the same"):
        locks.locks([paths[0], str(other)], "tensorflow")


def test_one_jax_in_both_variants_and_in_every_python() -> None:
    """The processes of a gang need the same JAX, whatever their hosts' Python."""
    paths = [str(LOCKS / f"jax-{variant}.txt") for variant in ("cpu", "gpu")]
    cpu, gpu = locks.locks(paths, "jax")
    assert (cpu["variant"], gpu["variant"]) == ("cpu", "gpu")
    assert cpu["imports"] == ["jax", "keras"] == gpu["imports"]
    for path in paths:
        for python in ("3.11", "3.14"):
            versions = {pin["name"]: pin["version"] for pin in locks.pins(path, python)}
            assert versions["jax"] == versions["jaxlib"] == cpu["version"]


@pytest.mark.parametrize("framework", ["torch", "none"])
def test_the_lock_without_a_framework_has_no_packages(framework: str) -> None:
    (bare,) = locks.locks([str(LOCKS / "bare.txt")], framework)
    assert (bare["framework"], bare["variant"], bare["imports"]) == ("none", "any", [])
    assert locks.pins(bare["path"], "3.11") == []


def test_a_host_gets_the_wheels_that_fit_it(tmp_path: Path) -> None:
    grpc = "grpcio-1.0-{0}-{0}-manylinux2014_x86_64.manylinux_2_17_x86_64.whl"
    pure = "six-1.0-py2.py3-none-any.whl"
    stable = "protobuf-7.0-cp310-abi3-manylinux_2_28_x86_64.whl"
    others = ["other-1-py3-none-any.whl", "six-2.0-py3-none-any.whl", "no.whl"]
    others.append("protobuf-7.0-cp310-abi3-manylinux_2_28_aarch64.whl")
    for name in (grpc.format("cp311"), grpc.format("cp312"), pure, stable, *others):
        (tmp_path / name).touch()
    with (tmp_path / stable).open("wb") as stream:
        stream.truncate(locks.LARGE_BYTES)
    wanted = pins(tmp_path, f"grpcio==1{HASH}six==1.0{HASH}protobuf==7.0{HASH}")
    found = locks.wheels(wanted, str(tmp_path), "3.11.2")
    small = [str(tmp_path / name) for name in (grpc.format("cp311"), pure)]
    assert found == {"small": small, "large": [str(tmp_path / stable)], "missing": []}
    (tmp_path / stable).unlink()
    missing = locks.wheels(wanted, str(tmp_path), "3.13.1")["missing"]
    assert missing == ["grpcio 1", "protobuf 7.0"]


@pytest.mark.parametrize(
    "lock",
    sorted([*LOCKS.glob("*[cg]pu.txt"), *(REPOSITORY / "requirements").glob("*.txt")]),
    ids=lambda path: path.name,
)
def test_locks_have_hashes_and_name_no_place(lock: Path) -> None:
    assert list(locks.parse(str(lock), True))  # rejects packages without hashes
    assert not re.search(r"://|^\s*-(?!-hash=sha256:)| @ |/", lock.read_text(), re.M)


@pytest.mark.parametrize("name", ["control", "dev"])
def test_ansible_core_by_python(name: str) -> None:
    text = (REPOSITORY / "requirements" / f"{name}.txt").read_text()
    assert re.search(r"^ansible-core==2\.19\.\d+ ; python_full_version < '3\.12' ", text, re.M)
    assert re.search(r"^ansible-core==2\.21\.\d+ ; python_full_version >= '3\.12' ", text, re.M)
