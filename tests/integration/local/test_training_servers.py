"""Parameter servers that end by themselves, and the chief's watch over them."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.support.lab import REPOSITORY
from tests.support.training_ranks import (
    TASKS,
    Rank,
    Start,
    cluster_addresses,
    start_task,
    wait_until,
)

pytestmark = pytest.mark.tensorflow

LAB = (REPOSITORY / "tests/data/servers_lab.py").read_text()
#: Time limits of the lab's watch for unresponsive servers.
LIMIT = 3.0
#: An error that the chief's log repeats after about one of six freezes: TensorFlow 2.21 has
#: connected the worker again, but each of its steps fails for as long as the worker lives.
NOT_TAKEN_BACK = re.compile(
    r"(?s)responds again.*failed with (AbortedError\(\):Cleanup|NotFoundError\(\):'__inference).*"
    r"no worker has responded"
)


def start_all(start: Start, folder: Path, closures: int = 2000) -> dict[str, Rank]:
    """Start all tasks, and wait until steps are made."""
    addresses = cluster_addresses()
    ranks = {
        task: start_task(start, folder, addresses, task, str(closures), script=LAB)
        for task in TASKS
    }
    wait_for_line(ranks["chief-0"], "scheduled")
    time.sleep(0.7)
    return ranks


def wait_for_line(rank: Rank, wanted: str) -> None:
    wait_until(rank, lambda: wanted in rank.said())


def failure(rank: Rank) -> str:
    """Return the line of a task that has failed."""
    assert rank.end(100) == 1, rank.said()
    lines = [x for x in rank.said().splitlines() if x.startswith("TrainingError: ")]
    assert len(lines) == 1, rank.said()
    return lines[0]


@pytest.mark.soak
def test_frozen_worker_is_left_out_and_taken_back_and_a_killed_one_is_done_without(
    start: Start, tmp_path: Path
) -> None:
    ranks = start_all(start, tmp_path, closures=800)
    workers, chief = [ranks["worker-0"], ranks["worker-1"]], ranks["chief-0"]
    first, second = (worker.process.pid for worker in workers)
    began = time.monotonic()
    workers[1].process.send_signal(signal.SIGSTOP)
    wait_for_line(chief, "the training continues without it")
    assert LIMIT - 1 < time.monotonic() - began < LIMIT + 30
    left_out = time.time()
    time.sleep(5)  # on a busy machine, it takes seconds until a worker makes steps again
    continued = time.time()
    workers[1].process.send_signal(signal.SIGCONT)
    wait_for_line(chief, "responds again")
    time.sleep(12)
    killed = time.time()
    workers[0].process.kill()

    ended = chief.end()
    if NOT_TAKEN_BACK.search(chief.said()):
        assert failure(chief).startswith(
            "TrainingError: no worker has responded for 15 s: worker-0"
        )
        return
    assert ended == 0, chief.said()
    # Process and Unix time of each step.
    made: list[tuple[int, float]] = json.loads(chief.said().splitlines()[-1])
    assert len(made) == 800
    # Without the frozen worker, with it again, and without the killed worker.
    assert {pid for pid, at in made if left_out < at < continued} == {first}
    assert {pid for pid, at in made if continued < at < killed} == {first, second}
    assert {pid for pid, at in made if killed + 0.5 < at} == {second}
    assert (workers[1].end(60), ranks["ps-0"].end(60)) == (0, 0), workers[1].said()
    assert workers[0].end(0) == -signal.SIGKILL


@pytest.mark.soak
def test_worker_that_stays_frozen_delays_no_end(start: Start, tmp_path: Path) -> None:
    ranks = start_all(start, tmp_path, closures=60)
    frozen = ranks.pop("worker-1")
    frozen.process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    assert {task: rank.end() for task, rank in ranks.items()} == dict.fromkeys(ranks, 0)
    assert time.monotonic() - began < LIMIT + 60
    # Too late for the shutdown.
    frozen.process.send_signal(signal.SIGCONT)
    assert failure(frozen).startswith("TrainingError: chief-0 (localhost:")


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.soak)]
)
def test_lost_parameter_server_ends_the_chief_by_name(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    ranks = start_all(start, tmp_path)
    ranks["ps-0"].process.send_signal(number)
    assert "ps-0" in failure(ranks["chief-0"])
    for task in ("worker-0", "worker-1"):
        assert "ended prematurely" in failure(ranks[task])


def test_chief_without_any_worker_names_them(start: Start, tmp_path: Path) -> None:
    ranks = start_all(start, tmp_path)
    ranks["worker-0"].process.kill()
    # When a worker ends, TensorFlow removes functions on all others, under Python's lock.
    wait_for_line(ranks["chief-0"], "the training continues without it")
    ranks["worker-1"].process.send_signal(signal.SIGSTOP)
    assert failure(ranks["chief-0"]) == (
        "TrainingError: no worker has responded for 15 s: worker-0 has ended, worker-1 is "
        "unresponsive"
    )
    assert failure(ranks["ps-0"]).startswith("TrainingError: chief-0 (localhost:")


def test_start_names_who_is_missing(start: Start, tmp_path: Path) -> None:
    addresses = cluster_addresses()
    worker, server, chief = (
        start_task(start, tmp_path, addresses, task, "60", *timeout, script=LAB)
        for task, *timeout in (("worker-0", "3"), ("ps-0",), ("chief-0", "3"))
    )
    within = "TrainingError: did not join within the start timeout of 3 s: "
    assert failure(worker) == f"{within}chief-0 ({addresses['chief'][0]})"
    missing = failure(chief)
    assert missing.startswith(within)
    assert f"worker-1 ({addresses['worker'][1]})" in missing
    server.process.send_signal(signal.SIGTERM)
    assert server.end(30) == -signal.SIGTERM
    assert [record["phase"] for record in server.records()] == ["waiting"]


def test_taken_port_is_told(start: Start, tmp_path: Path) -> None:
    addresses = cluster_addresses()
    with socket.create_server(("0.0.0.0", int(addresses["ps"][0].rpartition(":")[2]))):
        told = failure(start_task(start, tmp_path, addresses, "ps-0", "60", script=LAB))
    assert f"cannot serve as ps-0 at {addresses['ps'][0]}" in told
    assert told.endswith("check whether another process uses its port")
