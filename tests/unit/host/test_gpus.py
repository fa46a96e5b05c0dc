"""The GPUs of a machine, listed by a fake nvidia-smi."""

from __future__ import annotations

import pytest

from tests.support.gpus import MIG, UUIDS, Machine
from train.host.gpus import GpuError, list_gpus


def test_the_gpus_of_a_machine_are_listed_in_one_call(machine: Machine) -> None:
    machine.has(2, instances=2)
    assert list_gpus() == [
        {"index": 0, "uuid": UUIDS[0], "instances": MIG},
        {"index": 1, "uuid": UUIDS[1], "instances": []},
    ]
    assert machine.calls.read_text().split() == ["-L"], "it only lists"


def test_no_driver_has_no_gpus(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.has(1)
    node = machine.dev / "nvidia0"
    node.unlink()
    assert list_gpus() == []
    assert not machine.calls.exists(), "without device nodes nothing is called"
    node.touch()
    (machine.bin / "nvidia-smi").unlink()
    monkeypatch.setenv("PATH", str(machine.bin))
    assert list_gpus() == []


def test_a_driver_that_does_not_answer_is_told(machine: Machine) -> None:
    machine.has(1, code=9, said="NVIDIA-SMI has failed because it couldn't communicate")
    with pytest.raises(GpuError, match="nvidia-smi failed: NVIDIA-SMI has failed because"):
        list_gpus()
