"""What the tests of the role ``nvidia_driver`` share: made-up machines, and what the role decides.

No GPU and no network: PCI listings, files of the kernel and programs such as nvidia-smi are made.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from tests.host_roles import load

ROLE = Path(__file__).resolve().parent.parent / "roles" / "nvidia_driver"
KERNEL = "6.1.0-50-amd64"
#: Turing's T4, Pascal's P100, Hopper's H100, Blackwell's B200.
T4, P100, H100, B200 = "1eb8", "15f8", "2330", "2901"


class Machine:
    """A made-up host: its root folder, its PCI listing, its programs."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.root, self.pci, self.bin = folder / "root", folder / "pci", folder / "bin"
        for path in (self.root, self.pci, self.bin):
            path.mkdir()
        self.module = load(ROLE / "library" / "nvidia_driver_info.py")
        monkeypatch.setattr(self.module, "ROOT", str(self.root))
        monkeypatch.setenv("PATH", f"{self.bin}:/usr/bin:/bin")

    def write(self, path: str, text: str = "") -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def device(
        self, address: str, vendor: str = "10de", kind: str = "030200", device: str = H100
    ) -> Path:
        folder = self.pci / address
        folder.mkdir()
        for name, number in (("vendor", vendor), ("class", kind), ("device", device)):
            (folder / name).write_text(f"0x{number}\n")
        return folder

    def bind(self, address: str, driver: str) -> None:
        (self.pci / address / "driver").symlink_to(f"/sys/bus/pci/drivers/{driver}")

    def program(self, name: str, script: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def loaded(self, version: str) -> None:
        line = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Thu Jan  1\nGCC:\n"
        self.write("proc/driver/nvidia/version", line)

    def on_disk(self, version: str) -> None:
        """Debian calls the module nvidia-current, and modinfo knows no other name."""
        self.program("modinfo", f'case "$*" in *nvidia-current) echo {version};; *) exit 1;; esac')

    def smi(self, lines: str) -> None:
        (self.bin / "query").write_text(lines)
        (self.bin / "matrix").write_text("\t\x1b[4mGPU0\tCPU Affinity\x1b[0m\nGPU0\t X \t0-7\n")
        script = f'case "$1" in topo) cat {self.bin}/matrix;; *) cat {self.bin}/query;; esac'
        self.program("nvidia-smi", script)

    def smi_fails(self, message: str) -> None:
        self.program("nvidia-smi", f'echo "{message}"; exit 9')

    def info(self, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
        with patch_module_args({"pci_root": str(self.pci)}), pytest.raises(SystemExit):
            self.module.main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result


class RefusalError(Exception):
    """An assertion of the role failed; its message."""


class Decision:
    """What the role's variables and assertions make of a host.

    Args:
        facts: the result of the role's module.
        host: Ansible's facts about the host.
        offered: the packages of its package lists, with their versions.
        inputs: variables of the role.
    """

    def __init__(
        self,
        facts: dict[str, Any],
        host: dict[str, Any] | None = None,
        offered: dict[str, str] | None = None,
        **inputs: Any,
    ):
        offered = offered or {}
        policy = "".join(
            f"{name}:\n  Installed: (none)\n  Candidate: {version}\n  Version table:\n"
            for name, version in offered.items()
        )
        self.variables = {
            **self.file("defaults/main.yml"),
            **self.file("vars/main.yml"),
            **inputs,
            "nvidia_driver_facts": facts,
            "ansible_facts": host or {},
            "ansible_check_mode": False,
            "__nvidia_driver_lists": {"stdout": policy + "\n".join(offered)},
            "__nvidia_driver_names": {"stdout": "\n".join(offered)},
        }

    @staticmethod
    def file(name: str) -> Any:
        return DataLoader().load_from_file(str(ROLE / name), trusted_as_template=True)

    def templar(self) -> Templar:
        return Templar(loader=DataLoader(), variables=self.variables)

    def value(self, name: str) -> Any:
        """The value of one of the role's variables."""
        return self.templar().template(trust_as_template("{{ " + f"__nvidia_driver_{name}" + " }}"))

    def run(self, tasks: str) -> Decision:
        """Follow the assertions of a task file; its other tasks change nothing."""
        for task in self.file(f"tasks/{tasks}.yml"):
            self.follow(task)
        return self

    def follow(self, task: dict[str, Any]) -> None:
        if "ansible.builtin.include_vars" in task:
            name = self.templar().template(task["ansible.builtin.include_vars"]["file"])
            self.variables.update(self.file(f"vars/{name}"))
            return
        if not self.holds(task.get("when", [])):
            return
        for inner in task.get("block", []):
            self.follow(inner)
        check = task.get("ansible.builtin.assert")
        if check and not self.holds(check["that"]):
            raise RefusalError(self.templar().template(check["fail_msg"]))

    def holds(self, conditions: Any) -> bool:
        listed = conditions if isinstance(conditions, list) else [conditions]
        return all(self.templar().evaluate_conditional(each) for each in listed)
