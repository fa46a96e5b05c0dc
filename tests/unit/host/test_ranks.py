"""The ranks of a host: which it answers for, and how an end is noted.

Disks may be full, and files cut off.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from tests.support import bare_ranks
from tests.support.bare_ranks import stage
from tests.support.gpus import UUIDS, Machine
from tests.support.job_folders import lay_out
from tests.support.lease_ranks import holder, spec_of
from tests.unit.host.conftest import ELSEWHERE, HERE, KILLED, Starter, lay_out_on, made_ready, run
from train.host import (
    calls,
    end_causes,
    gpus,
    jobs,
    json_files,
    leases,
    processes,
    rank_environment,
    rank_files,
    ranks,
    records,
    supervisor,
)
from train.host.records import StopReport


def no_space(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def fill_disk(rank_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fill the disk except for the rank's reserved space, and return the file that reserves it."""
    reserve = rank_dir / ranks.RESERVE_FILE
    reserve.write_bytes(bytes(9))
    real = json_files.write_json

    def write(*arguments: Any) -> None:
        if reserve.exists():
            no_space()
        real(*arguments)

    monkeypatch.setattr(json_files, "write_json", write)
    return reserve


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_rank_is_stopped_where_the_disk_is_full(
    rank_dir: Path, monkeypatch: pytest.MonkeyPatch, start: Starter, chief: Any, is_kept: bool
) -> None:
    script = start(**{rank_environment.ENV_RANK_DIR: str(rank_dir)})
    if is_kept:
        fill_disk(rank_dir, monkeypatch)
    else:
        monkeypatch.setattr(json_files, "write_json", no_space)
    report = ranks.stop(str(rank_dir), 0.0, "enough")
    found = {name: report[name] for name in ("was", "phase", "ended", "remaining")}
    assert found == {"was": "running", "phase": "stopped", "ended": 1, "remaining": []}
    assert chief.wait(10) < 0
    assert script.wait(10) < 0
    if is_kept:
        order = json.loads((rank_dir / ranks.STOP_FILE).read_text())
        assert order == {"grace": 0.0, "reason": "enough"}
        assert bare_ranks.state(rank_dir)["reason"] == "enough"


@pytest.mark.parametrize(("phase", "written"), [("running", False), ("failed", True)])
def test_what_is_kept_free_is_for_the_last_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str, written: bool
) -> None:
    reserve = fill_disk(tmp_path, monkeypatch)
    ranks.write_state(str(tmp_path), {"phase": phase})
    assert (tmp_path / rank_files.STATE_FILE).exists() == written
    assert reserve.exists() != written


