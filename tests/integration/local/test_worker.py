"""The training program in processes of this machine: order, gangs, servers, files, failures."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.support.data_folders import DIGITS
from tests.support.lab import free_port
from tests.support.training_ranks import (
    TASKS,
    Rank,
    Start,
    cluster_addresses,
    patched,
    run_gang,
    start_gang,
    start_task,
    tf_config,
    wait_until,
)
from tests.support.training_script import call, np, tf

pytestmark = pytest.mark.tensorflow


@pytest.fixture(scope="module")
def gang(start: Start, tmp_path_factory: pytest.TempPathFactory) -> list[Rank]:
    """Return two ranks that have trained to the end."""
    return run_gang(start, tmp_path_factory.mktemp("gang"), "--epochs=12", "--checkpoint-every=15")


def test_gang_agrees(gang: list[Rank]) -> None:
    last = [rank.records()[-1] for rank in gang]
    assert last[0]["metrics"] == last[1]["metrics"]
    assert f"epoch 12/12: loss {last[0]['loss']:.4f}" in gang[0].said()


def test_progress_tells_the_run(gang: list[Rank]) -> None:
    for rank in gang:
        records = rank.records()
        phases = list(dict.fromkeys(record["phase"] for record in records))
        assert phases == ["loading", "starting", "training", "evaluating", "saving", "done"]
        training = [record for record in records if record["phase"] == "training"]
        assert training[0]["step"] == 1
        steps = [record["step"] for record in training]
        assert steps == sorted(set(steps))
        for record in training:
            assert (record["steps"], record["epochs"]) == (132, 12)
            assert record["epoch"] == (record["step"] - 1) // 11 + 1
            assert record["loss"] > 0
            assert 0 <= record["metrics"]["accuracy"] <= 1
        assert all(record["examples_per_s"] > 0 for record in training[1:])
        assert records[-1]["step"] == 132


def compare_networks(*paths: Path) -> tuple[float, float]:
    """Return the first model's test accuracy, and the difference between the models' weights."""
    table = np.loadtxt(DIGITS, delimiter=",")[::5]
    images, labels = table[:, :-1].reshape(-1, 8, 8, 1) / 16, table[:, -1]
    first, second = (tf.keras.models.load_model(path) for path in paths)
    right = (first.predict(images, verbose=0).argmax(1) == labels).mean()
    pairs = zip(first.get_weights(), second.get_weights(), strict=True)
    return float(right), max(float(abs(a - b).max()) for a, b in pairs)


def test_only_the_chief_leaves_files_and_one_rank_learns_the_same(
    gang: list[Rank], start: Start, tf_python: str, tmp_path: Path
) -> None:
    left = [
        sorted(str(path.relative_to(rank.folder)) for path in rank.folder.rglob("*.*"))
        for rank in gang
    ]
    checkpoints = [f"checkpoints/ckpt-{step}.npz" for step in (105, 120, 132)]
    events = left[0].pop()
    assert events.startswith("tensorboard/events.out.tfevents.")
    assert left == [[*checkpoints, "model/model.keras"], []]

    # Other intervals of calls and checkpoints must not matter, either.
    alone = start(tmp_path / "alone", "--epochs=12", "--steps-per-execution=4")
    assert alone.end() == 0, alone.said()
    last, expected = alone.records()[-1], gang[0].records()[-1]
    assert last["loss"] == pytest.approx(expected["loss"], abs=1e-4)
    assert last["metrics"] == pytest.approx(expected["metrics"], abs=1e-4)

    files = (rank.folder / "model/model.keras" for rank in (gang[0], alone))
    accuracy, difference = call(tf_python, compare_networks, *files)
    assert accuracy == pytest.approx(expected["metrics"]["test_accuracy"])
    assert difference <= 1e-4


RUN = """
import dataclasses, json, os, worker
from training.settings import Settings

