"""The recorded end of a rank, also on full disks and with truncated files."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support import bare_ranks
from tests.support.job_folders import lay_out
from tests.support.lab import REPOSITORY
from tests.support.lease_ranks import PORT
from tests.unit.host.conftest import Starter
from train.host import (
    calls,
    ends,
    jobs,
    json_files,
    leases,
    processes,
    rank_environment,
    rank_files,
    ranks,
    records,
    staging,
    supervisor,
)
from train.host.call_types import CallError

#: A supervisor's notes on a full disk, and the end of its process.
NOTING = """
import os, sys
from train.host import json_files, progress_records, supervisor

def full(*_, **__):
    raise OSError(28, "No space left on device")

if sys.argv[2:]:
    sys.stderr = open(sys.argv[2], "w")  # of Python 3.8: it has a buffer
rank = supervisor.Supervisor(sys.argv[1])
json_files.write_json = progress_records.ProgressWriter._append = full
rank._console.feed = lambda data: [{"phase": "training"}]
rank._leases.renew()
rank._leases.release()
rank._save()
rank._keep_stacks(0)
rank._read_console()
os._exit(0)
"""
#: A supervisor that is killed once it has started a script in another session; prints its pid.
KILLED = """
import json, os, signal, subprocess, sys
from types import SimpleNamespace
from train.host import processes, supervisor

processes.adopt()
pid = os.fork()
if pid == 0:
    script = subprocess.Popen(["sleep", "600"], env={}, start_new_session=True)
    print(script.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
rank = SimpleNamespace(rank_dir=sys.argv[1], state=json.loads(sys.argv[2]))
supervisor._watch_over(rank, pid)
"""


def run(code: str, *arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a program that imports ``host`` as the supervisor does."""
    command = [sys.executable, "-S", "-c", code, *map(str, arguments)]
    return subprocess.run(command, cwd=REPOSITORY, check=False, timeout=60, **options)


@pytest.fixture
def chief(start: Starter) -> subprocess.Popen[bytes]:
    """Return a process that represents a supervisor."""
    return start()


@pytest.fixture
def rank_dir(tmp_path: Path, chief: subprocess.Popen[bytes]) -> Path:
    started = processes.start_time(chief.pid)
    about: dict[str, Any] = {"supervisor_pid": chief.pid, "supervisor_start": started}
    return lay_out(tmp_path, "night", "worker-0", host="a", phase=records.RUNNING, **about)


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


@pytest.mark.parametrize(("attempt", "left"), [(1, True), (2, False)])
def test_a_stop_of_an_attempt(rank_dir: Path, chief: Any, attempt: int, left: bool) -> None:
    """A stop of an earlier attempt does not stop a later one."""
    path = rank_dir / rank_files.RANK_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "attempt": 2}))
    about = {"root": str(rank_dir.parents[2]), "job": "night", "host": "a", "check": False}
    report = calls.stop({**about, "attempt": attempt, "grace": 0, "reason": "enough"})
    assert report["stop_report"]["was"] == ("absent" if left else "running")
    assert report["changed"] == (not left)
    assert (chief.poll() is None) == left


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


def test_the_watchdog_leaves_the_state_to_a_stop(rank_dir: Path) -> None:
    before = bare_ranks.state(rank_dir)
    (rank_dir / ranks.STOP_FILE).write_text("{}")
    done = run(KILLED, rank_dir, json.dumps(before), stdout=subprocess.PIPE)
    assert done.returncode == 0
    assert processes.start_time(int(done.stdout)) is None, "what is left is ended nevertheless"
    assert bare_ranks.state(rank_dir) == before


def test_what_a_supervisor_notes_is_written_at_once_or_lost(tmp_path: Path) -> None:
    """The supervisor has a problem with each of its files."""
    (tmp_path / "leases").write_text("in the way")
    noted = {"created_at": 1.0, "folder": str(tmp_path / "leases"), "resources": PORT}
    troubled = bare_ranks.stage(tmp_path, "worker-0", Path(__file__), leases=noted)
    (troubled / rank_files.STACKS_FILE).mkdir()
    with open("/dev/full", "wb") as full:
        assert run(NOTING, troubled, stderr=full).returncode == 0
    assert run(NOTING, troubled, tmp_path / "log").returncode == 0
    log = (tmp_path / "log").read_text()
    for name in (rank_files.STATE_FILE, rank_files.STACKS_FILE, rank_files.PROGRESS_FILE):
        assert f"cannot write {name}: [Errno" in log
    assert "the rank is running without leases: " in log


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
    assert bare_ranks.state(rank_dir)["cause"] == ends.SUPERVISOR
    ranks.set_aside(str(rank_dir))
    assert (rank_dir / "attempts/0" / rank_files.RANK_FILE).read_text() == text


