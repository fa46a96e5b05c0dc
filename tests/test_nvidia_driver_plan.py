"""What the role ``nvidia_driver`` decides: what is left to do, and what is told."""

from __future__ import annotations

import json
import os

import pytest

from tests.nvidia_role import BLACKLIST, FACT, KERNEL, Machine

pytest_plugins = ("tests.nvidia_role",)


def test_a_good_driver_is_left_alone(good: Machine) -> None:
    assert good.look()["todo"] == ["fact"]
    good.write(FACT, good.look()["fact"])
    result = good.look()
    assert (result["ready"], result["todo"], result["notes"]) == (True, [], [])
    fact = json.loads(result["fact"])
    assert fact["driver"] == {"version": "535.261.03", "open": False}
    assert fact["gpus"][0]["memory_mib"] == 81559
    assert fact["topology"]["cpu_affinity"] == {"GPU0": "0-7"}


def test_a_gpu_that_the_driver_does_not_see_is_told(good: Machine) -> None:
    good.device("0000:af:00.0")
    assert good.look()["notes"] == ["GPUs that the driver does not see: 0000:af:00.0"]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({}, []),
        ({"enabled": "static"}, []),
        ({"active": "inactive"}, ["persistence"]),
        ({"enabled": "disabled"}, ["persistence"]),
    ],
)
def test_the_persistence_daemon_must_run(
    good: Machine, state: dict[str, str], expected: list[str]
) -> None:
    good.unit(**state)
    assert good.todo() == expected
    assert good.todo(persistence=False) == []


def test_a_daemon_that_is_kept_from_its_work_gets_another_command(good: Machine) -> None:
    good.unit(options=" --no-persistence-mode --verbose")
    good.smi("0000:3b:00.0", persistence="Disabled")
    result = good.look()
    assert "persistence" in result["todo"]
    command = "/usr/bin/nvidia-persistenced --user nvpd --verbose"
    assert result["persistence"]["exec_start"] == command


def test_a_missing_daemon_is_told(good: Machine) -> None:
    good.program("systemctl", "echo LoadState=not-found")
    assert good.todo() == []
    assert "no unit nvidia-persistenced.service" in good.look()["notes"][0]


def test_a_bare_machine_gets_a_driver(machine: Machine) -> None:
    machine.device("0000:3b:00.0")
    assert machine.todo() == ["install"]


def test_an_old_driver_is_replaced(good: Machine) -> None:
    good.on_disk("535.261.03")
    result = good.look(minimum="570.26")
    assert "install" in result["todo"]
    assert result["notes"] == ["driver 535.261.03 is loaded, older than 570.26"]


def test_a_driver_on_the_disk_is_loaded(machine: Machine) -> None:
    machine.device("0000:3b:00.0")
    machine.on_disk("535.261.03")
    assert machine.todo() == ["install"]  # nvidia-smi is not there
    machine.smi_fails("NVIDIA-SMI has failed")
    assert machine.todo() == ["load"]
    machine.write("var/lib/dpkg/status", "Package: libcuda1\nStatus: install ok unpacked\n")
    assert machine.todo() == ["install"]


def test_nouveau_needs_a_reboot_after_it_was_kept_out(machine: Machine) -> None:
    machine.device("0000:3b:00.0", driver="nouveau")
    machine.on_disk("535.261.03")
    machine.smi_fails("NVIDIA-SMI has failed")
    assert machine.todo() == ["blacklist", "reboot"]
    blacklist = machine.write(BLACKLIST, "blacklist nouveau\n")
    ramdisk = machine.write(f"boot/initrd.img-{KERNEL}", "")
    os.utime(ramdisk, (1, 1))  # of before the file
    assert machine.todo() == ["blacklist", "reboot"]
    os.utime(blacklist, (1, 1))
    result = machine.look()
    assert "reboot" in result["todo"]
    assert "blacklist" not in result["todo"]
    assert "nouveau is loaded" in result["notes"][0]


