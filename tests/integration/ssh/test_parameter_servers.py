"""Training with parameter servers over SSH, in containers: its end, and what it survives."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs import rank_state, ssh_processes
from tests.support.lab import (
    Lab,
    Run,
    free_port,
    tensorflow_testbed,
)
from tests.support.testbed import Rank, Testbed

pytestmark = [pytest.mark.docker, pytest.mark.tensorflow]

#: Which host of the test bed each task has.
PLACES = {"chief-0": 0, "worker-0": 1, "worker-1": 2, "ps-0": 3, "evaluator-0": 4}
GANG = ("chief-0", "worker-0", "worker-1", "ps-0")
SHARED = "/home/train/shared"
#: The test accuracy of two synchronous workers.
SYNCHRONOUS = 0.986

Labs = Callable[..., Lab]


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """Five SSH hosts with TensorFlow and a folder that they share."""
    shared = f"{tmp_path_factory.mktemp('shared')}:{SHARED}"
    with tensorflow_testbed(5, tmp_path_factory.mktemp("testbed"), shared) as bed:
        yield bed


@pytest.fixture
def make_lab(bed: Testbed, tmp_path: Path) -> Labs:
    """Return a factory of labs with the named tasks, each on a host of its own."""

    def make(*tasks: str) -> Lab:
        groups: dict[str, list[Rank]] = {}
        for task in tasks:
            rank = Rank(task, bed.hosts[PLACES[task]], {"train_job_port": free_port()})
            groups.setdefault(task.rpartition("-")[0], []).append(rank)
        inventory = bed.write_inventory(groups, path=tmp_path / "inventory")
        return Lab(inventory, tmp_path / "runs", {"train_job_max_restarts": 0})

    return make


@dataclass
class Ended:
    """What is left of a job.

    Attributes:
        seconds: from the blow, if there was one, to the end of the command.
        ranks: those of ``result.json``, by task.
        log: the chief's.
    """

    run: Run
    seconds: float
    result: dict[str, Any]
    ranks: dict[str, dict[str, Any]]
    log: str


def train(bed: Testbed, lab: Lab, job: str, epochs: int, *blow: str, **variables: Any) -> Ended:
    """Train on the digits; once the chief trains, deal the blow: a signal and a task."""
    arguments = ["--epochs", str(epochs), "--evaluate-every", "20"]
    variables = {"train_job_update_interval": 0.3, **variables}
    command = lab.start("--job", job, arguments=arguments, **variables)
    command.wait_for(in_training)
    number, task = blow
    host = f"host-{PLACES[task]}"
    pid = rank_state(bed, host, job, task)["pid"]
    bed.exec(host, "kill", f"-{number}", str(pid))
    began = time.monotonic()
    run = command.end(120)
    seconds = time.monotonic() - began
    assert ssh_processes(bed) == []
    result = lab.saved(job)
    ranks = {rank["task"]: rank for rank in result["ranks"]}
    return Ended(run, seconds, result, ranks, (lab.runs_dir / job / "logs/chief-0.log").read_text())


def in_training(event: dict[str, Any]) -> bool:
    """Tell whether an event shows the chief on its way."""
    return event.get("task") == "chief-0" and event["progress"].get("step", 0) > 20


def ends(ended: Ended, *tasks: str) -> list[tuple[str, int]]:
    """Return phase and exit code of ranks."""
    return [(ended.ranks[task]["phase"], ended.ranks[task]["exit_code"]) for task in tasks]


def test_a_whole_job_ends_by_itself(make_lab: Labs, bed: Testbed) -> None:
    lab = make_lab(*PLACES)
    run = lab.run(
        *("--job", "whole"),
        arguments=["--checkpoint-dir", f"{SHARED}/whole", "--checkpoint-every", "110"],
    )
    assert run.code == 0, run.result
    assert ssh_processes(bed) == []
    result = lab.saved("whole")
    assert result["message"] == "all ranks completed"
    # Services, too: nobody had to stop them.
    assert [rank["task"] for rank in result["ranks"]] == list(PLACES)
    assert [(r["phase"], r["exit_code"]) for r in result["ranks"]] == [("completed", 0)] * 5
    assert result["metrics"]["test_accuracy"] >= SYNCHRONOUS - 0.03

    def written(task: str) -> list[dict[str, Any]]:
        text = (lab.runs_dir / "whole/progress" / f"{task}.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    for task in ("worker-0", "worker-1", "ps-0"):
        phases = [record["phase"] for record in written(task)]
        assert phases == ["loading", "waiting", "serving", "done"]
    # The evaluator tests what the chief writes, and the chief's last weights as the chief does.
    *tests, last = [record for record in written("evaluator-0") if "step" in record]
    assert tests
    assert {record["phase"] for record in tests} == {"evaluating"}
    assert {record["step"] for record in tests} <= {110, 220, 330}
    assert (last["phase"], last["step"]) == ("done", 330)
    assert last["metrics"] == pytest.approx(result["metrics"], abs=1e-5)


def test_a_killed_worker_does_not_end_the_job(make_lab: Labs, bed: Testbed) -> None:
    ended = train(bed, make_lab(*GANG), "killed", 150, "KILL", "worker-1")
    assert ended.run.code == 0, ended.run.result
    assert ended.result["metrics"]["test_accuracy"] >= SYNCHRONOUS - 0.03
    assert ends(ended, "chief-0", "worker-0", "ps-0") == [("completed", 0)] * 3
    assert ends(ended, "worker-1") == [("failed", -9)]
    fate = "was killed by SIGKILL (signal 9)"
    assert ended.ranks["worker-1"]["reason"] == fate
    assert ended.result["message"] == f"the training completed; worker-1 on worker-1 {fate}"
    assert "has ended; the training continues without it" in ended.log


def test_a_frozen_worker_does_not_hang_the_job(make_lab: Labs, bed: Testbed) -> None:
    lab = make_lab(*GANG)
    ended = train(bed, lab, "frozen", 60, "STOP", "worker-1", train_job_end_timeout=3)
    assert ended.run.code == 0, ended.run.result
    # It is given up after 10 s, and awaited for 3 s at the end.
    assert ended.seconds < 60
    assert ended.result["metrics"]["test_accuracy"] >= SYNCHRONOUS - 0.03
    assert ends(ended, "chief-0", "worker-0", "ps-0") == [("completed", 0)] * 3
    assert ended.ranks["worker-1"]["phase"] == "stopped"
    assert ended.result["message"] == (
        "the training completed; "
        "worker-1 on worker-1 did not end within 3 s (train_job_end_timeout)"
    )
    assert "was unresponsive for 10 s; the training continues without it" in ended.log


@pytest.mark.parametrize("task", ["ps-0", "chief-0"])
def test_a_killed_parameter_server_or_chief_ends_the_job_and_is_named(
    make_lab: Labs, bed: Testbed, task: str
) -> None:
    ended = train(bed, make_lab(*GANG), f"lost-{task}", 100_000, "KILL", task)
    assert ended.run.code == 1
    assert ended.seconds < 20
    assert ended.result["root_cause"] == task
    message = ended.result["message"]
    assert message.startswith(f"{task} on {task} was killed by SIGKILL (signal 9)")
    if task == "ps-0":
        assert "TrainingError: lost contact with ps-0: " in ended.ranks["chief-0"]["reason"]
    assert not any(rank["phase"] == "completed" for rank in ended.ranks.values())
