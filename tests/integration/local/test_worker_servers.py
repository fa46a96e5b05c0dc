"""The training program with parameter servers, by processes of this machine."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.support.lab import free_port
from tests.support.training_ranks import Rank, Start, run_gang, tf_config

pytest_plugins = ("tests.support.training_ranks",)
pytestmark = pytest.mark.tensorflow


def start_all(start: Start, folder: Path, *options: str) -> dict[str, Rank]:
    """Start a chief, two workers, a parameter server and an evaluator, with one folder for all."""
    jobs = {
        job: [f"localhost:{free_port()}" for _ in range(count)]
        for job, count in (("chief", 1), ("worker", 2), ("ps", 1))
    }
    tasks = [(job, index) for job in jobs for index in range(len(jobs[job]))]
    return {
        f"{job}-{index}": start(
            folder / f"{job}-{index}",
            *options,
            f"--checkpoint-dir={folder / 'checkpoints'}",
            variables={"TF_CONFIG": tf_config(job, index, **jobs)},
        )
        for job, index in [*tasks, ("evaluator", 0)]
    }


def test_told_to_end_it_saves_and_goes_on_to_the_end(start: Start, tmp_path: Path) -> None:
    ranks = start_all(start, tmp_path, "--epochs=2000", "--evaluate-every=0")
    ranks["chief-0"].wait_for("training")
    gang = [rank for task, rank in ranks.items() if task != "evaluator-0"]
    for rank in gang:
        rank.process.send_signal(signal.SIGTERM)
    codes = {task: rank.end() for task, rank in ranks.items() if rank in gang}
    assert codes == {"chief-0": 143, "worker-0": 0, "worker-1": 0, "ps-0": 0}
    told = re.search(r"the checkpoint of step (\d+) is written", ranks["chief-0"].said())
    assert told
    step = int(told[1])
    ranks["evaluator-0"].process.send_signal(signal.SIGTERM)
    assert ranks["evaluator-0"].end() == 0

    epochs = step // 11 + 20
    ranks = start_all(start, tmp_path, f"--epochs={epochs}", "--evaluate-every=0")
    assert {task: rank.end() for task, rank in ranks.items()} == dict.fromkeys(ranks, 0)
    assert f"chief-0: resumed at step {step}" in ranks["chief-0"].said()
    last = ranks["chief-0"].records()[-1]
    assert (last["phase"], last["step"]) == ("done", epochs * 11)
    assert last["metrics"]["test_accuracy"] >= 0.95
    assert (tmp_path / "chief-0/model/model.keras").is_file()
    # The evaluator has tested the last checkpoint, as the chief has.
    seen = ranks["evaluator-0"].records()[-1]
    assert (seen["phase"], seen["step"]) == ("done", epochs * 11)
    assert seen["metrics"] == pytest.approx(last["metrics"], abs=1e-6)
    for task in ("worker-0", "worker-1", "ps-0"):
        phases = [record["phase"] for record in ranks[task].records()]
        assert phases == ["loading", "waiting", "serving", "done"]


def test_first_weights_of_another_training_reach_the_parameter_server(
    start: Start, tmp_path: Path
) -> None:
    [whole] = run_gang(start, tmp_path / "whole", "--epochs=5", "--export=none", workers=1)
    source = next((whole.folder / "checkpoints").iterdir())
    still = ["--epochs=1", "--learning-rate=1e-9", "--export=none", f"--init-from={source}"]
    ranks = start_all(start, tmp_path, *still)
    assert {task: rank.end() for task, rank in ranks.items()} == dict.fromkeys(ranks, 0)
    chief = ranks["chief-0"]
    assert f"chief-0: 6 of 6 variables begin as in {source}\n" in chief.said()
    expected = whole.records()[-1]["metrics"]
    assert chief.records()[-1]["metrics"] == pytest.approx(expected, abs=1e-4)
