"""Random faults, one after another, in one job: it comes to the same weights, and nothing stays.

SOAK_FAULTS=50 python -m pytest tests/test_soak.py     the whole of it, a quarter of an hour
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command, Lab
from tests.test_local_jobs import job_processes
from train.host import records

pytestmark = pytest.mark.tensorflow

FAULTS = int(os.environ.get("SOAK_FAULTS", "4"))
SEED = int(os.environ.get("SOAK_SEED", "1"))
#: What is done to a random rank, and the causes that may be told of it.
KINDS = {
    "the script is killed": ("pid", signal.SIGKILL, {"signal"}),
    "the script crashes": ("pid", signal.SIGSEGV, {"signal"}),
    "the script is told to end": ("pid", signal.SIGTERM, {"signal", "exit"}),
    "the script is stopped": ("pid", signal.SIGSTOP, {"frozen"}),
    "its supervisor is killed": ("supervisor_pid", signal.SIGKILL, {"supervisor"}),
    "the wrapper is killed": ("", signal.SIGKILL, set[str]()),
}
ARGUMENTS = ["--checkpoint-every", "10", "--evaluate-every", "20", "--learning-rate", "0.02"]


def seen(command: Command, attempt: int, job_dir: Path) -> None:
    """Wait until a rank of an attempt has told a step."""

    def wanted(event: dict[str, Any]) -> bool:
        if event["event"] == "result":
            raise AssertionError(event)
        state = records.read_json(str(job_dir / "worker-0/state.json")) or {}
        at_work = event["event"] == "rank" and event["progress"].get("phase") == "training"
        return at_work and state.get("attempt") == attempt

    command.wait_for(wanted)


def test_random_faults(local_lab: Callable[..., Lab], tf_python: str) -> None:
    drawn = random.Random(SEED)
    lab = local_lab()
    lab.variables.update(train_job_python=tf_python, train_job_news_interval=0.5)
    # Long enough for the faults: about 20 s of steps for each.
    arguments = [*ARGUMENTS, "--epochs", str(60 * FAULTS)]
    calm = lab.run("--job", "calm", arguments=arguments)
    assert calm.code == 0, calm.error
    more = {"train_job_max_restarts": 10 * FAULTS, "train_job_restart_delay": 0.1}
    root = Path(lab.variables["train_job_root"])
    job_dir = root / "jobs/soak"
    command = lab.start("--job", "soak", arguments=arguments, **more)
    attempt, told = 1, []
    for number in range(FAULTS):
        seen(command, attempt, job_dir)
        time.sleep(drawn.uniform(0, 2))
        kind = drawn.choice(sorted(KINDS))
        field, signum, causes = KINDS[kind]
        victim = f"worker-{drawn.randrange(2)}"
        print(f"{number}: attempt {attempt}: {kind} ({victim})", file=sys.stderr, flush=True)
        if not field:
            command.process.kill()
            command.process.wait()
            command = Command(*lab.words("attach", "--json", "soak"))
            continue
        state = records.read_json(str(job_dir / victim / "state.json"))
        assert state is not None
        os.kill(state[field], signum)
        event = command.wait_for(lambda event: event["event"] in ("restart", "result"))
        assert event["event"] == "restart", event
        assert event["culprit"] == victim, event
        assert event["cause"] in causes, event
        told.append(event["cause"])
        attempt += 1
    run = command.end()
    assert (run.code, run.result["state"]) == (0, "completed"), run.result
    weights = {rank["weights_sha256"] for rank in run.result["ranks"]}
    assert weights == {rank["weights_sha256"] for rank in calm.result["ranks"]}
    assert lab.saved("soak")["attempts"] == attempt == len(told) + 1
    assert job_processes(root) == []
