"""Training with parameter servers: servers that end by themselves, and the chief's watch."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.lab import REPOSITORY, clean_environment, free_port
from tests.support.tensorflow_forks import Fork, Forks, forks
from tests.support.training_ranks import TRAIN

pytestmark = pytest.mark.tensorflow

LAB = REPOSITORY / "tests/data/servers_lab.py"
#: Seconds after which a task of a test is given up.
PATIENCE = 180.0
#: What the watch is given for an unresponsive server.
LIMIT = 3.0


@dataclass
class Gang:
    """A chief, two workers and a parameter server."""

    forks: Forks
    folder: Path
    addresses: dict[str, list[str]]
    tasks: dict[str, Fork] = field(default_factory=dict)

    def start(self, task: str, closures: int = 60, timeout: float = PATIENCE) -> None:
        job, _, index = task.rpartition("-")
        (self.folder / task).touch()
        order = {
            "tf_config": {"cluster": self.addresses, "task": {"type": job, "index": int(index)}},
            "progress": str(self.folder / f"{task}.progress"),
            "closures": closures,
            "limit": LIMIT,
            "timeout": timeout,
        }
        environment = clean_environment(PYTHONPATH=str(TRAIN), TF_CPP_MIN_LOG_LEVEL="1")
        words = [str(LAB), json.dumps(order)]
        log = self.folder / task
        self.tasks[task] = self.forks.start(words, environment, self.folder, log)

    def start_all(self, closures: int = 60) -> None:
        """Start all tasks, and wait until the steps are under way."""
        for task in ("ps-0", "worker-0", "worker-1", "chief-0"):
            self.start(task, closures)
        self.wait_for_line("chief-0", "scheduled")
        time.sleep(0.7)

    def send(self, task: str, number: signal.Signals) -> None:
        self.tasks[task].send_signal(number)

    def end(self, task: str, seconds: float = PATIENCE) -> int:
        """Return the exit code of a task, which ends within ``seconds``."""
        try:
            return self.tasks[task].wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{task} does not end: {self.log(task)}") from None

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


@pytest.fixture
def gang(tf_python: str, tmp_path: Path) -> Iterator[Gang]:
    counts = {"chief": 1, "worker": 2, "ps": 1}
    addresses = {
        job: [f"127.0.0.1:{free_port()}" for _ in range(count)] for job, count in counts.items()
    }
    gang = Gang(forks(tf_python), tmp_path, addresses)
    yield gang
    for task in gang.tasks.values():
        task.kill()


def test_all_end_by_themselves(gang: Gang) -> None:
    gang.start_all()
    workers = {gang.tasks["worker-0"].pid, gang.tasks["worker-1"].pid}
    assert gang.end("chief-0") == 0, gang.log("chief-0")
    for task in ("worker-0", "worker-1", "ps-0"):
        assert gang.end(task, 60) == 0, gang.log(task)
        assert gang.phases(task) == ["waiting", "serving", "done"]
    made = gang.made()
    assert len(made) == 60
    assert {pid for pid, _ in made} == workers


def test_frozen_worker_is_left_out_and_taken_back_and_a_killed_one_is_done_without(
    gang: Gang,
) -> None:
    gang.start_all(closures=800)
    first, second = gang.tasks["worker-0"].pid, gang.tasks["worker-1"].pid
    began = time.monotonic()
    gang.send("worker-1", signal.SIGSTOP)
    gang.wait_for_line("chief-0", "the training continues without it")
    assert LIMIT - 1 < time.monotonic() - began < LIMIT + 30
    left_out = time.time()
    time.sleep(5)  # on a loaded machine it takes seconds until a worker has work again
    continued = time.time()
    gang.send("worker-1", signal.SIGCONT)
    gang.wait_for_line("chief-0", "responds again")
    time.sleep(12)
    killed = time.time()
    gang.send("worker-0", signal.SIGKILL)

    assert gang.end("chief-0") == 0, gang.log("chief-0")
    made = gang.made()
    assert len(made) == 800
    # Without the frozen worker, with it again, and without the killed one.
    assert {pid for pid, at in made if left_out < at < continued} == {first}
    assert {pid for pid, at in made if continued < at < killed} == {first, second}
    assert {pid for pid, at in made if killed + 0.5 < at} == {second}
    assert (gang.end("worker-1", 60), gang.end("ps-0", 60)) == (0, 0), gang.log("worker-1")
    assert gang.end("worker-0", 0) == -signal.SIGKILL


def test_worker_that_stays_frozen_delays_no_end(gang: Gang) -> None:
    gang.start_all(closures=60)
    gang.send("worker-1", signal.SIGSTOP)
    began = time.monotonic()
    assert gang.end("chief-0") == 0, gang.log("chief-0")
    assert time.monotonic() - began < LIMIT + 60
    assert (gang.end("worker-0", 60), gang.end("ps-0", 60)) == (0, 0)
    # Too late for the shutdown.
    gang.send("worker-1", signal.SIGCONT)
    assert gang.end("worker-1", 60) == 1
    assert "TrainingError: chief-0 (127.0.0.1:" in gang.log("worker-1")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_lost_parameter_server_ends_the_chief_by_name(gang: Gang, number: signal.Signals) -> None:
    gang.start_all(closures=2000)
    gang.send("ps-0", number)
    assert gang.end("chief-0", 60) == 1
    [line] = [x for x in gang.log("chief-0").splitlines() if x.startswith("TrainingError: ")]
    assert "ps-0" in line
    for task in ("worker-0", "worker-1"):
        assert gang.end(task, 60) == 1
        assert "has ended before it was done" in gang.log(task)


def test_killed_chief_ends_its_servers(gang: Gang) -> None:
    gang.start_all(closures=2000)
    gang.send("chief-0", signal.SIGKILL)
    for task in ("worker-0", "worker-1", "ps-0"):
        assert gang.end(task, 60) == 1
        assert "TrainingError: chief-0 (127.0.0.1:" in gang.log(task)


def test_chief_without_any_worker_names_them(gang: Gang) -> None:
    gang.start_all(closures=2000)
    gang.send("worker-0", signal.SIGKILL)
    # At a worker's end TensorFlow takes functions away on all others, under Python's lock.
    gang.wait_for_line("chief-0", "the training continues without it")
    gang.send("worker-1", signal.SIGSTOP)
    assert gang.end("chief-0", 100) == 1
    [line] = [x for x in gang.log("chief-0").splitlines() if x.startswith("TrainingError: ")]
    assert line == (
        "TrainingError: no worker takes part for 5 s: worker-0 has ended, worker-1 is unresponsive"
    )


def test_start_names_who_is_missing(gang: Gang) -> None:
    gang.start("worker-0", timeout=3)
    gang.start("ps-0")
    gang.start("chief-0", timeout=3)
    assert (gang.end("worker-0", 60), gang.end("chief-0", 60)) == (1, 1)
    within = "TrainingError: not there within the start timeout of 3 s: "
    assert f"{within}chief-0 ({gang.addresses['chief'][0]})\n" in gang.log("worker-0")
    missing = gang.log("chief-0").splitlines()[-1]
    assert missing.startswith(within)
    assert f"worker-1 ({gang.addresses['worker'][1]})" in missing
    gang.send("ps-0", signal.SIGTERM)
    assert gang.end("ps-0", 30) == -signal.SIGTERM
    assert gang.phases("ps-0") == ["waiting"]


def test_taken_port_is_told(gang: Gang) -> None:
    with socket.create_server(("0.0.0.0", int(gang.addresses["ps"][0].rpartition(":")[2]))):
        gang.start("ps-0")
        assert gang.end("ps-0", 60) == 1
    assert f"cannot serve as ps-0 at {gang.addresses['ps'][0]}" in gang.log("ps-0")
    assert "is its port taken?" in gang.log("ps-0")
