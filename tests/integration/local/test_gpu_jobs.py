"""Jobs whose ranks share a machine's GPUs. ``nvidia-smi`` is a fake, and no GPU is needed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.gpus import UUIDS, Copy, Machine
from tests.support.lease_ranks import Starter, holder


@pytest.fixture(autouse=True)
def no_variables_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "TF_FORCE_GPU_ALLOW_GROWTH"):
        monkeypatch.delenv(name, raising=False)


def test_a_job_gives_each_rank_what_it_names(tmp_path: Path, machine: Machine) -> None:
    copy = Copy(tmp_path, machine, ranks=4)
    machine.has(2)
    hosts = copy.inventory / "host_vars"
    hosts.mkdir()
    by_hand = "train_job_environment: {CUDA_VISIBLE_DEVICES: '0'}\n"
    named = f"train_job_gpus: ['{UUIDS[1]}']\n"
    named += "train_job_environment: {TF_FORCE_GPU_ALLOW_GROWTH: 'false'}\n"
    for rank, text in enumerate((named, "train_job_gpus: none\n", by_hand, by_hand)):
        (hosts / f"worker{rank}.yml").write_text(text)
    done = copy.run("named")
    assert done.returncode == 0, done.stdout + done.stderr
    seen = copy.seen("named")
    assert seen == [f"{UUIDS[1]} PCI_BUS_ID false", "-1 PCI_BUS_ID true", "0 - -", "0 - -"]

    for path in hosts.iterdir():
        path.unlink()
    machine.has(1, code=9, said="NVIDIA-SMI has failed")
    assert copy.run("broken").returncode == 0
    assert copy.seen("broken") == ["- - -"] * 4


@pytest.mark.soak
def test_a_job_and_the_gpus_of_others(
    tmp_path: Path, machine: Machine, supervisor: Starter
) -> None:
    copy, folder = Copy(tmp_path, machine), tmp_path / "leases"
    place = {"train_job_lease_dir": str(folder)}
    machine.has(4)

    # A process that belongs to no job.
    me = os.getpid()
    machine.runs(f"{UUIDS[1]}, {me}, 5120, python3")
    done = copy.run("beside", **place)
    assert done.returncode == 0, done.stdout + done.stderr
    assert copy.seen("beside") == ["0 PCI_BUS_ID true", "2 PCI_BUS_ID true"]
    manifest = json.loads((copy.runs / "beside/manifest.json").read_text())
    busy = manifest["hosts"]["worker0"]["gpus_busy"][UUIDS[1]]
    assert f"in use by pid {me} (" in busy["why"]
    assert "or share the GPU (-e train_job_foreign_gpu=warn)" in busy["remedy"]
    done = copy.run("warned", train_job_foreign_gpu="warn", **place)
    assert copy.seen("warned") == ["0,1 PCI_BUS_ID true", "2,3 PCI_BUS_ID true"], done.stdout
    manifest = json.loads((copy.runs / "warned/manifest.json").read_text())
    assert [rank["gpus"] for rank in manifest["ranks"]] == [["0", "1"], ["2", "3"]]
    assert [gpu["uuid"] for gpu in manifest["hosts"]["worker1"]["gpus"]] == UUIDS[:4]

    # Another job, whose processes are not foreign.
    theirs = {f"gpu/{uuid}": f"GPU {place}" for place, uuid in enumerate(UUIDS[1:4], 1)}
    assert supervisor().starts(folder, holder("night-1"), theirs) is None
    done = copy.run("few", **place)
    assert done.returncode == 2
    expected = "too few GPUs are free. The machine has 4 GPUs; GPU 1 is in use by worker-0 of"
    assert expected in done.stdout, done.stdout
    assert "or queue for it (-e train_job_queue_timeout=SECONDS)" in done.stdout
    assert f"pid {me}" not in done.stdout
