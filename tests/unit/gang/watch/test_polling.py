"""How updates and files come from the hosts, made up or real folders."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.bare_ranks import wait_until
from tests.unit.gang.watch.made_up_gang import (
    GONE,
    LINES,
    RUNNING,
    STEPPING,
    Hosts,
    Make,
    done,
    failed,
    notices_of,
    record,
)
from tests.unit.gang.watch.real_folders import MIB, Machine, lines, note
from train.gang.errors import BusyError
from train.gang.watch import polling, verdict
from train.gang.watch.views import Target
from train.host import rank_files, records


@pytest.mark.usefixtures("full_disk")
def test_a_file_that_cannot_be_written_is_a_warning_and_is_fetched_again(gang: Make) -> None:
    watched = gang(Hosts(worker_0=[{**RUNNING, "log": LINES}, *[RUNNING] * 5, done()]))
    assert watched.follow().state == "completed"
    assert (watched.run_dir / "logs/worker-0.log").read_text() == LINES
    assert list(watched.views[0].tail) == LINES.splitlines()
    (notice,) = notices_of(watched)
    assert "No space left on device; the job continues" in notice["text"]


def test_files_of_another_attempt_are_not_kept(gang: Make) -> None:
    other = {**RUNNING, "attempt": 2, "log": "of another\n", "progress": record("x", step=9)}
    watched = gang(Hosts(worker_0=[other, other, done("own\n")]))
    assert watched.follow().state == "completed"
    assert (watched.run_dir / "logs/worker-0.log").read_text() == "own\n"
    assert list(watched.views[0].tail) == ["own"]
    assert "step" not in watched.views[0].record


def test_a_host_that_did_not_answer_is_asked_again_when_another_rank_fails(
    gang: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, its sshd was restarted, and then its rank failed."""
    monkeypatch.setattr(polling, "_BACKOFF", 60.0)
    monkeypatch.setattr(verdict, "ROOT_CAUSE_WAIT", 1.0)
    lost = "TrainingError: lost contact with worker-0: UnavailableError: Socket closed\n"
    hosts = Hosts(worker_0=[STEPPING, GONE], worker_1=[STEPPING])
    watched = gang(hosts)

    def fail() -> None:
        wait_until(lambda: watched.views[0].error, "an error of the host")
        hosts.states["worker-0"] = iter([failed("was killed", exit_code=-9, cause="signal")])
        hosts.states["worker-1"] = iter([failed(log=lost, cause="exit")])

    failing = threading.Thread(target=fail)
    failing.start()
    outcome = watched.follow()
    failing.join()
    assert (outcome.state, outcome.root_cause, outcome.cause) == ("failed", "worker-0", "signal")


def test_a_host_that_does_not_answer_is_not_asked_for_each_rank_that_fails(
    gang: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "_BACKOFF", 60.0)
    monkeypatch.setattr(verdict, "ROOT_CAUSE_WAIT", 1.0)
    lost = "TrainingError: lost contact with worker-0: UnavailableError: Socket closed\n"
    others = {
        f"worker_{n}": [*[STEPPING] * (10 + 3 * n), failed(log=lost, cause="exit")]
        for n in range(1, 9)
    }
    asked = []
    hosts = Hosts(worker_0=[STEPPING, GONE], **others)
    poll = hosts.poll

    def count(target: Target, *given: Any) -> Any:
        asked.append(target.task)
        return poll(target, *given)

    monkeypatch.setattr(hosts, "poll", count)
    outcome = gang(hosts).follow()
    assert (outcome.state, outcome.root_cause) == ("failed", "worker-0")
    assert asked.count("worker-0") <= 3


def test_two_do_not_follow_one_job(gang: Make) -> None:
    first = gang(Hosts(worker_0=[done()]))
    follower = rf"another process is already following this job: .* \(pid {os.getpid()} on .*python"
    with pytest.raises(BusyError, match=follower):
        gang(Hosts(worker_0=[done()]))
    assert first.follow().state == "completed"


@pytest.fixture
def keeps_writing() -> Iterator[Callable[[Path], None]]:
    """Make a rank write to its log until the test ends."""
    over, threads = threading.Event(), []

    def write(rank_dir: Path) -> None:
        with (rank_dir / rank_files.LOG_FILE).open("ab", buffering=0) as stream:
            while not over.wait(0.01):
                stream.write(lines(1_000))

    def begin(rank_dir: Path) -> None:
        threads.append(threading.Thread(target=write, args=(rank_dir,)))
        threads[-1].start()

    yield begin
    over.set()
    for thread in threads:
        thread.join()


def test_a_large_log_comes_without_a_pause_and_byte_for_byte(machine: Machine) -> None:
    data = bytes(range(256)) * 80_000  # 20 MB
    machine.rank(data)
    machine.rank(b"small\n")
    began = time.monotonic()
    assert machine.gang(interval=5.0).follow().state == "completed"
    # With a pause of the interval after each answer, it would take more than 25 s.
    assert time.monotonic() - began < 15
    assert machine.copy() == data
    assert machine.copy("logs/worker-1.log") == b"small\n"
    assert machine.notices("left_out") == []


def test_the_last_lines_are_those_of_the_end_though_it_has_not_come(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict, "ROOT_CAUSE_WAIT", 0.5)
    monkeypatch.setattr(polling, "_ANSWER_MOST", MIB)
    ask = machine.poll

    def slowly(*asked: Any) -> Any:
        time.sleep(0.6)
        return ask(*asked)

    machine.poll = slowly
    machine.rank(b"")
    failure: Any = {"phase": records.FAILED, "exit_code": 1, "reason": "exited with code 1"}
    machine.rank(lines(100_000) + b"before the end\nValueError: wrong\n", **failure)
    outcome = machine.gang().follow()
    assert outcome.root_cause == "worker-1"
    assert outcome.message.endswith("its last lines:\n  ValueError: wrong")


def test_a_talkative_rank_does_not_hide_the_failure_of_another(
    machine: Machine, keeps_writing: Callable[[Path], None]
) -> None:
    keeps_writing(machine.rank(phase=records.RUNNING))
    other = machine.rank(b"starts\n", phase=records.RUNNING)
    failure = {"exit_code": 3, "cause": "exit", "reason": "exited with code 3"}
    failed_at: list[float] = []

    def fail() -> None:
        failed_at.append(time.monotonic())
        note(other, records.FAILED, **failure)

    threading.Timer(1.5, fail).start()
    outcome = machine.gang(8 * MIB, interval=2.0).follow()
    assert time.monotonic() - failed_at[0] < 10
    assert outcome.root_cause == "worker-1"
    assert "exited with code 3" in outcome.message


@pytest.mark.parametrize("phase", [records.RUNNING, records.FAILED])
def test_the_rest_is_fetched_though_a_rank_keeps_writing(
    machine: Machine, keeps_writing: Callable[[Path], None], phase: str
) -> None:
    keeps_writing(machine.rank(lines(10_000), phase=phase))
    machine.gang(64 * MIB).drain()
    assert machine.copy().startswith(lines(10_000))
