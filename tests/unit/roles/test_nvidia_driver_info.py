"""What the role ``nvidia_driver`` reads from a host, and what it concludes from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.nvidia_role import H100, KERNEL, T4, Decision, Machine, RefusalError

Capture = pytest.CaptureFixture[str]
ADDRESS, SMI = "0000:3b:00.0", "00000000:3B:00.0, 0, GPU-1, NVIDIA H100, {}, {}, {}, Enabled\n"
PROC = "proc/driver/nvidia/version"
SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """One GPU, a driver on the disk, none in the kernel."""
    made = Machine(tmp_path, monkeypatch)
    made.device(ADDRESS)
    made.on_disk("535.261.03")
    made.smi("NVIDIA-SMI has failed", status=9)
    return made


@pytest.fixture
def good(machine: Machine) -> Machine:
    """One GPU and a good driver."""
    machine.write(PROC, "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  Thu\nGCC:\n")
    machine.smi(SMI.format(81559, "9.0", "Disabled"))
    return machine


def conclude(machine: Machine, capsys: Capture, **inputs: Any) -> Decision:
    host = {"kernel": KERNEL, "distribution": "Debian", "os_family": "Debian"}
    return Decision(machine.info(capsys), {**host, "distribution_release": "trixie"}, {}, **inputs)


def states(made: Decision) -> list[str]:
    names = ("ready", "installed", "broken", "needs_reboot", "needs_key")
    return [name for name in names if made.value(name)]


def test_gpus_are_nvidias_display_controllers(machine: Machine, capsys: Capture) -> None:
    machine.device("0000:86:00.0", device=T4, driver="nouveau")
    machine.device("0000:3b:00.1", kind="04")  # its sound
    machine.device("0000:00:02.0", vendor="8086")
    machine.device("0000:3b:00.4", physfn="a")
    machine.device("0000:af:00.0", driver="vfio-pci")
    (machine.pci / "0000:ff:00.0").mkdir()
    assert machine.info(capsys)["gpus"] == [
        {"pci": ADDRESS, "device_id": H100, "kernel_driver": None},
        {"pci": "0000:86:00.0", "device_id": T4, "kernel_driver": "nouveau"},
    ]
    machine.pci = machine.pci.with_name("nowhere")
    assert machine.info(capsys)["gpus"] == []


def test_a_good_driver(good: Machine, capsys: Capture) -> None:
    good.device("0000:af:00.0")
    result = good.info(capsys)
    assert result["driver"] == {"version": "535.261.03", "open": False}
    assert result["gpus"][0] == {
        **{"pci": ADDRESS, "device_id": H100, "kernel_driver": None, "index": 0, "uuid": "GPU-1"},
        **{"name": "NVIDIA H100", "memory_mib": 81559, "compute_capability": "9.0", "mig": False},
    }
    assert result["topology"][1].split() == ["GPU0", "X", "0-7"]
    made = conclude(good, capsys)
    assert states(made) == ["ready", "installed"]
    assert made.value("notes") == ["GPUs that the driver does not see: 0000:af:00.0"]
    made = conclude(good, capsys, nvidia_driver_minimum="570.26")
    assert states(made) == []
    assert made.value("notes") == ["driver 535.261.03 is loaded, older than 570.26"]


def test_fields_that_a_gpu_does_not_have(good: Machine, capsys: Capture) -> None:
    good.smi(SMI.format("[N/A]", "12.1", "[N/A]").replace("Enabled", "N/A"))
    good.write(PROC, "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release")
    result = good.info(capsys)
    assert result["driver"] == {"version": "580.95.05", "open": True}
    assert (result["gpus"][0]["memory_mib"], result["gpus"][0]["mig"]) == (None, None)
    assert result["smi"] == {"installed": True, "error": None, "persistence": None}


def test_a_driver_on_the_disk_is_loaded(machine: Machine, capsys: Capture) -> None:
    status = machine.write("var/lib/dpkg/status", "Status: install ok installed\n")
    assert states(conclude(machine, capsys)) == ["installed"]
    journal = machine.write("var/lib/dpkg/updates/0001")
    assert states(conclude(machine, capsys)) == []
    journal.unlink()
    status.write_text("Package: libcuda1\nStatus: install ok unpacked\n")
    assert states(conclude(machine, capsys)) == []
    status.unlink()
    (machine.bin / "nvidia-smi").unlink()
    assert states(conclude(machine, capsys)) == []


def test_another_driver_in_the_kernel_needs_a_reboot(good: Machine, capsys: Capture) -> None:
    good.on_disk("550.163.01")
    good.smi("Failed to initialize NVML: Driver/library version mismatch", status=9)
    made = conclude(good, capsys)
    assert states(made) == ["installed", "needs_reboot"]
    assert "driver 535.261.03 is loaded, 550.163.01 is installed" in made.value("notes")[0]
    (good.root / PROC).unlink()
    good.write("sys/module/nouveau/initstate")
    made = conclude(good, capsys)
    assert states(made) == ["installed", "needs_reboot"]
    assert "needs a reboot, because nouveau is loaded" in made.value("notes")[0]


@pytest.mark.parametrize(("text", "status"), [("Unable to determine", 9), ("shows no GPU", 0)])
def test_a_broken_driver_is_refused(good: Machine, capsys: Capture, text: str, status: int) -> None:
    good.smi(text if status else "", status)
    made = conclude(good, capsys)
    with pytest.raises(RefusalError, match=f"nvidia-smi fails: .*{text}"):
        made.follow({"block": made.file("tasks/preflight.yml")})


@pytest.mark.parametrize(("value", "known"), [(1, False), (1, True), (0, False)])
def test_secure_boot(machine: Machine, capsys: Capture, value: int, known: bool) -> None:
    machine.write(SECURE_BOOT).write_bytes(bytes([6, 0, 0, 0, value]))
    machine.write("var/lib/dkms/mok.pub")
    machine.program("mokutil", f'echo "$2 is {"already" if known else "not"} enrolled"')
    made = conclude(machine, capsys)
    waits = bool(value) and not known
    assert states(made) == (["installed", "needs_key"] if waits else ["installed"])
    assert ("mokutil --import /var/lib/dkms/mok.pub" in "".join(made.value("notes"))) == waits


@pytest.mark.parametrize("mark", ["run/systemd/container", ".dockerenv", "proc/1/environ"])
def test_a_container_is_recognized(machine: Machine, capsys: Capture, mark: str) -> None:
    assert conclude(machine, capsys).value("notes") == []
    machine.write(mark, "PATH=/bin\0container=lxc\0")
    assert f"no kernel module for {KERNEL}" in conclude(machine, capsys).value("notes")[0]


@pytest.mark.parametrize(
    ("lines", "suites", "components"),
    [
        (
            "trixie|main|$(SIGNED_BY)|1 trixie|contrib|$(SIGNED_BY)|1 trixie-updates|main||2",
            ["trixie", "trixie-updates"],
            ["non-free", "non-free-firmware"],
        ),
        (  # the role's own source does not count
            "trixie|main|/k|1 trixie-backports|main|/k|1 trixie|contrib|/k|/x/nvidia-driver-a:1",
            ["trixie"],
            ["contrib", "non-free", "non-free-firmware"],
        ),
    ],
)
def test_debians_archive(
    machine: Machine, capsys: Capture, lines: str, suites: list[str], components: list[str]
) -> None:
    targets = [f"http://mirror/debian/|{line}" for line in lines.split()]
    targets.append("http://security/|trixie-security|non-free||3")
    made = conclude(machine, capsys, __nvidia_driver_targets={"stdout_lines": targets})
    assert made.value("debian")[0][0] == "http://mirror/debian/"
    assert (made.value("suites"), made.value("components")) == (suites, components)
