"""Random faults: a job comes to the same weights, is brought home, and nothing of it stays.

make soak                 the whole of it: SOAK_FAULTS=50, half an hour
make soak SOAK_SEED=N     other faults, at other moments
"""

from __future__ import annotations

import os
import random
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import faults
from tests.support.faults import ENDED, LIMIT, UNRESPONSIVE, Fault, sending, weights
from tests.support.jobs import PLAIN, ssh_processes, training
from tests.support.lab import REPOSITORY, Command, Lab
from tests.support.testbed import Testbed

pytestmark = [pytest.mark.docker, pytest.mark.tensorflow]

FAULTS = int(os.environ.get("SOAK_FAULTS", "3"))
KILLS = FAULTS * 2 // 5
SEED = int(os.environ.get("SOAK_SEED", "1"))
WRAPPER, SSHD = "wrapper", "sshd"
#: By name: what is done, to either rank; None for what must not be felt.
KINDS: dict[str, Fault | None] = {
    **{fault.name: fault for fault in (*ENDED, *UNRESPONSIVE)},
    "crash": Fault("crash", 0, sending("SEGV"), "signal", "was killed by SIGSEGV"),
    "term": Fault("term", 0, sending("TERM"), "signal|exit", "(was killed by SIGTERM|exited with)"),
    WRAPPER: None,
    SSHD: None,
}
#: Some 7 s of steps for each fault, with a checkpoint about every half second.
SLOW = REPOSITORY / "tests/data/scripts/slow_data.py"
ARGUMENTS = [
    *("--data", SLOW.name, "--batch-size", "120", "--epochs", str(40 * FAULTS)),
    *("--evaluate-every", "0", "--steps-per-execution", "1", "--checkpoint-every", "30"),
]
MORE = {
    "train_job_update_interval": 0.5,
    "train_job_restart_delay": 0,
    "train_job_max_restarts": 10 * FAULTS,
}


def seen(command: Command, bed: Testbed, attempt: int) -> None:
    """Wait until a rank of an attempt has told a step."""

    def wanted(event: dict[str, Any]) -> bool:
        assert event["event"] != "result", event
        if not training(event):
            return False
        return bool(faults.state_of(bed, bed.hosts[0], "soak", "worker-0")["attempt"] == attempt)

    command.wait_for(wanted)


def test_random_faults(ssh_lab: Callable[..., Lab], testbed: Testbed) -> None:
    drawn = random.Random(SEED)
    lab = ssh_lab(worker=2)
    include = ("--include", str(SLOW))
    limit = 240 + 20 * FAULTS
    calm = lab.start("--job", "before-the-soak", *include, arguments=ARGUMENTS).end(limit)
    assert calm.code == 0, calm.result
    command = lab.start("--job", "soak", *include, arguments=ARGUMENTS, **MORE)
    attempt = 1
    for number in range(FAULTS):
        seen(command, testbed, attempt)
        time.sleep(drawn.uniform(0, 2))
        name, rank = drawn.choice(sorted(KINDS)), drawn.randrange(2)
        fault, task, host = KINDS[name], f"worker-{rank}", testbed.hosts[rank]
        began = time.monotonic()
        told = "not felt"
        if name == WRAPPER:
            command.process.kill()
            command.process.wait()
            command = Command(*lab.words("attach", "--json", "soak"))
        elif fault is None:
            with faults.sshd_down(testbed, host):
                time.sleep(drawn.uniform(0, 10))
        else:
            with fault.do(testbed, host, "soak", task):
                event = command.wait_for(lambda event: event["event"] in ("restart", "result"))
                told = f"told after {time.monotonic() - began:.1f} s: {event['message']}"
            attempt += 1
            assert (event["event"], event.get("attempt")) == ("restart", attempt), event
            assert event["root_cause"] == task, event
            assert re.fullmatch(fault.cause, event["cause"]), event
            assert re.match(f"{task} on worker{rank} {fault.told}", event["message"]), event
            assert time.monotonic() - began < LIMIT, event
        print(f"{number}: {name} of {task}: {told}", file=sys.stderr, flush=True)
    run = command.end(limit)
    assert (run.code, run.result["state"]) == (0, "completed"), run.result
    assert weights(lab, "soak") == weights(lab, "before-the-soak")
    assert lab.saved("soak")["attempts"] == attempt
    assert ssh_processes(testbed) == []


def test_the_wrapper_is_killed_at_random_moments(
    ssh_lab: Callable[..., Lab], testbed: Testbed
) -> None:
    drawn = random.Random(SEED)
    lab = ssh_lab(worker=2)

    def start(job: str) -> Command:
        # Its first attempt crashes, so that a restart is part of its life, too.
        arguments = ["--steps", "30", "--abort", "worker-1", "--attempts", "1"]
        more = {"train_job_max_restarts": 3, "train_job_restart_delay": 0.2}
        command = lab.start("--job", job, "--script", str(PLAIN), arguments=arguments, **more)
        while not (lab.runs_dir / job / "manifest.json").exists():
            assert command.process.poll() is None
            time.sleep(0.02)
        return command

    began = time.monotonic()
    whole = start("whole-life").end()
    assert (whole.code, lab.saved("whole-life")["attempts"]) == (0, 2), whole.result
    life = time.monotonic() - began
    for number in range(KILLS):
        job, moment = f"life-{number}", drawn.uniform(0, life)
        command = start(job)
        time.sleep(moment)
        command.process.kill()
        command.process.wait()
        attached = Command(*lab.words("attach", "--json", job)).end()
        told = f"killed after {moment:.1f} of {life:.1f} s: {attached.result['message']}"
        print(f"{number}: {told}", file=sys.stderr, flush=True)
        assert (attached.code, attached.result["state"]) == (0, "completed"), told
        assert [rank["task"] for rank in attached.result["ranks"]] == ["worker-0", "worker-1"]
        assert lab.saved(job)["attempts"] in (2, 3), told  # an attempt may not have been started
    assert ssh_processes(testbed) == []
