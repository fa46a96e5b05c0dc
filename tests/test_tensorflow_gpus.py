"""The role ``tensorflow`` compares TensorFlow's GPUs with the driver's; all of them are fakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tensorflow_role import (
    Call,
    environments,
    make_lock,
    make_wheel,
    module,
    part,
    shown_version,
    with_lock,
)

pytest_plugins = ("tests.tensorflow_role",)
gpus = part("gpus")

VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Tue Nov 21 08:00:00 UTC 2026\n"


class Machine:
    """A host with GPUs: what its driver shows, and what its TensorFlow sees."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.dev = folder / "proc", folder / "dev"
        self.seen, self.looks = folder / "seen", folder / "looks"
        self.dev.mkdir()

    def has(self, count: int, version: str = "550.54.15", seen: int | None = None) -> None:
        """Set what the driver shows, and TensorFlow sees."""
        for index in range(count):
            (self.proc / "gpus" / f"0000:0{index}:00.0").mkdir(parents=True, exist_ok=True)
            (self.dev / f"nvidia{index}").touch()
        (self.proc / "version").write_text(VERSION.format(version))
        self.seen.write_text(str(count if seen is None else seen))

    def looked(self) -> int:
        """How often TensorFlow was asked for its GPUs."""
        return len(self.looks.read_text().splitlines()) if self.looks.exists() else 0


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine(tmp_path)
    monkeypatch.setattr(gpus, "PROC", str(found.proc))
    monkeypatch.setattr(gpus, "DEV", str(found.dev))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return found


@pytest.fixture
def gpu_params(params: dict[str, Any], machine: Machine, tmp_path: Path) -> dict[str, Any]:
    """Arguments for a stand-in of TensorFlow that sees as many GPUs as a file says."""
    body = f"""
import os, sys
class config:
    @staticmethod
    def list_physical_devices(kind):
        with open({str(machine.looks)!r}, "a") as stream:
            stream.write(kind + " " + os.environ.get("CUDA_VISIBLE_DEVICES", "all") + "\\n")
        print("nothing to do with it", file=sys.stderr)
        print("W0000 gpu_device.cc:1] Cannot dlopen some GPU libraries.", file=sys.stderr)
        return ["GPU"] * int(open({str(machine.seen)!r}).read())
"""
    lock = make_lock(tmp_path / "gpu.txt", make_wheel(tmp_path / "wheels", "1.0", body))
    found = with_lock(params, lock)
    found["locks"][0]["variant"] = "gpu"
    return {**found, "driver_minimum": "525.60.13"}


def test_as_many_as_the_driver_shows(
    gpu_params: dict[str, Any], call: Call, machine: Machine
) -> None:
    machine.has(8)
    result = call(gpu_params)
    assert result["changed"], result
    assert result["gpus"] == {"driver": 8, "tensorflow": 8}
    assert machine.looks.read_text() == "GPU all\n"
    marker = json.loads(Path(result["venv"], "tensorflow-venv.json").read_text())
    assert marker["gpus"] == {"driver": "550.54.15", "of_driver": 8, "of_tensorflow": 8}
    assert not call(gpu_params)["changed"]
    assert machine.looked() == 1  # a ready host starts no TensorFlow


@pytest.mark.parametrize("change", ["more GPUs", "another driver"])
def test_looked_at_again_when_the_driver_changed(
    gpu_params: dict[str, Any], call: Call, machine: Machine, change: str
) -> None:
    machine.has(1)
    call(gpu_params)
    if change == "more GPUs":
        machine.has(2)
    else:
        machine.has(1, "570.10")
    result = call(gpu_params)
    assert result["changed"]
    assert not result["installed"]
    assert machine.looked() == 2
    assert not call(gpu_params)["changed"]


