"""The GPUs of a machine and the processes on them, listed by a fake nvidia-smi."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.support.gpus import MIG, UUIDS, Machine
from tests.unit.host.conftest import SLEEP, Starter
from train.host import gpus
from train.host.gpus import GpuError, list_gpus
from train.host.leases import user_name


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


def test_processes_are_listed_by_gpu(machine: Machine) -> None:
    machine.has(2)
    machine.runs(
        f"{UUIDS[0]}, 4711, 5120, /usr/bin/python3, with a comma",
        f"{UUIDS[1]}, 4712, [N/A], [Not Found]",
        f"{UUIDS[2]}, 4713, 1, elsewhere",
        f"{UUIDS[0]}, 4714, 30, /usr/bin/nvidia-cuda-mps-server",
        "No running processes found",
    )
    found = [tuple(process.values()) for process in gpus.processes_on(UUIDS[:2])]
    first = (UUIDS[0], 4711, "/usr/bin/python3, with a comma", 5120)
    assert found == [first, (UUIDS[1], 4712, "[Not Found]", None)]
    asked = "--query-compute-apps=gpu_uuid,pid,used_memory,process_name"
    assert machine.calls.read_text().split() == [asked, "--format=csv,noheader,nounits"]
    assert gpus.processes_on([]) == []


def test_a_process_is_described(monkeypatch: pytest.MonkeyPatch, start: Starter) -> None:
    monkeypatch.setattr(gpus, "INITIAL_PIDS", os.readlink("/proc/self/ns/pid"))
    child = start(TRAIN_JOB="night-1")
    found: gpus.GpuProcess = {
        "uuid": UUIDS[0],
        "pid": child.pid,
        "name": "python",
        "memory_mb": 5120,
    }
    user = user_name(os.getuid())
    expected = f"{' '.join(SLEEP)}, user {user}, job night-1, 5120 MiB)"
    assert gpus.describe(found) == f"pid {child.pid} ({expected}"
    monkeypatch.setattr(gpus, "INITIAL_PIDS", "pid:[1]")
    assert gpus.describe({**found, "memory_mb": None}) == f"pid {child.pid} (python)"
    child.kill()
    child.wait()
    monkeypatch.undo()
    assert gpus.describe({**found, "name": "x\x1b[0m", "memory_mb": 1}).endswith("(x?[0m, 1 MiB)")


def test_when_memory_is_back(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "INITIAL_PIDS", os.readlink("/proc/self/ns/pid"))
    machine.has(1)
    machine.runs(f"{UUIDS[0]}, 99, 1, another's")
    assert gpus.wait_until_left([UUIDS[0]], [4711], 1.0) is True
    machine.runs(f"{UUIDS[0]}, 4711, 1, python3")
    assert gpus.wait_until_left([UUIDS[0]], [4711], 0.3) is False
    # The driver answers slowly.
    machine.listed.unlink()
    os.mkfifo(machine.listed)
    feed = f"echo '{UUIDS[0]}, 4711, 1, x' >$0; sleep 0.3; : >$0"
    feeder = subprocess.Popen(["sh", "-c", feed, str(machine.listed)])
    assert gpus.wait_until_left([UUIDS[0]], [4711], 10.0) is True
    assert feeder.wait() == 0
    # In a container, the driver's pids differ from those here. The driver may also not answer.
    monkeypatch.setattr(gpus, "INITIAL_PIDS", "pid:[1]")
    assert gpus.wait_until_left([UUIDS[0]], [4711], 1.0) is None
    monkeypatch.undo()
    assert gpus.wait_until_left([UUIDS[0]], [4711], 1.0) is None
