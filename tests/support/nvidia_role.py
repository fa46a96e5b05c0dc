"""What the tests of the role ``nvidia_driver`` share: made-up machines, its decisions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from tests.support.host_roles import load
from tests.support.lab import REPOSITORY

ROLE = REPOSITORY / "roles/nvidia_driver"
KERNEL = "6.1.0-50-amd64"
#: Turing's T4, Pascal's P100, Hopper's H100, Blackwell's B200.
T4, P100, H100, B200 = "1eb8", "15f8", "2330", "2901"


class Machine:
    """A made-up host: its root folder, its PCI listing, its programs."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.root, self.pci, self.bin = folder / "root", folder / "pci", folder / "bin"
        self.module = load(ROLE / "library" / "nvidia_driver_info.py")
        monkeypatch.setattr(self.module, "ROOT", str(self.root))
        monkeypatch.setenv("PATH", f"{self.bin}:/usr/bin:/bin")

    def write(self, path: str, text: str = "", folder: Path | None = None) -> Path:
        target = (folder or self.root) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def device(
        self, address: str, vendor: str = "10de", kind: str = "03", device: str = H100, **links: str
    ) -> None:
        for name, number in (("vendor", vendor), ("class", f"{kind}0200"), ("device", device)):
            self.write(f"{address}/{name}", f"0x{number}\n", self.pci)
        for name, target in links.items():
            (self.pci / address / name).symlink_to(f"/sys/bus/pci/drivers/{target}")

    def program(self, name: str, script: str) -> None:
        self.write(name, f"#!/bin/sh\n{script}\n", self.bin).chmod(0o755)

    def on_disk(self, version: str) -> None:
        """Debian calls the module nvidia-current, and modinfo knows no other name."""
        self.program("modinfo", f'case "$*" in *nvidia-current) echo {version};; *) exit 1;; esac')

    def smi(self, text: str, status: int = 0) -> None:
        self.write("query", text, self.bin)
        topology = "printf '\\t\\033[4mGPU0\\tCPU Affinity\\033[0m\\nGPU0\\t X \\t0-7\\n'"
        script = f'case "$1" in topo) {topology};; *) cat {self.bin}/query;; esac; exit {status}'
        self.program("nvidia-smi", script)

    def info(self, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
        with patch_module_args({"pci_root": str(self.pci)}), pytest.raises(SystemExit):
            self.module.main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result


class RefusalError(Exception):
    """An assertion of the role failed; its message."""


class Decision:
    """What the role's variables and assertions make of a host: its facts and package lists."""

    def __init__(
        self, facts: dict[str, Any], host: dict[str, Any], offered: dict[str, str], **inputs: Any
    ):
        policy = [f"{name}:\n  Installed: (none)\n  Candidate: {offered[name]}" for name in offered]
        self.variables = {
            **{**self.file("defaults/main.yml"), **self.file("vars/main.yml"), **inputs},
            **{"nvidia_driver_facts": facts, "ansible_facts": host, "ansible_check_mode": False},
            "__nvidia_driver_lists": {"stdout": "\n".join([*policy, *offered])},
            "__nvidia_driver_names": {"stdout": "\n".join(offered)},
        }

    @staticmethod
    def file(name: str) -> Any:
        return DataLoader().load_from_file(str(ROLE / name), trusted_as_template=True)

    @property
    def templar(self) -> Templar:
        return Templar(loader=DataLoader(), variables=self.variables)

    def value(self, name: str) -> Any:
        """The value of one of the role's variables."""
        return self.templar.template(trust_as_template("{{ " + f"__nvidia_driver_{name}" + " }}"))

    def follow(self, task: dict[str, Any]) -> None:
        """Follow a task's assertions; its other tasks change nothing here."""
        if "ansible.builtin.include_vars" in task:
            name = self.templar.template(task["ansible.builtin.include_vars"]["file"])
            self.variables.update(self.file(f"vars/{name}"))
        elif self.holds(task.get("when", [])):
            for inner in task.get("block", []):
                self.follow(inner)
            check = task.get("ansible.builtin.assert")
            if check and not self.holds(check["that"]):
                raise RefusalError(self.templar.template(check["fail_msg"]))

    def holds(self, conditions: Any) -> bool:
        listed = conditions if isinstance(conditions, list) else [conditions]
        return all(self.templar.evaluate_conditional(each) for each in listed)
