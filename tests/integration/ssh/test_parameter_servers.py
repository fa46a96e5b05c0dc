"""Training with parameter servers over SSH, in containers: its end, and faults."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support import faults
from tests.support.bare_ranks import wait_until
from tests.support.jobs import rank_state, ssh_processes, training
from tests.support.lab import Lab, Labs, free_port
from tests.support.testbed import Rank, Testbed

pytestmark = [pytest.mark.docker, pytest.mark.tensorflow]

#: The host of each task. The evaluator shares the chief's host, to read its checkpoints.
PLACES = {"chief-0": 0, "worker-0": 1, "worker-1": 2, "worker-2": 1, "ps-0": 3, "evaluator-0": 0}
#: The minimum test accuracy; two synchronous workers reach 0.986.
ACCURACY = 0.956


@pytest.fixture
def make_lab(testbed: Testbed, tmp_path: Path) -> Labs:
    """Return a factory of labs with the named tasks."""

    def make(*tasks: str) -> Lab:
        groups: dict[str, list[Rank]] = {}
        for task in tasks:
            rank = Rank(task, testbed.hosts[PLACES[task]], {"train_job_port": free_port()})
            groups.setdefault(task.rpartition("-")[0], []).append(rank)
        inventory = testbed.write_inventory(groups, path=tmp_path / "inventory")
        variables = {"train_job_restart_delay": 0, "train_job_update_interval": 0.3}
        return Lab(inventory, tmp_path / "runs", variables)

    return make


def send(bed: Testbed, job: str, task: str, name: str) -> None:
    """Send a signal to a task's script."""
    host = f"host-{PLACES[task]}"
    bed.exec(host, "kill", f"-{name}", str(rank_state(bed, host, job, task)["pid"]))


def in_training(event: dict[str, Any]) -> bool:
    """Return whether an event shows that the chief trains."""
    return event.get("task") == "chief-0" and event["progress"].get("step", 0) > 20


def test_a_killed_parameter_server_is_named_and_the_next_attempt_ends_by_itself(
    make_lab: Labs, testbed: Testbed
) -> None:
    tasks = ["chief-0", "worker-0", "worker-1", "ps-0", "evaluator-0"]
    lab = make_lab(*tasks)
    shared = ["--checkpoint-dir", "/home/train/shared/whole", "--checkpoint-every", "110"]
    command = lab.start("--job", "whole", arguments=shared)
    command.wait_for(in_training)
    send(testbed, "whole", "ps-0", "KILL")
    began = time.monotonic()
    restart = command.wait_for(lambda event: event["event"] == "restart")
    assert time.monotonic() - began < 20
    assert restart["root_cause"] == "ps-0"
    assert restart["message"].startswith("ps-0 on ps-0 was killed by SIGKILL (signal 9)")
    run = command.end()
    assert run.code == 0, run.result
    assert ssh_processes(testbed) == []
    folder = lab.runs_dir / "whole"
    first = json.loads((folder / "attempts/1/result.json").read_text())
    reasons = {rank["task"]: rank["reason"] for rank in first["ranks"]}
    assert "TrainingError: lost contact with ps-0: " in reasons["chief-0"]
    assert not [rank for rank in first["ranks"] if rank["phase"] == "completed"]
    result = lab.saved("whole")
    assert result["message"] == "all ranks completed"
    # Non-training tasks have also completed, and did not have to be stopped.
    assert [rank["task"] for rank in result["ranks"]] == tasks
    assert [(r["phase"], r["exit_code"]) for r in result["ranks"]] == [("completed", 0)] * 5
    assert result["metrics"]["test_accuracy"] >= ACCURACY

    def written(task: str) -> list[dict[str, Any]]:
        text = (folder / "progress" / f"{task}.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    for task in ("worker-0", "worker-1", "ps-0"):
        phases = [record["phase"] for record in written(task)]
        assert phases[-4:] == ["loading", "waiting", "serving", "done"]
    # The evaluator tests the chief's checkpoints, and gets the same results for the last weights.
    *tests, last = [record for record in written("evaluator-0") if "step" in record]
    assert tests
    assert {record["phase"] for record in tests} == {"evaluating"}
    assert {record["step"] for record in tests} <= {110, 220, 330}
    assert (last["phase"], last["step"]) == ("done", 330)
    assert last["metrics"] == pytest.approx(result["metrics"], abs=1e-5)


@pytest.mark.soak
def test_a_frozen_and_a_killed_worker_do_not_end_the_job(make_lab: Labs, testbed: Testbed) -> None:
    lab = make_lab("chief-0", "worker-0", "worker-1", "worker-2", "ps-0")
    log = lab.runs_dir / "fewer/logs/chief-0.log"
    # These are the hosts of all workers.
    with faults.slow(testbed, testbed.hosts[1]), faults.slow(testbed, testbed.hosts[2]):
        command = lab.start(
            "--job", "fewer", **faults.slow_job(12), train_job_non_training_exit_timeout=3
        )
        command.wait_for(training)
        send(testbed, "fewer", "worker-1", "STOP")
        send(testbed, "fewer", "worker-2", "KILL")
        without = "; the training continues without it"
        said = [f"has ended{without}", f"was unresponsive for 10 s{without}"]
        wait_until(lambda: all(line in log.read_text() for line in said), said)
    began = time.monotonic()
    run = command.end(120)
    # The frozen one is awaited for 3 s at the end.
    assert time.monotonic() - began < 45
    assert run.code == 0, run.result
    assert ssh_processes(testbed) == []
    result = lab.saved("fewer")
    assert result["attempts"] == 1
    ranks = {rank["task"]: rank for rank in result["ranks"]}
    for task in ("chief-0", "worker-0", "ps-0"):
        assert (ranks[task]["phase"], ranks[task]["exit_code"]) == ("completed", 0)
    assert ranks["worker-1"]["phase"] == "stopped"
    killed = "was killed by SIGKILL (signal 9)"
    assert [ranks["worker-2"][key] for key in ("phase", "exit_code", "reason")] == [
        "failed",
        -9,
        killed,
    ]
    late = "did not end within 3 s (train_job_non_training_exit_timeout)"
    assert result["message"] == (
        f"the training completed; worker-1 on worker-1 {late}; worker-2 on worker-2 {killed}"
    )