def test_a_driver_that_was_upgraded_under_the_loaded_one_needs_a_reboot(good: Machine) -> None:
    good.on_disk("550.163.01")
    good.smi_fails("Failed to initialize NVML: Driver/library version mismatch")
    good.write(BLACKLIST, "")
    result = good.look()
    assert "reboot" in result["todo"]
    assert "driver 535.261.03 is loaded, 550.163.01 is installed" in result["notes"][0]


def test_a_loaded_driver_that_does_not_answer_is_a_problem(good: Machine) -> None:
    good.on_disk("535.261.03")
    good.smi_fails("Unable to determine the device handle for GPU0")
    result = good.look()
    assert not result["ready"]
    assert "Unable to determine the device handle" in result["problems"][0]


def test_a_driver_that_no_package_can_replace_is_a_problem(machine: Machine) -> None:
    machine.device("0000:3b:00.0")
    machine.write("usr/bin/nvidia-uninstall", "")
    result = machine.look()
    assert "install" not in result["todo"]
    assert "nvidia-uninstall --silent" in result["problems"][0]


@pytest.mark.parametrize(
    ("name", "release", "like", "fits"),
    [
        ("debian", "13", "", True),
        ("debian", "11", "", False),
        ("ubuntu", "24.04", "debian", True),
        ("rocky", "9.6", "rhel centos fedora", True),
        ("rocky", "10.0", "rhel centos fedora", False),
        ("fedora", "43", "", False),
    ],
)
def test_distributions(machine: Machine, name: str, release: str, like: str, fits: bool) -> None:
    machine.device("0000:3b:00.0")
    machine.distribution(name, release, like=like)
    result = machine.look()
    assert ("install" in result["todo"], bool(result["problems"])) == (fits, not fits)


@pytest.mark.parametrize(
    ("value", "known", "expected"),
    [(1, False, ["load", "enrol"]), (1, True, ["load"]), (0, False, ["load"])],
)
def test_secure_boot(machine: Machine, value: int, known: bool, expected: list[str]) -> None:
    machine.device("0000:3b:00.0")
    machine.on_disk("535.261.03")
    machine.smi_fails("NVIDIA-SMI has failed")
    machine.secure_boot(value)
    machine.write("var/lib/dkms/mok.pub", "")
    machine.program("mokutil", f'echo "$2 is {"already" if known else "not"} enrolled"')
    result = machine.look()
    assert [verb for verb in result["todo"] if verb != "fact"] == expected
    assert ("mokutil --import" in "".join(result["notes"])) == ("enrol" in expected)


@pytest.mark.parametrize("mark", ["run/systemd/container", ".dockerenv", "proc/1/environ"])
def test_a_container_is_left_alone(machine: Machine, mark: str) -> None:
    machine.device("0000:3b:00.0")
    machine.write(mark, "PATH=/bin\0container=lxc\0")
    assert machine.todo() == []
    assert f"no kernel module for {KERNEL}" in machine.look()["notes"][0]


def test_a_container_gets_packages_when_asked(machine: Machine) -> None:
    machine.device("0000:3b:00.0")
    machine.write(".dockerenv", "")
    wanted = {"in_container": "packages", "packages": ["nvidia-smi"]}
    assert machine.todo(**wanted) == ["install"]
    machine.write("var/lib/dpkg/status", "Package: nvidia-smi\nStatus: install ok installed\n")
    assert machine.todo(**wanted) == ["install"]  # nouveau
    machine.write(BLACKLIST, "blacklist nouveau\n")
    assert machine.todo(**wanted) == []
    journal = machine.write("var/lib/dpkg/updates/0001", "")
    assert machine.todo(**wanted) == ["install"]
    journal.unlink()
    assert machine.todo(in_container="packages") == ["install"]
    machine.smi_fails("NVIDIA-SMI has failed")
    assert machine.todo(in_container="packages") == []


def test_a_wrong_minimum_is_refused(machine: Machine) -> None:
    with pytest.raises(ValueError, match="'new' is no version"):
        machine.look(minimum="new")
