"""The role ``tensorflow`` compares TensorFlow's GPUs with the driver's; all of them are fakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tensorflow_role import Call, gpus, make_lock, make_wheel, module, with_lock

pytest_plugins = ("tests.tensorflow_role",)
VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Tue Nov 21 08:00:00 UTC 2026\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build\n"


class Machine:
    """A host with GPUs: what its driver shows, and what its TensorFlow sees."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.dev = folder / "proc", folder / "dev"
        self.seen, self.calls = folder / "seen", folder / "calls"
        self.dev.mkdir()
        self.calls.touch()

    def has(
        self, count: int, version: str = "550.54.15", seen: int | None = None, text: str = VERSION
    ) -> None:
        """Set what the driver shows, and TensorFlow sees."""
        for index in range(count):
            (self.proc / "gpus" / f"0000:0{index}:00.0").mkdir(parents=True, exist_ok=True)
            (self.dev / f"nvidia{index}").touch()
        (self.proc / "version").write_text(text.format(version))
        self.seen.write_text(str(count if seen is None else seen))

    def asked(self) -> int:
        """How often TensorFlow was asked for its GPUs."""
        return len(self.calls.read_text().splitlines())


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine(tmp_path)
    monkeypatch.setattr(gpus, "PROC", str(found.proc))
    monkeypatch.setattr(gpus, "DEV", str(found.dev))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return found


@pytest.fixture
def gpu_params(
    params: dict[str, Any], machine: Machine, tmp_path: Path, without_pip: None
) -> dict[str, Any]:
    """Arguments for a stand-in of TensorFlow that sees as many GPUs as a file says."""
    body = f"""
import os, sys
class config:
    @staticmethod
    def list_physical_devices(kind):
        with open({str(machine.calls)!r}, "a") as stream:
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
    none = call(gpu_params)
    assert (none["changed"], none["gpus"], machine.asked()) == (True, None, 0)
    for count, version in [(1, "550.54.15"), (8, "550.54.15"), (8, "570.10")]:
        machine.has(count, version)
        result = call(gpu_params)
        assert (result["changed"], result["parts"]) == (True, [])
        assert result["gpus"] == {"driver": count, "tensorflow": count}
        assert not call(gpu_params)["changed"]  # a ready host starts no TensorFlow
    assert machine.calls.read_text() == 3 * "GPU all\n"
    marker = json.loads(Path(result["venv"], "tensorflow-venv.json").read_text())
    assert marker["gpus"] == {"driver": "570.10", "of_driver": 8, "of_tensorflow": 8}
    (cpu,) = gpu_params["locks"]
    assert call({**gpu_params, "locks": [{**cpu, "variant": "cpu"}]})["gpus"] is None


def test_fewer_is_an_error_and_costs_no_second_download(
    gpu_params: dict[str, Any], call: Call, machine: Machine
) -> None:
    machine.has(4, "470.82.01", seen=0)
    said = call(gpu_params)["msg"]
    assert "TensorFlow 1.0 sees 0 of the 4 GPUs that the driver 470.82.01 shows" in said
    assert "470.82.01 is older than 525.60.13: install a newer one (role nvidia_driver)" in said
    assert "TensorFlow does not find its CUDA libraries: make the lock with" in said
    assert "W0000 gpu_device.cc:1] Cannot dlopen some GPU libraries." in said
    assert "nothing to do with it" not in said
    assert "No link was changed." in said
    assert not Path(gpu_params["root"], "venv").is_symlink()
    assert call(gpu_params)["failed"]  # nothing has changed
    machine.has(4)
    fixed = call(gpu_params)
    assert (fixed["changed"], fixed["parts"]) == (True, [])
    machine.has(4, "560.1", seen=1)
    said = call(gpu_params)["msg"]
    assert "sees 1 of the 4 GPUs" in said
    assert "It stays in use." in said


def test_fewer_may_be_a_warning(
    gpu_params: dict[str, Any], call: Call, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(module.AnsibleModule, "warn", lambda _, text: said.append(text))
    machine.has(2, seen=1)
    lenient = {**gpu_params, "require_gpus": False}
    assert call(lenient)["changed"]
    assert not call(lenient)["changed"]
    assert ["sees 1 of the 2 GPUs" in text for text in said] == [True, True]
    assert "as was found once" in said[1]
    assert machine.asked() == 1
    assert call(gpu_params)["failed"]
    assert machine.asked() == 2


def test_causes(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def causes(version: str, errors: bytes = b"") -> str:
        driver = gpus.detect()
        assert driver == (version, 2)
        said: str = gpus.explain(driver, "525.60.13", errors)
        return said

    machine.has(2, text=OPEN)
    assert "see nvidia-smi and the last lines" in causes("550.54.15")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert causes("550.54.15").startswith("CUDA_VISIBLE_DEVICES is '1' in the")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    (machine.dev / "nvidia1").unlink()
    assert "there are 1 device files" in causes("550.54.15")
    machine.has(2, "525.60.9")
    assert "the driver 525.60.9 is older than 525.60.13" in causes("525.60.9")
    machine.has(2, "525.60.13")
    assert "older" not in causes("525.60.13")
    assert "CUDA libraries" in causes("525.60.13", b"Could not load dynamic library 'x'")


def test_without_files_of_the_driver_its_program_counts(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (machine.dev / "nvidia0").touch()
    assert gpus.detect() is None
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\necho 'GPU 0: H200 (UUID: GPU-1)'\necho 'GPU 1: H200 (UUID: GPU-2)'\n"
        "echo '  MIG 1g.18gb Device 0: (UUID: MIG-3)'\n"
    )
    program.chmod(0o755)
    assert gpus.detect() == ("", 2)