def test_files_are_synced_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.json"
    synced: list[tuple[bool, int]] = []

    def fsync(descriptor: int) -> None:
        synced.append((path.exists(), os.fstat(descriptor).st_size))

    monkeypatch.setattr(os, "fsync", fsync)
    json_files.write_json(str(path), {"phase": "running"})
    assert synced == [(False, path.stat().st_size)]
    json_files.write_json(str(path), {}, durable=False)
    assert len(synced) == 1


def made_ready(root: Path, ago: float, attempt: int = 1) -> Path:
    """Create the folder of a rank that was staged some seconds ago and has not started."""
    rank_dir = lay_out(root, "night", "worker-0", host="a", phase=records.ABSENT)
    path = rank_dir / rank_files.RANK_FILE
    spec = json.loads(path.read_text())
    spec.update(attempt=attempt, start_timeout=200, port=None)
    path.write_text(json.dumps(spec))
    os.utime(path, (time.time() - ago, time.time() - ago))
    return rank_dir


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


def test_what_a_job_without_any_folder_has_taken_is_given_back(tmp_path: Path) -> None:
    folder = str(tmp_path / "leases")
    leases.take(folder, {"port/1": "port 1"}, leases.Holder(1.0, "night", "worker-0", 1))
    about: dict[str, Any] = {"root": str(tmp_path), "job": "night", "host": "a", "check": False}
    about.update(lease_dir=folder, permanent=True, grace=0, reason="x")
    done = calls.stop(about)
    assert (done["stop_report"]["was"], done["stop_report"]["given_back"]) == ("absent", 1)
    assert done["changed"]
    assert leases.holders(folder) == []
    assert not calls.stop(about)["changed"]


def staged_again(root: Path, task: str, claim: str) -> Path:
    """Stage the second attempt of a rank like ``stage``, and return its folder."""
    rank_dir = root / "jobs/night" / task
    spec = ranks.specification(str(rank_dir))
    (rank_dir.parent / (rank_files.CLAIM_FILE % 2)).write_text(claim)
    ranks.set_aside(str(rank_dir))
    staging.write_description(str(rank_dir.parent), {"attempt": 2, "job": "night"})
    json_files.write_json(str(rank_dir / rank_files.RANK_FILE), dict(spec, attempt=2))
    return rank_dir


def unstage(root: Path, task: str, claim: str) -> str:
    """Undo ``staged_again``, and return the message."""
    about = {"root": str(root), "lease_dir": str(root / "leases"), "job": "night", "task": task}
    with pytest.raises(CallError) as raised:
        staging.unstage({**about, "attempt": "2", "created_at": "1.0", "claim": claim})
    return str(raised.value)


def files_of(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_a_later_attempt_that_is_unstaged_leaves_the_job_as_it_was(tmp_path: Path) -> None:
    """One of two ranks on a machine had its earlier files set aside, and got no new ones."""
    for task in ("worker-0", "worker-1"):
        lay_out(tmp_path, "night", task, host=task, phase=records.FAILED)
    job_dir = tmp_path / "jobs/night"
    json_files.write_json(str(job_dir / rank_files.JOB_FILE), {"attempt": 1})
    before = files_of(job_dir)
    for task in ("worker-0", "worker-1"):
        staged_again(tmp_path, task, "mine")
    (job_dir / "worker-1" / rank_files.RANK_FILE).unlink()
    assert "belongs to another control node" in unstage(tmp_path, "worker-0", "other")
    for task in ("worker-0", "worker-1"):
        assert "leases were released" in unstage(tmp_path, task, "mine")
    assert files_of(job_dir) == before
    assert ranks.reported(str(job_dir / "worker-0"))["phase"] == records.FAILED
    unstage(tmp_path, "worker-0", "mine")
    assert files_of(job_dir).keys() == before.keys()


def test_a_rank_that_has_started_is_not_unstaged(tmp_path: Path) -> None:
    lay_out(tmp_path, "night", "worker-0", host="a", phase=records.FAILED)
    rank_dir = staged_again(tmp_path, "worker-0", "mine")
    (rank_dir / rank_files.STATE_FILE).write_text('{"phase": "stopped", "attempt": 2}')
    unstage(tmp_path, "worker-0", "mine")
    assert ranks.specification(str(rank_dir))["attempt"] == 2


def test_a_rank_that_only_a_later_attempt_had_leaves_nothing(tmp_path: Path) -> None:
    rank_dir = made_ready(tmp_path, 1.0, attempt=2)
    unstage(tmp_path, "worker-0", "mine")
    assert not rank_dir.exists()
