"""Leases of ports and GPUs: real processes that compete, are killed, wait and take over."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from tests.support.bare_ranks import wait_until
from tests.support.lab import REPOSITORY
from tests.support.lease_ranks import PORT, Starter, holder, jobs, queue, spec_of
from train.host import calls, leases, preflight, records

GPU = {"gpu/GPU-a": "GPU 0"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "leases"


def wait_until_free(folder: Path) -> None:
    """Wait until no job holds anything."""
    wait_until(lambda: jobs(folder) == [], "the leases", timeout=20)


def test_what_a_rank_wants() -> None:
    machine = [
        {"index": 0, "uuid": "GPU-a", "instances": ["MIG-1", "MIG-2"]},
        {"index": 1, "uuid": "GPU-b", "instances": []},
    ]
    assert leases.wanted(None, None, machine) == {}
    assert leases.wanted(12345, ["1", "0"], machine) == {
        "port/12345": "port 12345",
        "gpu/GPU-a": "GPU 0",
        "gpu/GPU-b": "GPU 1",
    }
    assert leases.wanted(1, ["MIG-2"], machine) == {
        "port/1": "port 1",
        "gpu/GPU-a/MIG-2": "MIG-2 of GPU 0",
    }
    assert leases.wanted(None, ["GPU-b"], machine) == {"gpu/GPU-b": "GPU 1"}


def test_a_whole_gpu_and_an_instance_of_it_exclude_each_other(folder: Path) -> None:
    one, other = {"gpu/GPU-a/MIG-1": "MIG-1"}, {"gpu/GPU-a/MIG-2": "MIG-2"}
    leases.take(str(folder), one, holder("a"))
    leases.take(str(folder), other, holder("b"))
    with pytest.raises(leases.HeldError, match=r"GPU 0 is taken for worker-0 of job a .*; GPU 0"):
        leases.take(str(folder), GPU, holder("c", 2.0))
    leases.take(str(folder), {"gpu/GPU-ab": "GPU 1"}, holder("c"))
    assert sorted(jobs(folder)) == ["a", "b", "c"]


def test_of_many_at_once_one_gets_everything(folder: Path, supervisor: Starter) -> None:
    wanted = [{**PORT, "gpu/GPU-a": "GPU 0"}, {"gpu/GPU-a": "GPU 0", "gpu/GPU-b": "GPU 1"}]
    ranks = [supervisor() for _ in range(6)]
    found: list[object] = [None] * 6

    def start(place: int) -> None:
        who = holder(f"job{place}", 1.0 + place)
        found[place] = ranks[place].starts(folder, who, wanted[place % 2])

    threads = [threading.Thread(target=start, args=(place,)) for place in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [place for place, answer in enumerate(found) if answer is None]
    for answer in found[:winner] + found[winner + 1 :]:
        assert f"of job job{winner} (user " in str(answer)
    held = {lease["resource"]: lease["job"] for lease in leases.holders(str(folder))}
    assert held == dict.fromkeys(wanted[winner % 2], f"job{winner}")


def test_a_refusal_names_the_holder_and_takes_nothing(folder: Path, supervisor: Starter) -> None:
    assert supervisor().starts(folder, holder("night-1", task="worker-1")) is None
    began = time.monotonic()
    with pytest.raises(leases.HeldError) as raised:
        leases.take(str(folder), {**GPU, **PORT}, holder("day", 0.5))
    assert time.monotonic() - began < 5, "a job that runs is not waited for"
    user = leases.user_name(os.getuid())
    year = time.strftime("%Y-")
    expected = f"port 12345 is in use by worker-1 of job night-1 (user {user}, since {year}"
    assert str(raised.value).startswith(expected)
    assert [lease["resource"] for lease in leases.holders(str(folder))] == ["port/12345"]
    assert jobs(folder) == ["night-1"]


def test_a_port_that_a_job_has_is_refused_waited_for_or_its_own(folder: Path) -> None:
    leases.take(str(folder), PORT, holder("a"))
    held = leases.holders(str(folder))
    (problem,) = preflight.check_port(12345, "b", held, wait=0)
    assert problem.startswith("port 12345 is taken for worker-0 of job a (user ")
    assert problem.endswith(f"stop that job, choose another train_job_port, {preflight.WAIT}")
    assert preflight.check_port(12345, "b", held, wait=60) == []
    assert preflight.check_port(12345, "a", held, wait=0) == []


def test_neither_a_child_that_survives_nor_the_watchdog_keeps_a_lease(folder: Path) -> None:
    """As in the supervisor: the watchdog is its parent, the script is started after the leases."""
    code = """
