"""The records of a job: events, the load of its hosts, the file for Prometheus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.gang.watch.made_up_gang import CHIEF, RUNNING, Hosts, Make, done, notices_of
from tests.unit.gang.watch.real_folders import LINE, MIB, Machine, lines
from train.gang import reports
from train.gang.job_records import EVENTS_FILE
from train.gang.watch import journal


def test_a_hosts_load_is_kept_ever_more_rarely(gang: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "LOAD_EVERY", 0.0)
    monkeypatch.setattr(journal, "LOAD_PART", 1.0)  # each line comes after twice the time
    gpu = {"index": 0, "uuid": "GPU-1", "mhz": 900, "max_mhz": 1000, "busy": None, "reasons": 0}
    loads = [{"t": 1 + n / 100, "cpu_s": 2.0, "nice": -5, "gpus": [gpu]} for n in range(50)]
    many = {"t": 1.0, "gpus": [gpu] * (reports.MAX_GPUS + 1)}
    lies: list[Any] = [{"cpu_s": 1.0}, {"t": 1.0, "gpus": [{"index": "../x"}]}, ["t"], many]
    hosts = Hosts(
        worker_0=[*({**RUNNING, "load": load} for load in loads), done()],
        worker_1=[*({**RUNNING, "load": load} for load in lies), done()],
    )
    watched = gang(hosts)
    assert watched.follow().state == "completed"
    lines = (watched.run_dir / "load/worker-0.jsonl").read_text().splitlines()
    kept = [json.loads(line)["load"] for line in lines]
    assert kept[0] == loads[0]
    assert 2 <= len(kept) <= 20
    assert all(load in loads for load in kept)
    assert not (watched.run_dir / "load/worker-1.jsonl").exists()


def test_a_file_for_prometheus_that_cannot_be_written_is_one_notice(
    gang: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_METRICS_PAUSE", 0.0)
    folder = tmp_path / "textfiles"
    hosts = Hosts(worker_0=[*[CHIEF] * 20, done()])
    watched = gang(hosts, metrics_dir=str(folder))
    assert watched.follow().state == "completed"
    (notice,) = notices_of(watched)
    assert notice["kind"] == "metrics"
    why = "No such file or directory (train_job_metrics_dir); the job continues"
    assert notice["text"] == f"{folder}/train-run.prom cannot be written: {why}"


def test_many_answers_are_few_events(machine: Machine) -> None:
    machine.rank(lines(300_000))
    machine.gang(4 * MIB).follow()
    events = (machine.run_dir / EVENTS_FILE).read_text().splitlines()
    of_ranks = [event for event in map(json.loads, events) if "task" in event]
    assert 1 <= len(of_ranks) <= 20
    assert of_ranks[0]["last_line"] == (LINE % 299_999).decode().strip()
