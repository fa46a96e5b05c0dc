"""GPUs in use: processes that belong to no job are named, and other jobs' GPUs are not used.

``nvidia-smi`` is a fake, and no GPU is needed.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.bare_ranks import stage
from tests.support.gpus import MIG, UUIDS, Machine, gang
from tests.support.lease_ranks import holder, spec_of
from tests.unit.host.conftest import SLEEP, Starter
from train.gang.errors import UserError
from train.host import gpus, leases, preflight, ranks
from train.host.host_facts import Gpu
from train.host.leases import user_name
from train.host.records import StopReport

# ---------------------------------------------------------------------------------- the driver


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


def test_processes_without_a_job(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only instances without a lease are searched for them."""
    monkeypatch.setattr(preflight, "PAUSE_S", 0.0)
    machine.has(1, instances=2)
    machine.runs(f"{MIG[0]}, 4711, 1, a job's", f"{MIG[1]}, 4712, 1, x", f"{UUIDS[0]}, 4713, 1, y")
    found: list[Gpu] = [{"index": 0, "uuid": UUIDS[0], "instances": MIG}]

    def pids(*leased: str) -> list[int]:
        held: list[leases.Entry] = [{"resource": resource} for resource in ("port/12345", *leased)]
        return [process["pid"] for process, _ in preflight.foreign_processes(found, held)]

    # A process listed for the whole GPU may run on the leased instance.
    assert pids(f"gpu/{UUIDS[0]}/{MIG[0]}") == [4712]
    assert pids(f"gpu/{UUIDS[0]}") == []
    assert pids() == [4711, 4712, 4713]


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


def test_the_stop_report_has_the_gpus(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch, start: Starter
) -> None:
    monkeypatch.setattr(gpus, "INITIAL_PIDS", os.readlink("/proc/self/ns/pid"))
    machine.has(1)
    reports: list[StopReport] = []
    for resources in ({f"gpu/{UUIDS[0]}": "GPU 0"}, {"port/1": "port 1"}):
        who = holder("bare", task=f"worker-{len(reports)}")
        leases.take(str(tmp_path / "leases"), resources, who)
        noted = spec_of(tmp_path / "leases", who, resources)["leases"]
        rank_dir = stage(tmp_path, who.task, Path(__file__), leases=noted)
        child = start(TRAIN_RANK_DIR=str(rank_dir))
        machine.runs(f"{UUIDS[0]}, {os.getpid()}, 1, not the rank's")
        reports.append(ranks.stop(str(rank_dir), 1.0, "was stopped"))
        assert child.wait() == -9
    assert [report["gpu_memory_free"] for report in reports] == [True, None]
    assert leases.holders(str(tmp_path / "leases")) == [], "a stop gives back what was taken"


# ---------------------------------------------------------------------------------- the plan


def busy(why: str, waits: bool = False) -> dict[str, Any]:
    return {"why": why, "remedy": "REMEDY", "waits": waits}


WORKERS = {"worker": ["a", "b"]}


def test_auto_leaves_out_what_others_use() -> None:
    found = gang(WORKERS, {}, busy={UUIDS[0]: busy("in use")})
    assert found == {"a": ("1",), "b": ("2",)}, "3 are left, even shares"
    found = gang(WORKERS, {}, instances=2, busy={MIG[1]: busy("in use")})
    assert found == {"a": ("1",), "b": ("2",)}, "a GPU of which a part is in use"


def test_a_job_that_waits_takes_free_ones_and_else_waits_for_all() -> None:
    waits = {UUIDS[i]: busy("in use", waits=True) for i in (0, 1)}
    assert gang(WORKERS, {}, busy=waits) == {"a": ("2",), "b": ("3",)}
    waits[UUIDS[2]] = waits[UUIDS[0]]
    assert gang(WORKERS, {}, busy=waits) == {"a": ("0", "1"), "b": ("2", "3")}
    assert gang(WORKERS, {"b": [0]}, busy=waits) == {"a": ("3",), "b": ("0",)}


X, FEW = busy("in use by X"), "too few GPUs are free. The machine has 2 GPUs"
REFUSED: list[tuple[Any, Any, int, str]] = [
    ({"b": [0]}, {UUIDS[0]: X}, 4, "b requests GPU 0, which is in use by X: REMEDY"),
    ({"b": [UUIDS[0]]}, {MIG[0]: X}, 4, "b requests GPU 0, which is in use by X: REMEDY"),
    ({"b": [MIG[0]]}, {UUIDS[0]: X}, 4, f"b requests {MIG[0]} of GPU 0, which is"),
    ({}, {UUIDS[1]: X}, 2, f"a, b: {FEW}; GPU 1 is in use by X. Remedy: REMEDY"),
    (
        {"b": [0]},
        {UUIDS[1]: X},
        2,
        f"{FEW}, 1 of them assigned to other ranks; GPU 1 is in use by X",
    ),
]


@pytest.mark.parametrize(("wanted", "others", "count", "message"), REFUSED)
def test_gpus_of_others_are_refused(wanted: Any, others: Any, count: int, message: str) -> None:
    with pytest.raises(UserError) as raised:
        gang(WORKERS, wanted, count, instances=2, busy=others)
    assert message in str(raised.value)
    assert gang(WORKERS, {"b": [MIG[1]]}, 4, instances=2, busy={MIG[0]: busy("in use")})