def test_fewer_is_an_error_and_costs_no_second_download(
    gpu_params: dict[str, Any], call: Call, machine: Machine
) -> None:
    machine.has(4, "470.82.01", seen=0)
    result = call(gpu_params)
    assert result["failed"]
    said = result["msg"]
    assert "TensorFlow 1.0 sees 0 of the 4 GPUs that the driver 470.82.01 shows" in said
    assert "470.82.01 is older than 525.60.13: install a newer one (role nvidia_driver)" in said
    assert "TensorFlow does not find its CUDA libraries: make the lock with" in said
    assert "W0000 gpu_device.cc:1] Cannot dlopen some GPU libraries." in said
    assert "nothing to do with it" not in said
    assert "It was not taken into use." in said
    assert not Path(gpu_params["root"], "venv").is_symlink()
    assert len(environments(gpu_params["root"])) == 1
    assert call(gpu_params)["failed"]  # nothing has changed

    machine.has(4, "550.54.15")
    mended = call(gpu_params)
    assert mended["changed"]
    assert not mended["installed"]
    assert shown_version(mended["link"]) == "1.0"


def test_what_is_in_use_stays_in_use(
    gpu_params: dict[str, Any], call: Call, machine: Machine
) -> None:
    machine.has(2)
    call(gpu_params)
    machine.has(2, "560.1", seen=1)
    result = call(gpu_params)
    assert result["failed"]
    assert "sees 1 of the 2 GPUs" in result["msg"]
    assert "It is in use as before." in result["msg"]


def test_fewer_may_be_a_warning(
    gpu_params: dict[str, Any], call: Call, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(module.AnsibleModule, "warn", lambda _, text: said.append(text))
    machine.has(2, seen=1)
    lenient = {**gpu_params, "require_gpus": False}
    assert call(lenient)["changed"]
    assert "sees 1 of the 2 GPUs" in said.pop()
    assert not call(lenient)["changed"]
    assert "as was found once" in said.pop()
    assert said == []
    assert machine.looked() == 1
    assert call(gpu_params)["failed"]
    assert machine.looked() == 2


def causes(machine: Machine, version: str, errors: bytes) -> str:
    driver = gpus.look()
    assert driver == (version, 2)
    said: str = gpus.explain(driver, "525.60.13", errors)
    return said


def test_causes(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.has(2)
    assert "look at what nvidia-smi and the last lines say" in causes(machine, "550.54.15", b"")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert causes(machine, "550.54.15", b"").startswith("CUDA_VISIBLE_DEVICES is '1' in the")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    (machine.dev / "nvidia1").unlink()
    assert "there are 1 device files" in causes(machine, "550.54.15", b"")
    machine.has(2, "525.60.9")
    assert "the driver 525.60.9 is older than 525.60.13" in causes(machine, "525.60.9", b"")
    machine.has(2, "525.60.13")
    assert "older" not in causes(machine, "525.60.13", b"")
    assert "CUDA libraries" in causes(machine, "525.60.13", b"Could not load dynamic library 'x'")


@pytest.mark.parametrize(("kept", "count"), [("files", 3), ("program", 2), ("neither", None)])
def test_where_the_driver_shows_its_gpus(
    machine: Machine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kept: str,
    count: int | None,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    if kept == "files":
        machine.has(3)
    elif kept == "program":  # some containers lack the driver's files in /proc
        (machine.dev / "nvidia0").touch()
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir()
        program.write_text(
            "#!/bin/sh\necho 'GPU 0: H200 (UUID: GPU-1)'\necho 'GPU 1: H200 (UUID: GPU-2)'\n"
            "echo '  MIG 1g.18gb Device 0: (UUID: MIG-3)'\n"
        )
        program.chmod(0o755)
    found = gpus.look()
    assert (found.gpus if found else None) == count


def test_no_gpus_are_asked_for_where_the_driver_shows_none(
    gpu_params: dict[str, Any], call: Call, machine: Machine
) -> None:
    result = call(gpu_params)
    assert result["changed"]
    assert result["gpus"] is None
    assert machine.looked() == 0


def test_the_cpu_variant_ignores_gpus(params: dict[str, Any], call: Call, machine: Machine) -> None:
    machine.has(2)
    result = call({**params, "variant": "cpu"})
    assert result["changed"]
    assert result["gpus"] is None


def test_open_kernel_modules_version(machine: Machine) -> None:
    machine.has(1)
    (machine.proc / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"
    )
    assert gpus.look() == ("580.95.05", 1)
