"""A job outlives what happens to its hosts, and its numbers do not change by it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import faults
from tests.conftest import REPOSITORY, Lab
from tests.test_local_jobs import training
from tests.test_ssh_jobs import job_processes
from tests.testbed import Host, Testbed

Labs = Callable[..., Lab]
pytestmark = [pytest.mark.docker, pytest.mark.tensorflow]

#: Some 10 s of steps, with a checkpoint about every half second.
SLOW = REPOSITORY / "tests/data/scripts/slow_data.py"
ARGUMENTS = [
    *("--data", SLOW.name, "--batch-size", "120", "--epochs", "60", "--evaluate-every", "0"),
    *("--steps-per-execution", "1", "--checkpoint-every", "30"),
]
INCLUDE = ("--include", str(SLOW))
QUICK = {
    "train_job_update_interval": 0.5,
    "train_job_restart_delay": 0,
    "train_job_max_restarts": 5,
}
#: Seconds from a fault to its verdict.
LIMIT = 30.0

Cause = Callable[[Testbed, Host, str, str], AbstractContextManager[None]]


@dataclass(frozen=True)
class Fault:
    """What is done to a rank or its host until the job is started again.

    Attributes:
        rank: the index of the worker.
        cause: the key of causes.CAUSES that is to be told.
        told: how the message begins after the rank and its host, a regular expression.
    """

    name: str
    rank: int
    do: Cause
    cause: str
    told: str


def sending(name: str, whose: str = "pid") -> Cause:
    """Return the fault of a signal to a rank."""

    @contextmanager
    def send(bed: Testbed, host: Host, job: str, task: str) -> Iterator[None]:
        faults.signal_rank(bed, host, job, task, name, whose)
        yield

    return send


def to_host(fault: Callable[[Host], AbstractContextManager[None]]) -> Cause:
    """Return a fault of a whole host."""
    return lambda bed, host, job, task: fault(host)


LOST = r"(does not answer|ended when its host was restarted)"
ENDED = [
    Fault("rank", 1, sending("KILL"), "signal", r"was killed by SIGKILL \(signal 9\)"),
    Fault(
        *("supervisor", 0, sending("KILL", "supervisor_pid"), "supervisor"),
        r"ended with its supervisor \(pid \d+\), which was killed",
    ),
    Fault("host", 1, to_host(faults.off), "unreachable|reboot", LOST),
]
SILENT = [
    Fault("stopped", 0, sending("STOP"), "frozen", "is stopped by a signal or a debugger"),
    Fault("paused", 1, to_host(faults.paused), "unreachable", "does not answer"),
    Fault("unplugged", 0, to_host(faults.unplugged), "unreachable", "does not answer"),
]


@pytest.fixture(scope="module")
def undisturbed(testbed: Testbed, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of the weights to which the training comes when nothing happens."""
    return undisturbed_weights(testbed, tmp_path_factory.mktemp("undisturbed"), ARGUMENTS)


def undisturbed_weights(testbed: Testbed, folder: Path, arguments: list[str]) -> str:
    """Return the hash of the weights of a job of two workers that nothing happens to."""
    inventory = testbed.write_inventory({"worker": testbed.hosts[:2]}, path=folder / "inventory")
    lab = Lab(inventory, folder / "runs")
    run = lab.run("--job", "undisturbed", *INCLUDE, arguments=arguments)
    assert run.code == 0, run.result
    return weights(lab, "undisturbed")


def weights(lab: Lab, job: str) -> str:
    """Return the hash of the weights that all ranks ended with."""
    (found,) = {rank["weights_sha256"] for rank in lab.saved(job)["ranks"]}
    assert found
    return str(found)


@pytest.mark.parametrize("chosen", [ENDED, SILENT], ids=["ended", "silent"])
def test_a_gang_is_started_again_and_comes_to_the_same_weights(
    ssh_lab: Labs, testbed: Testbed, undisturbed: str, chosen: Sequence[Fault]
) -> None:
    lab, job = ssh_lab(worker=2), chosen[0].name
    command = lab.start("--job", job, *INCLUDE, arguments=ARGUMENTS, **QUICK)
    with faults.followed(lab, job, command):
        for number, fault in enumerate(chosen, 1):
            command.wait_for(training)
            host, task = testbed.hosts[fault.rank], f"worker-{fault.rank}"
            began = time.monotonic()
            with fault.do(testbed, host, job, task):
                restart = command.wait_for(lambda event: bool(event["event"] == "restart"))
                seconds = time.monotonic() - began
            found = (restart["attempt"], restart["culprit"])
            assert found == (number + 1, task), restart["message"]
            assert re.fullmatch(fault.cause, restart["cause"]), restart["message"]
            told = rf"{task} on worker{fault.rank} {fault.told}"
            assert re.match(told, restart["message"]), restart["message"]
            assert seconds < LIMIT, fault
        run = command.end()
    assert run.code == 0, run.result
    assert lab.saved(job)["attempts"] == len(chosen) + 1
    assert weights(lab, job) == undisturbed
    assert job_processes(testbed) == []


def test_sshd_is_down_and_a_clock_is_set_back_and_nothing_happens(
    ssh_lab: Labs, testbed: Testbed, undisturbed: str
) -> None:
    lab, host = ssh_lab(worker=2), testbed.hosts[1]
    with faults.own_clock(testbed, host):
        command = lab.start("--job", "unmoved", *INCLUDE, arguments=ARGUMENTS, **QUICK)
        with faults.followed(lab, "unmoved", command):
            command.wait_for(training)
            faults.set_clock(testbed, host, -3600.0)
            with faults.sshd_down(testbed, host):
                time.sleep(LIMIT)
            run = command.end()
        assert run.code == 0, run.result
        progress = (lab.runs_dir / "unmoved/progress/worker-1.jsonl").read_text().splitlines()
        times = [json.loads(line)["t"] for line in progress]
    assert times[-1] - times[0] < -3000, "the clock was not set back"
    saved = lab.saved("unmoved")
    assert (saved["state"], saved["attempts"]) == ("completed", 1)
    assert not [event for event in run.events if event["event"] == "restart"]
    assert weights(lab, "unmoved") == undisturbed
    assert job_processes(testbed) == []
