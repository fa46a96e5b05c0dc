"""Permanent failures end a job soon, with the right rank, cause and message.

The jobs run under ``ansible-playbook``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.support import faults, playbook_jobs
from tests.support.faults import LIMIT
from tests.support.jobs import PLAIN, ssh_processes, training
from tests.support.lab import REPOSITORY, Lab, Labs
from tests.support.testbed import Testbed

pytestmark = [pytest.mark.docker, pytest.mark.tensorflow]

OWN = REPOSITORY / "train/worker.py"
ALL_WORKERS = [f"worker-{index}" for index in range(4)]
#: Arguments of the project's own training program, for a run that is longer than any test.
LONG = ["--epochs", "100000", "--evaluate-every", "0"]
#: Arguments of PLAIN, for a run that never reaches its second step.
STANDS = ["--seconds", "600"]
NOTHING = nullcontext()


def running(event: dict[str, Any]) -> bool:
    return bool(event["event"] == "rank" and event["phase"] == "running")


def check(
    lab: Lab,
    bed: Testbed,
    job: str,
    root_causes: Sequence[str],
    cause: str,
    *words: str,
    script: Path = PLAIN,
    arguments: Sequence[str],
    begun: Callable[[dict[str, Any]], bool] = training,
    fault: AbstractContextManager[None] = NOTHING,
    attempts: int = 1,
    **variables: Any,
) -> None:
    """Inject a fault into a job once it has begun, and check how the job ends.

    Args:
        root_causes: the ranks of which one must be named. A text with two ranks means that both are
        named, because neither is more at fault than the other.
        cause: the expected cause; alternatives are joined by "or".
        words: texts in the message.
    """
    variables = {"train_job_max_restarts": 3, "train_job_restart_delay": 0, **variables}
    command = playbook_jobs.start(lab, job, script, arguments, **variables)
    with faults.followed(lab, job, command):
        command.wait_for(begun)
        began = time.monotonic()
        with fault:
            run = command.end()
    assert time.monotonic() - began < LIMIT
    assert run.code == 1, run.result
    saved, message = lab.saved(job), run.result["message"]
    assert (saved["state"], saved["attempts"]) == ("failed", attempts), saved
    assert saved["cause"] in cause.split(" or "), saved
    named = saved["root_cause"]
    expected = {name: f"{name} on {name.replace('-', '')}" for name in ALL_WORKERS}
    if named is None:
        first, second = root_causes[0].split()
        assert message.startswith(f"{expected[first]} and {expected[second]} "), message
    else:
        assert named in root_causes, message
        assert message.startswith(f"{expected[named]} "), message
    for word in words:
        assert word in message, message
    assert ssh_processes(bed) == []


def test_a_full_disk(ssh_lab: Labs, testbed: Testbed) -> None:
    lab, host, root = ssh_lab(worker=2), testbed.hosts[1], f"{faults.SMALL_DISK}/train"
    faults.host_variables(lab, "worker1", train_job_root=root, train_job_min_free_mb=1)
    check(
        *(lab, testbed, "full", ["worker-1"], "disk"),
        f"the disk that holds {root}/jobs/full/worker-1 is full",
        "what to do: free up space on that disk",
        arguments=["--steps", "900"],
        fault=faults.full_disk(testbed, host),
    )
    testbed.exec(host, "rm", "--recursive", root)


@pytest.mark.soak
def test_out_of_memory(ssh_lab: Labs, testbed: Testbed) -> None:
    check(
        *(ssh_lab(worker=2), testbed, "eaten", ["worker-1"], "memory"),
        "was killed by SIGKILL (signal 9) because its control group was out of memory",
        "what to do: lower the batch size",
        "not restarted: it failed the same way twice at step 5",
        arguments=["--steps", "900", "--eat", "worker-1"],
        fault=faults.little_memory(testbed.hosts[1], 512),
        attempts=2,
    )


@pytest.mark.soak
def test_a_worker_that_never_starts(ssh_lab: Labs, testbed: Testbed) -> None:
    check(
        *(ssh_lab(worker=2), testbed, "asleep", ["worker-1"], "start_timeout"),
        "within 8 s (train_job_start_timeout)",
        "what to do: check in the rank's log",
        arguments=["--steps", "900", "--asleep", "worker-1"],
        train_job_start_timeout=8,
    )


@pytest.mark.soak
def test_a_wrong_address(ssh_lab: Labs, testbed: Testbed) -> None:
    lab = ssh_lab(worker=2)
    # An address of the same network that no host has.
    wrong = testbed.hosts[0].address.rpartition(".")[0] + ".250"
    faults.host_variables(lab, "worker1", train_job_address=wrong)
    check(
        *(lab, testbed, "astray", ["worker-1"], "address"),
        f"cannot be reached at {wrong}:",
        f"this address does not belong to its host, whose addresses are {testbed.hosts[1].address}",
        "what to do: set train_job_address",
        script=OWN,
        arguments=LONG,
        begun=running,
    )


def test_a_blocked_port(ssh_lab: Labs, testbed: Testbed) -> None:
    lab = ssh_lab(worker=2)
    port = faults.host_variables(lab, "worker0")["train_job_port"]
    check(
        *(lab, testbed, "blocked", ["worker-0"], "blocked"),
        f"listens on port {port}, but no other rank can reach it",
        "what to do: open the port",
        arguments=STANDS,
        fault=faults.dropping(testbed.hosts[0], f"tcp dport {port} drop"),
    )


@pytest.mark.parametrize(
    ("deaf", "unheard", "script", "arguments"),
    [
        pytest.param(1, 0, OWN, LONG, marks=pytest.mark.soak),
        # TensorFlow notices nothing if both still reach the first rank, so the launcher must.
        (2, 1, PLAIN, STANDS),
    ],
    ids=["heard by TensorFlow", "of two others"],
)
def test_two_of_three_ranks_lose_each_other(
    ssh_lab: Labs, testbed: Testbed, deaf: int, unheard: int, script: Path, arguments: list[str]
) -> None:
    rule = f"ip saddr {testbed.hosts[unheard].address} drop"
    check(
        *(ssh_lab(worker=3), testbed, f"deaf{deaf}", [f"worker-{unheard} worker-{deaf}"]),
        *("network", "what to do: check the network between these hosts"),
        script=script,
        arguments=arguments,
        fault=faults.dropping(testbed.hosts[deaf], rule),
        train_job_max_restarts=0,
    )


# All directions, sizes and orders of ends are in tests/unit/gang/watch/test_outcome.py.
@pytest.mark.soak
@pytest.mark.parametrize(("size", "direction"), [(3, "in"), (4, "out")])
def test_one_rank_is_cut_off_and_no_other_is_blamed(
    ssh_lab: Labs, testbed: Testbed, size: int, direction: str
) -> None:
    lab, victim = ssh_lab(worker=size), testbed.hosts[1]
    ports = [
        faults.host_variables(lab, f"worker{index}")["train_job_port"] for index in range(size)
    ]
    own, others = str(ports[1]), ", ".join(str(port) for port in ports if port != ports[1])
    # Connections of a rank to its own port stay as they are.
    into = f"iif != lo tcp dport {own} drop"
    away = f"iif != lo tcp sport {{ {others} }} drop"
    rule = into if direction == "in" else away
    # With slow steps, processors are free for others while TensorFlow waits for heartbeats.
    with faults.slow(testbed, testbed.hosts[0]):
        check(
            *(lab, testbed, f"cut-{direction}-{size}", ["worker-1"], "network or blocked"),
            script=OWN,
            fault=faults.dropping(victim, rule),
            **faults.slow_job(epochs=100_000),
            train_job_max_restarts=0,
        )
