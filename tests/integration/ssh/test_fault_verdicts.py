"""What a restart does not mend ends the job soon, with the right rank, cause and words."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import faults
from tests.support.faults import LIMIT
from tests.support.jobs import ssh_processes, training
from tests.support.lab import REPOSITORY, Command, Lab, Run
from tests.support.testbed import Testbed

Labs = Callable[..., Lab]
pytestmark = [pytest.mark.docker, pytest.mark.tensorflow]

FAULTY = str(REPOSITORY / "tests/data/scripts/faulty")
LONG = ["--epochs", "100000", "--evaluate-every", "0"]
#: Seconds without a step after which a gang is taken for hung (train_job_hang_min_seconds).
HANG = 180
QUICK: dict[str, Any] = {
    "train_job_update_interval": 0.5,
    "train_job_restart_delay": 0,
    "train_job_max_restarts": 3,
}


def check(lab: Lab, job: str, run: Run, root_cause: str, cause: str, *words: str) -> dict[str, Any]:
    """Check the verdict, and return ``result.json``."""
    assert run.code == 1, run.result
    saved = lab.saved(job)
    assert (saved["state"], saved["root_cause"], saved["cause"]) == ("failed", root_cause, cause), (
        saved
    )
    message = run.result["message"]
    assert message.startswith(f"{root_cause} on {root_cause.replace('-', '')} "), message
    for word in words:
        assert word in message, message
    return saved


def all_up(command: Command, ranks: int) -> float:
    """Wait until all ranks run, and return the time."""
    up: set[str] = set()

    def noted(event: dict[str, Any]) -> bool:
        if event["event"] == "rank" and event["phase"] == "running":
            up.add(event["task"])
        return len(up) == ranks

    command.wait_for(noted)
    return time.monotonic()


def test_a_full_disk(ssh_lab: Labs, testbed: Testbed) -> None:
    lab, host = ssh_lab(worker=2), testbed.hosts[1]
    faults.worker(lab, 1, train_job_root=f"{faults.SMALL_DISK}/train", train_job_min_free_mb=1)
    command = lab.start("--job", "full", arguments=[*LONG, "--checkpoint-every", "50"], **QUICK)
    with faults.followed(lab, "full", command):
        command.wait_for(training)
        began = time.monotonic()
        with faults.full_disk(testbed, host):
            run = command.end()
    assert time.monotonic() - began < LIMIT
    full = f"the disk of {faults.SMALL_DISK}/train/jobs/full/worker-1 is full"
    saved = check(lab, "full", run, "worker-1", "disk", full, "what to do: make space on that disk")
    assert saved["attempts"] == 1
    assert ssh_processes(testbed) == []
    testbed.exec(host, "rm", "--recursive", f"{faults.SMALL_DISK}/train")


def test_out_of_memory(ssh_lab: Labs, testbed: Testbed) -> None:
    lab = ssh_lab(worker=2)
    with faults.little_memory(testbed.hosts[1], 1536):
        command = lab.start(
            *("--job", "eaten", "--script", FAULTY), arguments=["--what", "eat"], **QUICK
        )
        with faults.followed(lab, "eaten", command):
            run = command.end()
    words = (
        "was killed by SIGKILL (signal 9) because its control group had no memory left",
        "what to do: lower the batch size",
        "not started again: it has failed at step 20 in the same way twice",
    )
    saved = check(lab, "eaten", run, "worker-1", "memory", *words)
    assert saved["attempts"] == 2
    assert ssh_processes(testbed) == []


def test_a_bug_in_one_rank(ssh_lab: Labs, testbed: Testbed) -> None:
    lab = ssh_lab(worker=2)
    command = lab.start(
        *("--job", "bug", "--script", FAULTY), arguments=["--what", "raise", "--rank", "0"], **QUICK
    )
    with faults.followed(lab, "bug", command):
        run = command.end()
    words = "exited with code 1: ValueError: a bug", "not started again: it would fail in the same"
    assert check(lab, "bug", run, "worker-0", "exit", *words)["attempts"] == 1
    assert ssh_processes(testbed) == []


def test_a_worker_that_never_starts(ssh_lab: Labs, testbed: Testbed) -> None:
    lab = ssh_lab(worker=2)
    command = lab.start(
        *("--job", "asleep", "--script", FAULTY),
        arguments=["--what", "sleep"],
        train_job_start_timeout=20,
        **QUICK,
    )
    with faults.followed(lab, "asleep", command):
        run = command.end()
    words = "within 20 s (train_job_start_timeout)", "what to do: see in its log"
    saved = check(lab, "asleep", run, "worker-1", "start_timeout", *words)
    assert saved["attempts"] == 1
    assert ssh_processes(testbed) == []


def test_a_wrong_address(ssh_lab: Labs, testbed: Testbed) -> None:
    lab = ssh_lab(worker=2)
    # Of the same network, and of no host.
    wrong = testbed.hosts[0].address.rpartition(".")[0] + ".250"
    faults.worker(lab, 1, train_job_address=wrong)
    command = lab.start("--job", "astray", arguments=LONG, **QUICK)
    with faults.followed(lab, "astray", command):
        began = all_up(command, 2)
        run = command.end()
    assert time.monotonic() - began < LIMIT
    words = (
        f"cannot be reached at {wrong}:",
        f"this is no address of its host, which has {testbed.hosts[1].address}",
        "what to do: set train_job_address",
    )
    assert check(lab, "astray", run, "worker-1", "address", *words)["attempts"] == 1
    assert ssh_processes(testbed) == []


def test_a_blocked_port(ssh_lab: Labs, testbed: Testbed) -> None:
    lab = ssh_lab(worker=2)
    port = faults.worker(lab, 0)["train_job_port"]
    with faults.dropping(testbed.hosts[0], f"tcp dport {port} drop"):
        command = lab.start("--job", "blocked", arguments=LONG, **QUICK)
        with faults.followed(lab, "blocked", command):
            began = all_up(command, 2)
            run = command.end()
    assert time.monotonic() - began < LIMIT
    words = f"listens on port {port}, but nobody reaches it", "what to do: open the port"
    assert check(lab, "blocked", run, "worker-0", "blocked", *words)["attempts"] == 1
    assert ssh_processes(testbed) == []


@pytest.mark.parametrize(("deaf", "unheard", "root_causes"), [(1, 0, {1}), (2, 1, {1, 2})])
def test_packets_are_lost_in_one_direction(
    ssh_lab: Labs, testbed: Testbed, deaf: int, unheard: int, root_causes: set[int]
) -> None:
    lab, job = ssh_lab(worker=3), f"deaf{deaf}"
    command = lab.start("--job", job, arguments=LONG, **{**QUICK, "train_job_max_restarts": 0})
    with faults.followed(lab, job, command):
        command.wait_for(training)
        began = time.monotonic()
        rule = f"ip saddr {testbed.hosts[unheard].address} drop"
        with faults.dropping(testbed.hosts[deaf], rule):
            run = command.end()
    assert time.monotonic() - began < HANG, "by what the ranks see, not by the end of all patience"
    root_cause = lab.saved(job)["root_cause"]
    assert root_cause in {f"worker-{index}" for index in root_causes}, run.result
    check(lab, job, run, root_cause, "network", "what to do: check the network between these hosts")
    assert ssh_processes(testbed) == []
