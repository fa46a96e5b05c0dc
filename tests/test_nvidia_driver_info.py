"""What the role ``nvidia_driver`` reads from a host, and what it concludes from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.nvidia_role import H100, KERNEL, T4, Decision, Machine, RefusalError

Capture = pytest.CaptureFixture[str]
ADDRESS = "0000:3b:00.0"
SMI = "00000000:3B:00.0, 0, GPU-1, NVIDIA H100, 81559, 9.0, Disabled, {}\n"
SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """One GPU without a driver."""
    made = Machine(tmp_path, monkeypatch)
    made.device(ADDRESS)
    made.smi_fails("NVIDIA-SMI has failed")
    return made


@pytest.fixture
def good(machine: Machine) -> Machine:
    """One GPU and a good driver."""
    machine.bind(ADDRESS, "nvidia")
    machine.loaded("535.261.03")
    machine.on_disk("535.261.03")
    machine.smi(SMI.format("Enabled"))
    return machine


def conclude(machine: Machine, capsys: Capture, **inputs: Any) -> Decision:
    host = {"kernel": KERNEL, "distribution": "Debian", "os_family": "Debian"}
    return Decision(machine.info(capsys), host, **inputs)


def states(made: Decision) -> list[str]:
    names = ("ready", "installed", "broken", "needs_reboot", "needs_key")
    return [name for name in names if made.value(name)]


def test_gpus_are_nvidias_display_controllers(machine: Machine, capsys: Capture) -> None:
    machine.device("0000:86:00.0", kind="030000", device=T4)
    machine.bind("0000:86:00.0", "nouveau")
    machine.device("0000:3b:00.1", kind="040300")  # its sound
    machine.device("0000:00:02.0", vendor="8086", kind="030000")
    machine.device("0000:00:1f.0", kind="068000")  # NVSwitch
    (machine.device("0000:3b:00.4") / "physfn").symlink_to("../0000:3b:00.0")
    machine.device("0000:af:00.0")
    machine.bind("0000:af:00.0", "vfio-pci")
    (machine.pci / "0000:ff:00.0").mkdir()
    assert machine.info(capsys)["gpus"] == [
        {"pci": ADDRESS, "device_id": H100, "kernel_driver": None},
        {"pci": "0000:86:00.0", "device_id": T4, "kernel_driver": "nouveau"},
    ]


def test_a_host_without_gpu(machine: Machine, capsys: Capture) -> None:
    machine.pci = machine.pci.with_name("nowhere")
    assert machine.info(capsys)["gpus"] == []


def test_a_good_driver(good: Machine, capsys: Capture) -> None:
    good.device("0000:af:00.0")
    result = good.info(capsys)
    assert result["driver"] == {"version": "535.261.03", "open": False}
    assert result["gpus"][0] == {
        **{"pci": ADDRESS, "device_id": H100, "kernel_driver": "nvidia", "index": 0},
        **{"uuid": "GPU-1", "name": "NVIDIA H100", "memory_mib": 81559},
        **{"compute_capability": "9.0", "mig": False},
    }
    assert result["topology"][1].split() == ["GPU0", "X", "0-7"]
    made = conclude(good, capsys)
    assert states(made) == ["ready", "installed"]
    assert made.value("notes") == ["GPUs that the driver does not see: 0000:af:00.0"]


def test_fields_that_a_gpu_does_not_have(good: Machine, capsys: Capture) -> None:
    good.smi("00000000:3B:00.0, 0, GPU-1, NVIDIA GB10, [N/A], 12.1, [N/A], N/A\n")
    good.write(
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (b@h)",
    )
    result = good.info(capsys)
    assert result["driver"] == {"version": "580.95.05", "open": True}
    assert (result["gpus"][0]["memory_mib"], result["gpus"][0]["mig"]) == (None, None)
    assert result["smi"] == {"installed": True, "error": None, "persistence": None}


def test_an_old_driver_is_replaced(good: Machine, capsys: Capture) -> None:
    made = conclude(good, capsys, nvidia_driver_minimum="570.26")
    assert states(made) == []
    assert made.value("notes") == ["driver 535.261.03 is loaded, older than 570.26"]


def test_a_driver_on_the_disk_is_loaded(machine: Machine, capsys: Capture) -> None:
    assert states(conclude(machine, capsys)) == []
    machine.on_disk("535.261.03")
    assert states(conclude(machine, capsys)) == ["installed"]
    machine.write("var/lib/dpkg/status", "Package: libcuda1\nStatus: install ok unpacked\n")
    assert states(conclude(machine, capsys)) == []
    machine.write("var/lib/dpkg/status", "Package: libcuda1\nStatus: install ok installed\n")
    assert states(conclude(machine, capsys)) == ["installed"]
    machine.write("var/lib/dpkg/updates/0001")
    assert states(conclude(machine, capsys)) == []
    machine.root.joinpath("var/lib/dpkg/updates/0001").unlink()
    machine.bin.joinpath("nvidia-smi").unlink()
    assert states(conclude(machine, capsys)) == []


def test_nouveau_needs_a_reboot(machine: Machine, capsys: Capture) -> None:
    machine.on_disk("535.261.03")
    machine.write("sys/module/nouveau/initstate")
    made = conclude(machine, capsys)
    assert states(made) == ["installed", "needs_reboot"]
    assert "needs a reboot, because nouveau is loaded" in made.value("notes")[0]


def test_an_upgrade_under_the_loaded_driver_needs_a_reboot(good: Machine, capsys: Capture) -> None:
    good.on_disk("550.163.01")
    good.smi_fails("Failed to initialize NVML: Driver/library version mismatch")
    made = conclude(good, capsys)
    assert states(made) == ["installed", "needs_reboot"]
    assert "driver 535.261.03 is loaded, 550.163.01 is installed" in made.value("notes")[0]


def test_a_loaded_driver_that_does_not_work_is_refused(good: Machine, capsys: Capture) -> None:
    good.smi_fails("Unable to determine the device handle for GPU0")
    with pytest.raises(RefusalError, match="Unable to determine the device handle"):
        conclude(good, capsys).run("preflight")
    good.smi("")
    with pytest.raises(RefusalError, match="nvidia-smi shows no GPU"):
        conclude(good, capsys).run("preflight")


@pytest.mark.parametrize(("value", "known"), [(1, False), (1, True), (0, False)])
def test_secure_boot(machine: Machine, capsys: Capture, value: int, known: bool) -> None:
    machine.on_disk("535.261.03")
    machine.write(SECURE_BOOT).write_bytes(bytes([6, 0, 0, 0, value]))
    machine.write("var/lib/dkms/mok.pub")
    machine.program("mokutil", f'echo "$2 is {"already" if known else "not"} enrolled"')
    made = conclude(machine, capsys)
    waits = bool(value) and not known
    assert states(made) == ["installed", "needs_key"] if waits else ["installed"]
    assert ("mokutil --import /var/lib/dkms/mok.pub" in "".join(made.value("notes"))) == waits


@pytest.mark.parametrize("mark", ["run/systemd/container", ".dockerenv", "proc/1/environ"])
def test_a_container_is_recognized(machine: Machine, capsys: Capture, mark: str) -> None:
    assert conclude(machine, capsys).value("notes") == []
    machine.write(mark, "PATH=/bin\0container=lxc\0")
    notes = conclude(machine, capsys).value("notes")
    assert f"no kernel module for {KERNEL}" in notes[0]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            [
                "http://mirror/debian/|bookworm|main|$(SIGNED_BY)|/etc/apt/sources.list:1",
                "http://mirror/debian/|bookworm|contrib|$(SIGNED_BY)|/etc/apt/sources.list:1",
                "http://mirror/debian/|bookworm-updates|main|$(SIGNED_BY)|/etc/apt/sources.list:2",
                "http://security/|bookworm-security|non-free|$(SIGNED_BY)|/etc/apt/sources.list:3",
            ],
            (["bookworm", "bookworm-updates"], ["non-free", "non-free-firmware"]),
        ),
        (
            [
                "http://mirror/debian/|bookworm|main|/k.gpg|/etc/apt/sources.list.d/d.sources:1",
                "http://mirror/debian/|bookworm-backports|main|/k.gpg|/etc/apt/d.sources:1",
                # The role's own says nothing about what it should hold.
                "http://mirror/debian/|bookworm|non-free|/k.gpg|"
                "/etc/apt/sources.list.d/nvidia-driver-nonfree.sources:1",
            ],
            (["bookworm"], ["contrib", "non-free", "non-free-firmware"]),
        ),
    ],
)
def test_debians_archive(
    machine: Machine, capsys: Capture, lines: list[str], expected: tuple[list[str], list[str]]
) -> None:
    made = conclude(machine, capsys, __nvidia_driver_targets={"stdout_lines": lines})
    made.variables["ansible_facts"]["distribution_release"] = "bookworm"
    assert made.value("debian")[0][0] == "http://mirror/debian/"
    assert (made.value("suites"), made.value("components")) == expected