results = worker.run(Settings(epochs=2, export="none"))
print("RESULTS", json.dumps(dataclasses.asdict(results)), flush=True)
os._exit(0)
"""


def test_run_returns_what_the_program_writes_out(start: Start, tmp_path: Path) -> None:
    called = start(tmp_path / "called", script=RUN)
    program = start(tmp_path / "program", "--epochs=2", "--export=none")
    assert [called.end(), program.end()] == [0, 0], called.said()
    results = json.loads(called.said().partition("RESULTS")[2])
    assert results.pop("task") == "worker-0"
    last = program.records()[-1]
    assert {name: last[name] for name in results} == results
    assert last.keys() == {*results, "phase", "t"}
    # The caller decides what is written at the end.
    assert [record["phase"] for record in called.records()][-1] == "saving"
    assert "SHA-256" not in called.said()
    assert f"worker-0: done, SHA-256 of the weights {program.weights()}\n" in program.said()


EVALUATOR = {"TF_CONFIG": tf_config("evaluator", 0, worker=["localhost:1", "localhost:2"])}


def test_evaluator_tests_the_checkpoints_it_sees(
    gang: list[Rank], start: Start, tmp_path: Path
) -> None:
    variables = {"TRAIN_CHECKPOINT_DIR": str(gang[0].folder / "checkpoints")}
    evaluator = start(tmp_path / "evaluator", "--epochs=12", variables={**EVALUATOR, **variables})
    # This was the last checkpoint of the run.
    assert evaluator.end() == 0
    begun, *each, last = [r for r in evaluator.records() if r["phase"] in ("evaluating", "done")]
    assert "step" not in begun
    assert [record["step"] for record in each] == [105, 120, 132]
    seen = each[-1]
    assert seen["metrics"] == pytest.approx(gang[0].records()[-1]["metrics"], abs=1e-6)
    assert (last["phase"], last["metrics"]) == ("done", seen["metrics"])


def steps_tested(evaluator: Rank) -> list[int]:
    """Return the steps of the checkpoints that an evaluator has tested."""
    records = evaluator.records()
    return [r["step"] for r in records if r["phase"] == "evaluating" and "step" in r]


def test_evaluator_goes_on_with_a_continued_run_and_ignores_other_networks(
    gang: list[Rank], start: Start, tmp_path: Path
) -> None:
    folder, other = tmp_path / "checkpoints", tmp_path / "other"
    shutil.copytree(gang[0].folder / "checkpoints", folder)
    shutil.copytree(folder, other)
    shared = f"--checkpoint-dir={folder}"
    linear = start(tmp_path / "linear", "--epochs=1", "--model=linear", "--export=none")
    further = start(tmp_path / "further", "--epochs=13", shared, variables=EVALUATOR)
    wait_until(further, lambda: steps_tested(further) == [105, 120, 132])
    assert linear.end() == 0
    shutil.copy(linear.folder / "checkpoints/ckpt-11.npz", other)
    ended = start(
        tmp_path / "ended", "--epochs=12", f"--checkpoint-dir={other}", variables=EVALUATOR
    )
    run = start(tmp_path / "run", "--epochs=13", shared, "--export=none")
    assert [rank.end() for rank in (run, further, ended)] == [0, 0, 0], ended.said()
    assert steps_tested(further) == [105, 120, 132, 143]
    assert steps_tested(ended) == [105, 120, 132]
    reason = f"{other}/ckpt-11.npz was written with --model linear, not auto: "
    assert f"warning: ignoring {other}/ckpt-11.npz: {reason}" in ended.said()


def test_evaluator_of_a_new_run_ignores_what_it_replaces(
    gang: list[Rank], start: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    shutil.copytree(gang[0].folder / "checkpoints", folder)
    options = ("--epochs=1", "--resume=never", f"--checkpoint-dir={folder}", "--export=none")
    evaluator = start(tmp_path / "evaluator", *options, variables=EVALUATOR)
    evaluator.wait_for("waiting")
    run = start(tmp_path / "run", *options)
    assert [rank.end() for rank in (run, evaluator)] == [0, 0], evaluator.said()
    assert steps_tested(evaluator) == [11]


def test_evaluator_without_a_checkpoint_waits_until_it_is_ended(
    start: Start, tmp_path: Path
) -> None:
    evaluator = start(tmp_path / "evaluator", variables=EVALUATOR, keras=0)
    evaluator.wait_for("waiting")
    maps = Path(f"/proc/{evaluator.process.pid}/maps").read_text()
    assert "site-packages/tensorflow/" not in maps  # numpy is in a path with this name, too
    evaluator.process.send_signal(signal.SIGTERM)
    assert evaluator.end() == 0
    assert [r["phase"] for r in evaluator.records()] == ["loading", "waiting", "done"]


def test_sigterm_ends_a_rank_that_waits_for_another(start: Start, tmp_path: Path) -> None:
    soon = patched("from training import signals\nsignals.SAVE_WITHIN_S = 2.0")
    first, second = start_gang(start, tmp_path, "--epochs=1000000", script=soon)
    second.wait_for("training")
    first.process.send_signal(signal.SIGSTOP)
    time.sleep(0.5)  # the other rank now waits in a collective
    second.process.send_signal(signal.SIGTERM)
    assert second.end() == 143
    first.process.send_signal(signal.SIGCONT)
    assert first.end() == 1
    # It notices this by its connection to worker-1, or by its own late heartbeat.
    assert "TrainingError: lost contact with " in first.said()


def test_missing_rank_is_named(start: Start, tmp_path: Path) -> None:
    addresses = [f"localhost:{free_port()}" for _ in range(2)]
    config = tf_config("worker", 0, worker=addresses)
    rank = start(tmp_path / "rank", variables={"TF_CONFIG": config, "TRAIN_START_TIMEOUT": "1"})
    assert rank.end() == 1
    assert "TrainingError: did not join within the start timeout: worker-1\n" in rank.said()


OTHER_DIGEST = """
import json, os
from training import loop

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
loop.digest = lambda values: bytes([index]) * 32
"""


def test_different_weights_are_an_error(start: Start, tmp_path: Path) -> None:
    script = patched(OTHER_DIGEST)
    ranks = start_gang(start, tmp_path, "--epochs", "1", script=script)
    assert [rank.end() for rank in ranks] == [1, 1]
    for rank in ranks:
        assert (
            "TrainingError: the weights of worker-1 at step 11 differ from those of worker-0"
            in (rank.said())
        )
        assert not list(rank.folder.glob("model/*"))


def test_loss_that_is_no_number_is_an_error(start: Start, tmp_path: Path) -> None:
    patch = """