def test_the_time_for_a_last_state(rank_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []
    monkeypatch.setattr(ranks, "_end", lambda *arguments: limits.append(arguments[-1]))
    ranks.stop(str(rank_dir), 3.0, "enough")
    assert limits[0] > 3.0 + supervisor.TICK + processes.KILL_S


def test_an_end_between_two_reads(rank_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank whose supervisor writes its last state and ends meanwhile is not seen as killed."""
    last = dict(bare_ranks.state(rank_dir), phase=records.STOPPED, reason="was stopped")

    def is_alive(*_: Any) -> bool:
        (rank_dir / rank_files.STATE_FILE).write_text(json.dumps(last))
        return False

    monkeypatch.setattr(processes, "is_alive", is_alive)
    assert ranks.observe(str(rank_dir)) == last


def test_a_later_listing_reads_only_what_may_belong_to_the_rank(
    rank_dir: Path, chief: Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The parent of the orphan has just ended, and another process is just executing a program.
    stranger, orphan, executing, gone = (chief.pid + number for number in range(1, 5))
    parents = {1: 0, chief.pid: 1, stranger: 1, orphan: gone, executing: 1}
    read: list[int] = []

    def snapshot(without: set[int]) -> dict[int, processes.Process]:
        read[:] = [pid for pid in parents if pid not in without]
        return {pid: processes.Process(parents[pid], pid, 1) for pid in read}

    marks: dict[int, str | None] = dict.fromkeys(parents, "") | {executing: None}
    monkeypatch.setattr(processes, "snapshot", snapshot)
    monkeypatch.setattr(processes, "variable", lambda pid, name: marks[pid])
    known = ranks.Known()
    assert ranks.processes_of(str(rank_dir), known) == set()
    assert read == list(parents)
    parents[orphan] = chief.pid
    marks[executing] = str(rank_dir)
    assert ranks.processes_of(str(rank_dir), known) == {orphan, executing}
    assert read == [1, chief.pid, orphan, executing]
    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + 60)
    ranks.processes_of(str(rank_dir), known)
    assert stranger in read, "another process may have its number by now"


@pytest.mark.parametrize("text", ["", '{"host": "a", "jo', "\0\0\0"])
def test_files_that_were_cut_off(tmp_path: Path, start: Starter, text: str) -> None:
    sound = lay_out(tmp_path, "old", "worker-0", host="a")
    rank_dir = lay_out(tmp_path, "night", "worker-0", host="a", phase=records.RUNNING)
    for name in (rank_files.RANK_FILE, rank_files.STATE_FILE):
        (rank_dir / name).write_text(text)
    assert ranks.find(str(tmp_path), "a") == [str(sound)]
    assert ranks.find(str(tmp_path), "a", "night") == []

    script = start(**{rank_environment.ENV_RANK_DIR: str(rank_dir)})
    report = ranks.stop(str(rank_dir), 0.0, "enough")
    assert (report["was"], report["ended"], report["remaining"]) == ("failed", 1, [])
    assert script.wait(10) < 0

    alive = {"phase": records.RUNNING, "supervisor_pid": 9}
    assert run(KILLED, rank_dir, json.dumps(alive)).returncode == 0
    assert bare_ranks.state(rank_dir)["cause"] == end_causes.SUPERVISOR
    ranks.set_aside(str(rank_dir))
    assert (rank_dir / "attempts/0" / rank_files.RANK_FILE).read_text() == text


@pytest.mark.parametrize(
    ("ago", "phase", "reason"),
    [
        (150.0, "starting", "was prepared 150 s ago but has not started yet"),
        (201.0, "failed", "was prepared but never started"),
    ],
)
def test_all_commands_report_alike_of_a_rank_that_has_not_started(
    tmp_path: Path, ago: float, phase: str, reason: str
) -> None:
    made_ready(tmp_path, ago)
    about: dict[str, Any] = {"root": str(tmp_path), "job": "night", "host": "a"}
    state = calls.state(about)["state"]
    assert (state["phase"], state["reason"]) == (phase, reason)
    (job,) = jobs.list_jobs(str(tmp_path))
    assert (job["ranks"][0]["phase"], job["ranks"][0]["reason"]) == (phase, reason)
    stopped = calls.stop({**about, "check": True, "grace": 0, "reason": "x"})["stop_report"]
    assert stopped["was"] == phase


def test_a_rank_that_has_not_started_is_stopped_and_starts_no_more(tmp_path: Path) -> None:
    rank_dir = made_ready(tmp_path / "root", 1.0)
    about: dict[str, Any] = {"root": str(tmp_path / "root"), "job": "night", "host": "a"}
    about.update(lease_dir=str(tmp_path / "leases"), permanent=True, check=False, grace=0)
    holder = leases.Holder(1.0, "night", "worker-0", 1)
    leases.take(about["lease_dir"], {"port/1": "port 1"}, holder)
    other = leases.Holder(2.0, "other", "worker-0", 1)
    leases.take(about["lease_dir"], {"port/2": "port 2"}, other)
    report = calls.stop({**about, "reason": "was stopped by anna"})["stop_report"]
    assert (report["was"], report["phase"], report["given_back"]) == ("starting", "stopped", 1)
    state = ranks.reported(str(rank_dir))
    assert (state["phase"], state["reason"]) == ("stopped", "was stopped by anna")
    held = [e["job"] for e in leases.entries(about["lease_dir"]) if e["state"] != leases.STOPPED]
    assert held == ["other"]
    assert (rank_dir.parent / rank_files.STOP_REQUEST_FILE).exists()
    leases.give_back(about["lease_dir"], other)


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


RESTARTED = "/".join(["another-boot", *HERE.split("/")[1:]])


def answers(root: Path, beside: Sequence[str], names: Sequence[str]) -> dict[str, list[str]]:
    """Return the tasks that each of the inventory hosts of this machine answers for."""
    found = {name: ranks.find(str(root), name, "night", beside, names) for name in beside}
    return {name: [Path(path).name for path in paths] for name, paths in found.items()}


def test_each_host_answers_for_its_own_rank(tmp_path: Path) -> None:
    lay_out_on(tmp_path, "worker-0", "a")
    lay_out_on(tmp_path, "worker-1", "b")
    assert answers(tmp_path, ["a", "b"], ["a", "b", "c"]) == {"a": ["worker-0"], "b": ["worker-1"]}


@pytest.mark.parametrize("machine", [HERE, RESTARTED])
def test_ranks_with_names_of_another_inventory_are_shared_out(tmp_path: Path, machine: str) -> None:
    for task, host in (("worker-0", "10.0.0.1"), ("worker-2", "10.0.0.3"), ("ps-0", "10.0.0.4")):
        lay_out_on(tmp_path, task, host, machine)
    lay_out_on(tmp_path, "worker-1", "a", machine)
    assert answers(tmp_path, ["a", "b", "c"], ["a", "b", "c"]) == {
        "a": ["worker-1"],
        "b": ["worker-0", "ps-0"],
        "c": ["worker-2"],
    }
    assert answers(tmp_path, ["x"], ["x"]) == {"x": ["worker-0", "worker-1", "worker-2", "ps-0"]}


def test_without_a_job_the_newest_with_a_rank_of_the_host_is_meant(tmp_path: Path) -> None:
    lay_out(tmp_path, "mine", "worker-0", host="a", ago=9)
    lay_out(tmp_path, "mine", "worker-1", host="b", ago=9)
    path = lay_out(tmp_path, "strange", "worker-0", host="10.0.0.1", ago=1) / "rank.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "machine": HERE}))
    jobs = {
        name: [Path(found).parent.name for found in ranks.find(str(tmp_path), name, "", [name], "")]
        for name in ("a", "c")
    }
    assert jobs == {"a": ["mine"], "c": ["strange"]}


def test_what_is_seen_of_another_machine_in_a_shared_folder_is_its_own_business(
    tmp_path: Path,
) -> None:
    lay_out_on(tmp_path, "worker-0", "a")
    lay_out_on(tmp_path, "worker-1", "b", ELSEWHERE)
    lay_out_on(tmp_path, "worker-2", "10.0.0.3", ELSEWHERE)
    assert answers(tmp_path, ["a"], ["a", "b"]) == {"a": ["worker-0"]}
    assert answers(tmp_path, ["x"], ["x", "y"]) == {"x": ["worker-0"]}


def test_names_that_were_exchanged_between_machines(tmp_path: Path) -> None:
    lay_out_on(tmp_path, "worker-0", "b")
    assert answers(tmp_path, ["a"], ["a", "b"]) == {"a": ["worker-0"]}


def test_of_earlier_attempts_only_what_is_alive_counts_under_other_names(tmp_path: Path) -> None:
    lay_out_on(tmp_path, "worker-0", "10.0.0.1")
    lay_out_on(tmp_path, "worker-1", "10.0.0.2", phase=records.RUNNING)
    lay_out_on(tmp_path, "worker-2", "a", attempt=2)
    assert answers(tmp_path, ["a"], ["a"]) == {"a": ["worker-2", "worker-1"]}
