"""What the tests of the role ``nvidia_driver`` share; a pytest plugin.

No GPU and no network: PCI listings, files of the kernel and programs such as nvidia-smi are made.

PYTEST_DONT_REWRITE: test modules import this one before pytest knows that it is a plugin.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests import host_roles

ROLE = Path(__file__).resolve().parent.parent / "roles" / "nvidia_driver"
KERNEL = "6.1.0-50-amd64"
MINIMUM = "525.60.13"
FACT = "/etc/ansible/facts.d/nvidia.fact"
BLACKLIST = "/etc/modprobe.d/nvidia-driver-nouveau.conf"
#: Turing's T4, Pascal's P100, Hopper's H100, Blackwell's B200.
T4, P100, H100, B200 = 0x1EB8, 0x15F8, 0x2330, 0x2901


def part(name: str) -> ModuleType:
    """A part of what the role's modules share."""
    return host_roles.part(f"nvidia_setup.{name}")


class Machine:
    """A made-up host: its root folder, its PCI listing, its programs."""

    def __init__(self, folder: Path):
        self.root = folder / "root"
        self.pci = folder / "pci"
        self.bin = folder / "bin"
        for path in (self.root, self.pci, self.bin):
            path.mkdir()
        self.distribution("debian", "12", "bookworm")

    def write(self, path: str, text: str) -> Path:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def distribution(self, name: str, release: str, codename: str = "", like: str = "") -> None:
        self.write(
            "etc/os-release",
            f'ID={name}\nVERSION_ID="{release}"\nVERSION_CODENAME={codename}\nID_LIKE="{like}"\n',
        )

    def device(
        self,
        address: str,
        vendor: int = 0x10DE,
        kind: int = 0x030200,
        device: int = H100,
        driver: str = "",
    ) -> Path:
        folder = self.pci / address
        folder.mkdir()
        for name, number in (("vendor", vendor), ("class", kind), ("device", device)):
            (folder / name).write_text(f"{number:#06x}\n")
        if driver:
            (folder / "driver").symlink_to(f"/sys/bus/pci/drivers/{driver}")
        return folder

    def program(self, name: str, script: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def loaded(self, version: str) -> None:
        self.write(
            "proc/driver/nvidia/version",
            f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Thu Jan  1\nGCC:\n",
        )

    def on_disk(self, version: str) -> None:
        """Debian calls the module nvidia-current, and modinfo knows no other name."""
        self.program("modinfo", f'case "$*" in *nvidia-current) echo {version};; *) exit 1;; esac')

    def smi(self, *gpus: str, persistence: str = "Enabled") -> None:
        lines = "".join(
            f"{index}, GPU-{index}, 0000{address.upper()}, NVIDIA H100, 81559, 9.0, Disabled,"
            f" {persistence}\n"
            for index, address in enumerate(gpus)
        )
        (self.bin / "query").write_text(lines)
        (self.bin / "matrix").write_text("\tGPU0\tCPU Affinity\nGPU0\t X \t0-7\n")
        self.program(
            "nvidia-smi",
            f'case "$1" in topo) cat {self.bin}/matrix;; --query*) cat {self.bin}/query;; esac',
        )

    def smi_fails(self, message: str) -> None:
        self.program("nvidia-smi", f'echo "{message}"; exit 9')

    def unit(self, active: str = "active", enabled: str = "enabled", options: str = "") -> None:
        self.program(
            "systemctl",
            f"echo LoadState=loaded; echo ActiveState={active}; echo UnitFileState={enabled};"
            f' echo "ExecStart={{ path=/usr/bin/nvidia-persistenced ;'
            f' argv[]=/usr/bin/nvidia-persistenced --user nvpd{options} ; ignore_errors=no ; }}"',
        )

    def secure_boot(self, value: int) -> None:
        name = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
        self.write(name, "").write_bytes(bytes([6, 0, 0, 0, value]))

    def look(self, **options: Any) -> dict[str, Any]:
        params = {
            "minimum": MINIMUM,
            "pci_root": str(self.pci),
            "persistence": True,
            "in_container": "leave",
            "packages": [],
            "fact_path": FACT,
            "blacklist_path": BLACKLIST,
            "root": str(self.root),
        }
        result: dict[str, Any] = part("look").look({**params, **options})
        return result

    def todo(self, **options: Any) -> list[str]:
        """What is to do beside the fact, which is to do on every new host."""
        result = self.look(**options)
        return [verb for verb in result["todo"] if verb != "fact"]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setattr(part("system"), "search_path", lambda: f"{made.bin}:/usr/bin:/bin")
    monkeypatch.setattr(
        os, "uname", lambda: os.uname_result(("Linux", "host", KERNEL, "", "x86_64"))
    )
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    return made


@pytest.fixture
def good(machine: Machine) -> Machine:
    """One GPU, a good driver, and the daemon."""
    machine.device("0000:3b:00.0", driver="nvidia")
    machine.loaded("535.261.03")
    machine.smi("0000:3b:00.0")
    machine.unit()
    return machine
