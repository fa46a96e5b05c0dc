"""The use of a host, and who holds its ports and GPUs."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from train.gang import reports
from train.host import gpus, leases, usage


def test_the_report_of_this_machine_passes_the_check_of_the_control_node(tmp_path: Path) -> None:
    job = tmp_path / "jobs/night/worker-0"
    job.mkdir(parents=True)
    (job / "rank.json").write_text(json.dumps({"job": "night", "task": "worker-0"}))
    found = usage.report({"root": str(tmp_path), "lease_dir": str(tmp_path / "leases")})
    checked = reports.used(found)
    assert checked["usage"] == found["usage"]
    assert found["usage"]["cores"] == os.cpu_count()
    assert 0 < found["usage"]["memory_free"] <= found["usage"]["memory_total"]
    assert 0 < found["usage"]["disk_free"] <= found["usage"]["disk_total"]
    assert checked["owners"] == {"night": leases.user_name(os.getuid())}
    jobs, wrong = reports.listing(found["jobs"])
    assert [one["job"] for one in jobs] == ["night"]
    assert wrong == []


def test_a_root_that_does_not_exist_yet_counts_by_its_file_system(tmp_path: Path) -> None:
    assert usage.usage(str(tmp_path / "a/b/c"))["disk_total"] > 0


def test_gpus_are_reported_with_unknown_values(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"index": "0", "name": "A100", "utilization.gpu": "40", "memory.used": "10",
         "memory.total": "100"},
        {"index": "1", "name": "B", "utilization.gpu": "[N/A]"},
        {"index": "lost"},
    ]  # fmt: skip
    monkeypatch.setattr(gpus, "nvidia_smi", lambda: "/usr/bin/nvidia-smi")
    monkeypatch.setattr(gpus, "query", lambda fields, limit: (rows, ""))
    found = usage.usage("/")["gpus"]
    assert [(one["index"], one["busy"], one["memory_used"]) for one in found] == [
        (0, 40, 10),
        (1, None, None),
    ]

    def fail(*_: Any) -> None:
        raise gpus.GpuError("nvidia-smi did not answer")

    monkeypatch.setattr(gpus, "query", fail)
    assert usage.usage("/")["gpu_error"] == "nvidia-smi did not answer"


def test_leases_and_waiting_jobs_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {
        **{"job": "night", "task": "worker-0", "user": "anna", "since": time.time()},
        "resources": ["port/12345"],
    }
    states = [leases.STARTED, leases.QUEUED, leases.STOPPED]
    entries = [{**entry, "state": state} for state in states]
    monkeypatch.setattr(leases, "entries", lambda folder: entries)
    held = usage.holds(str(tmp_path))
    assert [one["state"] for one in held] == [leases.STARTED, leases.QUEUED]
    assert held[0]["user"] == "anna"