from training import task

build = task.Task.build_model

def build_broken(self):
    model = build(self)
    model.variables[-1].assign([float("nan")] * 10)
    return model

task.Task.build_model = build_broken
"""
    rank = start(tmp_path / "nan", script=patched(patch))
    assert rank.end() == 1
    assert "TrainingError: the loss is nan after step 0" in rank.said()


def start_all(start: Start, folder: Path, *options: str) -> dict[str, Rank]:
    """Start the tasks of a small cluster, with one folder for all checkpoints."""
    addresses, tasks = cluster_addresses(), (*TASKS, "evaluator-0")
    shared = f"--checkpoint-dir={folder / 'checkpoints'}"
    return {task: start_task(start, folder, addresses, task, *options, shared) for task in tasks}


def test_servers_begin_with_given_weights_and_told_to_end_the_chief_saves_and_is_resumed(
    gang: list[Rank], start: Start, tmp_path: Path
) -> None:
    source = gang[0].folder / "checkpoints/ckpt-132.npz"
    begin = f"--init-from={source}"
    ranks = start_all(start, tmp_path, "--epochs=2000", "--evaluate-every=0", begin)
    first = ranks["chief-0"].wait_for("training")
    assert f"chief-0: 6 of 6 variables are initialized from {source}\n" in ranks["chief-0"].said()
    assert first["loss"] < 0.5  # random guesses have 2.3
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
    # The evaluator has tested the last checkpoint, like the chief.
    seen = ranks["evaluator-0"].records()[-1]
    assert (seen["phase"], seen["step"]) == ("done", epochs * 11)
    assert seen["metrics"] == pytest.approx(last["metrics"], abs=1e-6)
    for task in ("worker-0", "worker-1", "ps-0"):
        phases = [record["phase"] for record in ranks[task].records()]
        assert phases == ["loading", "waiting", "serving", "done"]
