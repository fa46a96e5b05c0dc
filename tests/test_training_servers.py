"""Training with parameter servers: servers that end by themselves, and the chief's watch."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY, free_port

pytestmark = pytest.mark.tensorflow

LAB = REPOSITORY / "tests/data/servers_lab.py"
#: Seconds after which a task of a test is given up.
PATIENCE = 60.0
#: What the watch is given for a server that does not answer.
LIMIT = 3.0


class Lab:
    """The process that starts the tasks."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert self.read() == "ready"

    def read(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def ask(self, **order: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self.read()


@dataclass
class Gang:
    """A chief, two workers and a parameter server."""

    lab: Lab
    folder: Path
    addresses: dict[str, list[str]]
    pids: dict[str, int] = field(default_factory=dict)

    def start(self, task: str, closures: int = 60, timeout: float = PATIENCE) -> None:
        job, _, index = task.rpartition("-")
        (self.folder / task).touch()
        self.pids[task] = self.lab.ask(
            tf_config={"cluster": self.addresses, "task": {"type": job, "index": int(index)}},
            log=str(self.folder / task),
            closures=closures,
            limit=LIMIT,
            timeout=timeout,
        )

    def start_all(self, closures: int = 60) -> None:
        """Start all tasks, and wait until the steps are under way."""
        for task in ("ps-0", "worker-0", "worker-1", "chief-0"):
            self.start(task, closures)
        self.wait_for_line("chief-0", "scheduled")
        time.sleep(0.7)

    def send(self, task: str, number: signal.Signals) -> None:
        os.kill(self.pids[task], number)

    def end(self, task: str, seconds: float = PATIENCE) -> int:
        """Return the exit code of a task, which ends within ``seconds``."""
        code = self.lab.ask(wait=self.pids[task], seconds=seconds)
        assert code is not None, f"{task} does not end: {self.log(task)}"
        del self.pids[task]
        return int(code)

    def log(self, task: str) -> str:
        return (self.folder / task).read_text()

    def phases(self, task: str) -> list[str]:
        text = (self.folder / f"{task}.progress").read_text()
        return [json.loads(line)["phase"] for line in text.splitlines()]

    def wait_for_line(self, task: str, wanted: str) -> None:
        end = time.monotonic() + PATIENCE
        while wanted not in self.log(task):
            assert time.monotonic() < end, f"{task} never told {wanted!r}: {self.log(task)}"
            time.sleep(0.05)

    def made(self) -> list[tuple[int, float]]:
        """Return process and Unix time of each step, as the chief told them at its end."""
        [told] = [x for x in self.log("chief-0").splitlines() if x.startswith('{"made"')]
        return [(pid, at) for pid, at in json.loads(told)["made"]]


@pytest.fixture(scope="module")
def lab(tf_python: str) -> Iterator[Lab]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "TRAIN_"))}
    process = subprocess.Popen(
        [tf_python, str(LAB)],
        env={**kept, "TF_CPP_MIN_LOG_LEVEL": "1", "TF_USE_LEGACY_KERAS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Lab(process)
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def gang(lab: Lab, tmp_path: Path) -> Iterator[Gang]:
    counts = {"chief": 1, "worker": 2, "ps": 1}
    addresses = {
        job: [f"127.0.0.1:{free_port()}" for _ in range(count)] for job, count in counts.items()
    }
    gang = Gang(lab, tmp_path, addresses)
    yield gang
    for pid in gang.pids.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_all_end_by_themselves(gang: Gang) -> None:
    gang.start_all()
    workers = {gang.pids["worker-0"], gang.pids["worker-1"]}
    assert gang.end("chief-0") == 0, gang.log("chief-0")
    for task in ("worker-0", "worker-1", "ps-0"):
        assert gang.end(task, 10) == 0, gang.log(task)
        assert gang.phases(task) == ["waiting", "serving", "done"]
    made = gang.made()
    assert len(made) == 60
    assert {pid for pid, _ in made} == workers


def test_frozen_worker_is_left_out_and_taken_back_and_a_killed_one_is_done_without(
    gang: Gang,
) -> None:
    gang.start_all(closures=400)
    first, second = gang.pids["worker-0"], gang.pids["worker-1"]
    began = time.monotonic()
    gang.send("worker-1", signal.SIGSTOP)
    gang.wait_for_line("chief-0", "the training goes on without it")
    assert LIMIT - 1 < time.monotonic() - began < LIMIT + 5
    time.sleep(2)
    continued = time.time()
    gang.send("worker-1", signal.SIGCONT)
    gang.wait_for_line("chief-0", "answers again")
    time.sleep(6)
    killed = time.time()
    gang.send("worker-0", signal.SIGKILL)

    assert gang.end("chief-0") == 0, gang.log("chief-0")
    made = gang.made()
    assert len(made) == 400
    # Without the frozen worker, with it again, and without the killed one.
    assert {pid for pid, at in made if continued - 1 < at < continued} == {first}
    assert {pid for pid, at in made if continued < at < killed} == {first, second}
    assert {pid for pid, at in made if killed + 0.5 < at} == {second}
    assert (gang.end("worker-1", 10), gang.end("ps-0", 10)) == (0, 0), gang.log("worker-1")
    assert gang.end("worker-0", 0) == -signal.SIGKILL


def test_worker_that_stays_frozen_delays_no_end(gang: Gang) -> None:
    gang.start_all(closures=60)
    gang.send("worker-1", signal.SIGSTOP)
    began = time.monotonic()
    assert gang.end("chief-0") == 0, gang.log("chief-0")
    assert time.monotonic() - began < LIMIT + 15
    assert (gang.end("worker-0", 10), gang.end("ps-0", 10)) == (0, 0)
    # Too late for the farewell.
    gang.send("worker-1", signal.SIGCONT)
    assert gang.end("worker-1", 15) == 1
    assert "TrainingError: chief-0 (127.0.0.1:" in gang.log("worker-1")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_lost_parameter_server_ends_the_chief_by_name(gang: Gang, number: signal.Signals) -> None:
    gang.start_all(closures=2000)
    gang.send("ps-0", number)
    assert gang.end("chief-0", 15) == 1
    [line] = [x for x in gang.log("chief-0").splitlines() if x.startswith("TrainingError: ")]
    assert "ps-0" in line
    for task in ("worker-0", "worker-1"):
        assert gang.end(task, 15) == 1
        assert "has ended before it was done" in gang.log(task)


def test_killed_chief_ends_its_servers(gang: Gang) -> None:
    gang.start_all(closures=2000)
    gang.send("chief-0", signal.SIGKILL)
    for task in ("worker-0", "worker-1", "ps-0"):
        assert gang.end(task, 15) == 1
        assert "TrainingError: chief-0 (127.0.0.1:" in gang.log(task)


def test_chief_without_any_worker_names_them(gang: Gang) -> None:
    gang.start_all(closures=2000)
    gang.send("worker-0", signal.SIGKILL)
    gang.send("worker-1", signal.SIGSTOP)
    assert gang.end("chief-0", 25) == 1
    assert gang.log("chief-0").splitlines()[-1] == (
        "TrainingError: no worker takes part for 5 s: worker-0 has ended, worker-1 does not answer"
    )


def test_start_names_who_is_missing(gang: Gang) -> None:
    gang.start("worker-0", timeout=3)
    gang.start("ps-0")
    gang.start("chief-0", timeout=3)
    assert (gang.end("worker-0", 15), gang.end("chief-0", 15)) == (1, 1)
    within = "TrainingError: not there within the start timeout of 3 s: "
    assert f"{within}chief-0 ({gang.addresses['chief'][0]})\n" in gang.log("worker-0")
    missing = gang.log("chief-0").splitlines()[-1]
    assert missing.startswith(within)
    assert f"worker-1 ({gang.addresses['worker'][1]})" in missing
    gang.send("ps-0", signal.SIGTERM)
    assert gang.end("ps-0", 5) == -signal.SIGTERM
    assert gang.phases("ps-0") == ["waiting"]


def test_taken_port_is_told(gang: Gang) -> None:
    with socket.create_server(("0.0.0.0", int(gang.addresses["ps"][0].rpartition(":")[2]))):
        gang.start("ps-0")
        assert gang.end("ps-0", 15) == 1
    assert f"cannot serve as ps-0 at {gang.addresses['ps'][0]}" in gang.log("ps-0")
    assert "is its port taken?" in gang.log("ps-0")