import os, subprocess, sys, json, time
from train.host import leases
if os.fork():
    time.sleep(60)
held = leases.Held(json.loads(sys.argv[1]))
held.confirm()
child = subprocess.Popen(["sleep", "60"], start_new_session=True)
print(os.getpid(), child.pid, flush=True)
time.sleep(60)
"""
    command = [sys.executable, "-c", code, json.dumps(spec_of(folder, holder("a"), PORT))]
    watchdog = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE)
    assert watchdog.stdout is not None
    supervisor, child = map(int, watchdog.stdout.readline().split())
    try:
        assert jobs(folder) == ["a"]
        os.kill(supervisor, 9)
        wait_until_free(folder)
        os.kill(child, 0)
        assert watchdog.poll() is None
    finally:
        watchdog.kill()
        watchdog.wait()
        watchdog.stdout.close()
        os.kill(child, 9)


def test_the_next_attempt_takes_over(folder: Path, supervisor: Starter) -> None:
    first, second = supervisor(), supervisor()
    assert first.starts(folder, holder("a")) is None
    # Another task of the same host: the gang got smaller.
    assert second.starts(folder, holder("a", task="chief-0", attempt=2)) is None
    third = supervisor()
    refused = third.starts(folder, holder("a"))
    assert "is in use by chief-0 of job a" in refused, "no attempt takes over a later one"
    first.ask("release")
    second.renews()
    assert jobs(folder) == ["a"]
    # Another job of the same name is another job.
    assert "job a" in third.starts(folder, holder("a", 7.0, attempt=3))


def test_an_attempt_takes_over_what_an_earlier_one_has_not_started(folder: Path) -> None:
    leases.take(str(folder), {**PORT, "port/1": "port 1"}, holder("a", task="chief-0"))
    leases.take(str(folder), PORT, holder("a", attempt=2))
    leases.give_back(str(folder), holder("a"))
    found = [(lease["task"], lease["attempt"]) for lease in leases.holders(str(folder))]
    assert found == [("worker-0", 2)], "an earlier one gives back only its own"
    leases.give_back(str(folder), holder("a", attempt=2))
    assert jobs(folder) == []


def test_a_start_that_comes_too_late(folder: Path, supervisor: Starter) -> None:
    late = supervisor()
    leases.take(str(folder), PORT, holder("late"), seconds=0.05)
    late.ask("held", spec_of(folder, holder("late"), PORT))
    wait_until_free(folder)
    assert late.ask("confirm") is None, "nobody else wanted it"
    late.ask("release")

    leases.take(str(folder), PORT, holder("late"), seconds=0.05)
    wait_until_free(folder)
    assert supervisor().starts(folder, holder("other", 2.0)) is None
    late.ask("held", spec_of(folder, holder("late"), PORT))
    assert "port 12345 is in use by worker-0 of job other" in late.ask("confirm")


def test_one_start_of_a_rank(folder: Path, supervisor: Starter) -> None:
    first, second = supervisor(), supervisor()
    leases.take(str(folder), PORT, holder("a"))
    for process in (first, second):
        process.ask("held", spec_of(folder, holder("a"), PORT))
    assert first.ask("confirm") is None
    assert "port 12345 is in use by worker-0 of job a (" in second.ask("confirm")
    second.ask("release")
    leases.release_rank(spec_of(folder, holder("a"), PORT))
    assert jobs(folder) == ["a"], "what another start holds is not given back"


@pytest.mark.parametrize("check", [True, False])
def test_a_stop_gives_back_what_a_rank_has_that_never_started(folder: Path, check: bool) -> None:
    leases.take(str(folder), PORT, holder("a"))
    rank_dir = folder.parent / "jobs/a/worker-0"
    rank_dir.mkdir(parents=True)
    spec = {**spec_of(folder, holder("a"), PORT), "host": "node-1", "created_at": 1.0}
    (rank_dir / records.RANK_FILE).write_text(json.dumps(spec))
    about = {"root": str(folder.parent), "job": "a", "host": "node-1", "check": check}
    report = calls.stop({**about, "grace": 0, "reason": "enough"})
    assert (report["changed"], report["stop_report"]["was"]) == (False, "absent")
    assert jobs(folder) == (["a"] if check else [])


def test_a_lost_file_is_written_again_by_those_that_run(folder: Path, supervisor: Starter) -> None:
    first = supervisor()
    assert first.starts(folder, holder("a"), {**PORT, **GPU}) is None

    def replace() -> None:
        (path,) = folder.iterdir()
        path.unlink()
        path.write_text("")

    makers: list[Callable[[], object]] = [
        lambda: next(folder.iterdir()).unlink(),
        replace,
        lambda: shutil.rmtree(folder),
        lambda: folder.rename(folder.parent / "elsewhere"),
    ]
    for lose in makers:
        lose()
        assert jobs(folder) == []
        first.renews()
        assert jobs(folder) == ["a", "a"]
    late = supervisor()
    late.ask("held", spec_of(folder, holder("b", 2.0), PORT))
    assert "is in use by worker-0 of job a" in late.ask("confirm")
    first.ask("release")
    assert jobs(folder) == []


def test_a_rank_that_runs_keeps_running_whoever_takes_its_lease(
    folder: Path, supervisor: Starter
) -> None:
    first = supervisor()
    assert first.starts(folder, holder("a")) is None
    next(folder.iterdir()).unlink()
    leases.take(str(folder), PORT, holder("b", 2.0))
    first.renews()
    assert jobs(folder) == ["a", "b"]
    first.ask("release")
    assert jobs(folder) == ["b"], "what is another's is not given back"


def test_ports_are_those_of_a_network_and_gpus_those_of_the_machine(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases.take(str(folder), {**PORT, **GPU}, holder("a"))
    monkeypatch.setattr(leases, "_network", lambda: "net:[1]")
    leases.take(str(folder), PORT, holder("b", 2.0))
    with pytest.raises(leases.HeldError, match="GPU 0 is taken for"):
        leases.take(str(folder), GPU, holder("b", 2.0))
    found = [(lease["job"], lease["resource"]) for lease in leases.holders(str(folder))]
    assert found == [("a", "gpu/GPU-a"), ("b", "port/12345")]


def test_a_rank_without_port_and_gpus_needs_no_folder(folder: Path) -> None:
    leases.take(str(folder), {}, holder("a"))
    held = leases.Held(spec_of(folder, holder("a"), {}))
    held.confirm()
    held._due = 0.0
    held.renew()
    held.release()
    leases.release_rank(cast(records.RankSpec, {"job": "of an older version"}))
    assert jobs(folder) == []
    assert not folder.exists()


def test_the_dead_leave_the_folder_with_the_next_change(folder: Path, supervisor: Starter) -> None:
    first = supervisor()
    assert first.starts(folder, holder("a")) is None
    first.kill()
    names = os.listdir(folder)
    assert len(names) == 1, "what was taken is now held"
    assert jobs(folder) == queue(folder) == []
    assert os.listdir(folder) == names, "a look changes nothing"
    leases.take(str(folder), GPU, holder("b"))
    assert names[0] not in os.listdir(folder)
    assert jobs(folder) == ["b"]
