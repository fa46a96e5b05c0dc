"""The faults of hosts that cannot run TensorFlow, from their facts, and the messages."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.support.lab import REPOSITORY
from train.gang import suitability_rules
from train.gang.errors import UserError
from train.gang.suitability_rules import HostFault

HEALTHY: dict[str, Any] = {
    "machine": "x86_64",
    "has_avx": True,
    "nvidia": "",
    "host_python": "3.11.2",
    "os_id": "debian",
    "os_like": "",
    "os_version": "12",
    "os_name": "Debian GNU/Linux 12",
    "interpreter": "/usr/bin/python3",
    "python_version": "3.11.2",
    "implementation": "cpython",
    "bits": 64,
    "free_threaded": False,
    "has_venv": True,
    "glibc": "glibc 2.36",
    "python_error": "",
    "others": [],
    "root": "/home/train/train",
    "parent": "/home/train",
    "obstacle": "",
    "write_error": "",
    "is_noexec": False,
    "mount_point": "/",
    "mount_options": "rw,relatime",
    "free_mb": 20_000,
    "is_installed": False,
}
DEBIAN_11 = {"os_version": "11", "os_name": "Debian GNU/Linux 11", "glibc": "glibc 2.31"}
ROCKY_9 = {"os_id": "rocky", "os_like": "rhel centos fedora", "os_version": "9.4"}
OLD, DENIED = {"python_version": "3.9.2"}, {"write_error": "Permission denied"}
ALONE = {"roles": ["tensorflow"]}


def judged(
    changed: dict[str, Any], roles: Any = suitability_rules.ROLES, **values: Any
) -> list[HostFault]:
    needed = suitability_rules.needs(values, roles)
    return suitability_rules.judge({**HEALTHY, **changed}, needed)  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("changed", "values", "kind", "found", "remedy"),
    [
        ({"machine": "aarch64"}, {}, "architecture", "aarch64", "tensorflow_requirements"),
        ({"has_avx": False}, {}, "no-avx", "lacks AVX", "-cpu host"),
        ({"glibc": "glibc 2.17"}, {}, "c-library", "glibc 2.17 is too old", "newer distribution"),
        ({"glibc": "", "os_name": "Alpine"}, {}, "c-library", "not glibc (Alpine)", "with glibc"),
        ({**OLD, **DEBIAN_11}, {}, "python-too-old", "Python 3.9.2 (/usr/bin", "uv python install"),
        ({**OLD, **DEBIAN_11}, {}, "python-too-old", "", "upgrade the host to Debian 12"),
        (
            {**OLD, **ROCKY_9},
            {},
            "python-too-old",
            "",
            "set tensorflow_python to python3.11, which",
        ),
        ({**OLD, **ROCKY_9}, ALONE, "python-too-old", "", "sudo dnf install python3.11"),
        (
            {**OLD, "others": [{"path": "/opt/py/bin/python3.12", "version": "3.12.1"}]},
            {},
            "python-too-old",
            "",
            "set tensorflow_python to /opt/py/bin/python3.12",
        ),
        (
            {"host_python": "3.6.8"},
            {},
            "host-python-too-old",
            "3.6.8",
            "ansible_python_interpreter",
        ),
        ({"python_version": "3.14.0"}, {}, "python-too-new", "too new", "python3.12"),
        ({"implementation": "pypy"}, {}, "python-build", "is pypy", "uv python install"),
        ({"free_threaded": True}, {}, "python-build", "free-threaded", "uv python install"),
        ({"bits": 32}, {}, "python-build", "32-bit", "uv python install"),
        ({"has_venv": False}, ALONE, "no-venv", "module venv", "apt-get install python3"),
        (
            {"python_error": "no such program: python3.12", "glibc": ""},
            {"tensorflow_python": "python3.12"},
            "no-python",
            "no such program: python3.12",
            "uv python install",
        ),
        ({"obstacle": "/home/train/train"}, {}, "obstacle", "a broken link", "move this file"),
        (DENIED, {}, "not-writable", "/home/train is not writable: Perm", "ls -ld /home"),
        ({**DENIED, "mount_options": "ro"}, {}, "not-writable", "", "mount -o remount,rw /"),
        ({"is_noexec": True}, {}, "noexec", "mounted with noexec", "mount -o remount,exec /"),
        ({"is_noexec": True}, {}, "noexec", "", "set tensorflow_root"),
        ({"free_mb": 2_399}, {}, "no-space", "(2399 MB free)", "df -h /home/train"),
        (
            {"free_mb": 10_000, "nvidia": "driver"},
            {},
            "no-space",
            "TensorFlow (gpu)",
            "free up space",
        ),
        (
            {"free_mb": 10_000, "nvidia": "device"},
            {},
            "no-space",
            "TensorFlow (gpu)",
            "free up space",
        ),
    ],
)
def test_each_fault_has_its_sentence_and_remedy(
    changed: dict[str, Any], values: dict[str, Any], kind: str, found: str, remedy: str
) -> None:
    (fault,) = judged(changed, **values)
    assert fault.kind == kind
    assert found in fault.found
    assert remedy in fault.remedy
    assert fault.expected


@pytest.mark.parametrize(
    ("changed", "values"),
    [
        ({}, {}),
        ({"python_version": "3.10.1"}, {}),
        ({"python_version": "3.13.9"}, {}),
        ({"free_mb": 2_400}, {}),
        ({"free_mb": 1_900}, {"tensorflow_wheelhouse": "/wheels"}),
        ({"free_mb": 5, "is_installed": True}, {}),
        ({"nvidia": "driver", "free_mb": 2_400}, {"tensorflow_variant": "cpu"}),
        ({"nvidia": "device", "free_mb": 2_400}, ALONE),
        # The requirements of the role's own lock do not apply to another lock.
        (
            {"machine": "aarch64", "has_avx": False, "free_mb": 5, "glibc": "glibc 2.17"},
            {"tensorflow_requirements": "/mine.txt"},
        ),
        # Changes that the role training_host will make first.
        ({"has_venv": False}, {}),
        (
            {**ROCKY_9, "python_error": "no such program: python3.11", "glibc": ""},
            {"tensorflow_python": "python3.11"},
        ),
        (
            {**DENIED, "root": "/data/train", "parent": "/data"},
            {"tensorflow_root": "/data/train", "training_host_folders": [{"path": "/data/train"}]},
        ),
        (
            {"is_noexec": True, "free_mb": 1, "root": "/mnt/nas/train", "parent": "/mnt"},
            {
                "tensorflow_root": "/mnt/nas/train",
                "training_host_nfs": [{"src": "nas:/x", "path": "/mnt/nas"}],
            },
        ),
    ],
)
def test_hosts_that_will_do_have_no_fault(changed: dict[str, Any], values: dict[str, Any]) -> None:
    assert judged(changed, **values) == []


@pytest.mark.parametrize(
    "changed",
    [
        # A share that is already mounted is judged as it is.
        {"is_noexec": True, "root": "/mnt/nas/train", "mount_point": "/mnt/nas"},
        # The role cannot create a folder on a filesystem that is mounted read-only.
        {**DENIED, "root": "/mnt/nas/train", "mount_point": "/mnt/nas", "mount_options": "ro"},
    ],
)
def test_what_preparation_does_not_change_stays_a_fault(changed: dict[str, Any]) -> None:
    given = {
        "tensorflow_root": "/mnt/nas/train",
        "training_host_nfs": [{"src": "nas:/x", "path": "/mnt/nas"}],
        "training_host_folders": [{"path": "/mnt/nas/train"}],
    }
    assert len(judged(changed, **given)) == 1


def test_all_faults_are_named_and_equal_hosts_merged() -> None:
    both = judged({**OLD, **DEBIAN_11, "is_noexec": True, "free_mb": 7})
    assert [fault.kind for fault in both] == ["python-too-old", "noexec", "no-space"]
    faults = {"node-10": judged({**OLD, **DEBIAN_11, "free_mb": 9}), "node-2": both}
    shown = suitability_rules.lines(faults)
    both_hosts, first = "node-2 and node-10", "node-2"
    assert [line.partition(":")[0] for line in shown] == [both_hosts, first, both_hosts]
    assert "(node-2: 7 MB free; node-10: 9 MB free)" in shown[2]
    assert all("\n  remedy: " in line for line in shown)


def test_each_remedy_stays_with_its_hosts() -> None:
    there = {"others": [{"path": "/opt/python3.12", "version": "3.12.1"}]}
    faults = {"a": judged(OLD), "b": judged({**OLD, **there})}
    assert [line.partition(":")[0] for line in suitability_rules.lines(faults)] == ["a", "b"]


@pytest.mark.parametrize(
    ("os_version", "roles", "kinds"),
    [
        ("11", ["training_host", "tensorflow"], ["python-too-old"]),
        ("12", ["training_host", "tensorflow"], []),
        ("12", ["tensorflow"], ["no-python"]),
    ],
)
def test_a_host_without_python(os_version: str, roles: list[str], kinds: list[str]) -> None:
    needed = suitability_rules.needs({}, roles)
    found = suitability_rules.without_python("debian", os_version, f"Debian {os_version}", needed)
    assert [fault.kind for fault in found] == kinds


@pytest.mark.parametrize("framework", ["tensorflow", "jax"])
def test_what_the_lock_needs_is_written_once(framework: str) -> None:
    """The README states the limits that the rules use."""
    needs = yaml.safe_load((REPOSITORY / "roles/tensorflow/vars/main.yml").read_text())
    about = needs["__tensorflow_frameworks"][framework]
    text = (REPOSITORY / "roles/tensorflow/README.md").read_text()
    space = about["space_mb"]
    wheelhouse = [space[name]["installed"] / 1000 for name in ("cpu", "gpu")]
    index = [wheelhouse[n] + space[name]["download"] / 1000 for n, name in enumerate(space)]
    row = (
        f"| {about['title']} | {about['pythons'][0]} to {about['pythons'][1]} | {about['glibc']} |"
    )
    (line,) = [line for line in text.splitlines() if line.strip().startswith(row)]
    said = [float(number) for number in re.findall(r"([\d.]+) GB", line)]
    assert said[:4] == pytest.approx([*index, *wheelhouse])


@pytest.mark.parametrize(
    ("least", "version", "expected"),
    [
        ((3, 9), "3.8.10", "Python 3.9 or newer"),
        ((3, 9), "3.9.2", None),
        ((3, 7), "3.7.3", "Python 3.8 or newer"),  # of the project's own modules
        ((), "3.7.3", "Python 3.8 or newer"),
        ((), "3.8.10", None),
    ],
)
def test_the_modules_of_the_ansible_in_use_decide_which_python_a_host_needs(
    least: tuple[int, ...], version: str, expected: str | None
) -> None:
    needed = suitability_rules.needs({}, suitability_rules.ROLES, least)
    facts: Any = {**HEALTHY, "host_python": version}
    faults = suitability_rules.judge(facts, needed)
    assert [fault.expected for fault in faults] == ([expected] if expected else [])
    for fault in faults:
        assert fault.found.startswith(f"Python {version}, which Ansible uses on this host, is too")
        assert "set ansible_python_interpreter" in fault.remedy


def test_the_remedy_for_a_missing_python_has_the_same_minimum() -> None:
    needed = suitability_rules.needs({}, ["tensorflow"], (3, 9))
    (fault,) = suitability_rules.without_python("debian", "12", "Debian 12", needed)
    assert "install python3 (3.9 or newer)" in fault.remedy


JAX = {"train_job_framework": "jax"}
BARE = {"tensorflow_framework": "none", "train_job_framework": "jax"}


@pytest.mark.parametrize(
    ("changed", "values", "found"),
    [
        ({"python_version": "3.10.1"}, JAX, "Python 3.10.1 (/usr/bin/python3) is too old for the"),
        ({"python_version": "3.15.0"}, JAX, "is too new for the locked JAX"),
        ({"glibc": "glibc 2.27"}, JAX, "glibc 2.27 is too old for the locked JAX"),
        ({"has_avx": False}, JAX, "lacks AVX, which JAX requires"),
        ({"free_mb": 999}, JAX, "not enough space for JAX (cpu)"),
        ({"free_mb": 9_899, "nvidia": "driver"}, JAX, "not enough space for JAX (gpu)"),
        ({"free_mb": 0}, BARE, "not enough space for the base environment (any)"),
    ],
)
def test_each_framework_has_its_own_needs(
    changed: dict[str, Any], values: dict[str, Any], found: str
) -> None:
    (fault,) = judged(changed, **values)
    assert found in fault.found


@pytest.mark.parametrize(
    ("changed", "values"),
    [
        ({"python_version": "3.14.1", "free_mb": 1_000}, JAX),
        ({"has_avx": False, "glibc": "glibc 2.17", "free_mb": 1, "nvidia": "driver"}, BARE),
        ({"python_version": "3.9.2"}, BARE),
    ],
)
def test_hosts_that_will_do_for_another_framework(
    changed: dict[str, Any], values: dict[str, Any]
) -> None:
    assert judged(changed, **values) == []


def test_an_unknown_framework_is_refused() -> None:
    with pytest.raises(
        UserError, match="train_job_framework is 'mxnet': choose from tensorflow, j"
    ):
        judged({}, train_job_framework="mxnet")
