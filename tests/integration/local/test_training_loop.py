"""The training loop: its progress records, and runs that cannot begin or cannot go on."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.support.data_folders import content
from tests.support.lab import free_port
from tests.support.training_ranks import (
    Start,
    patched,
    run_gang,
    saved_steps,
    start_gang,
    tf_config,
)
from tests.support.training_script import call, inside, modules, np, tf

loop, step_runner = modules("training.loop", "training.step_runner")
pace, progress_records = modules("host.pace", "host.progress_records")

pytestmark = pytest.mark.tensorflow


def watched_run(
    folder: Path, epochs: int, epoch_s: float, test_s: float, every: int = 1
) -> tuple[list[str], list[int], str]:
    """Report a run with a test after some epochs, whose times are simulated.

    Return the phases that follow each other, the epochs whose tests were reported, and what the
    supervisor would say during a test.
    """
    now, overdue, seen = 1000.0, "", 0
    path = folder / f"{epochs}-{test_s}"
    supervisor = pace.Pace(factor=20, least=180)
    records: list[dict[str, Any]] = []
    with mock.patch.object(time, "monotonic", side_effect=lambda: now):
        writer = progress_records.ProgressWriter(str(path))
        reporter = loop.Reporter(writer, 10, {"steps": 10 * epochs, "epochs": epochs}, False, {})
        for step in range(1, 10 * epochs + 1):
            now += epoch_s / 10
            epoch, tests = -(-step // 10), step % (10 * every) == 0
            reporter.training(step, epoch, step_runner.StepsOutcome(1, {"loss": 1.0}))
            if tests:
                reporter.evaluating(step, epoch, 1.0)
            records = progress_records.parse_progress(path.read_text())
            supervisor.feed(records[seen:], now)
            seen = len(records)
            if tests:
                now += test_s
                overdue = overdue or supervisor.overdue(now)
                reporter.evaluated(epoch, 1.0, {})
    phases = [r["phase"] for r in records]
    changes = [b for a, b in zip(["", *phases], phases, strict=False) if a != b]
    return changes, [r["epoch"] for r in records if r["phase"] == "evaluating"], overdue


@inside
def test_tests_are_reported_when_they_begin(tmp_path: Path) -> None:
    in_turn = ["training", "evaluating"]
    # A test that follows several epochs without one takes much longer than the end of an epoch.
    found = watched_run(tmp_path, epochs=12, epoch_s=3.0, test_s=300.0, every=3)
    assert found == (in_turn * 4, [3, 6, 9, 12], "")
    # Of an epoch of 2 s, a record was written just before the test.
    assert watched_run(tmp_path, epochs=5, epoch_s=2.0, test_s=0.1)[1] == [1, 2, 3, 4, 5]
    # Of tiny epochs, a test is reported once a second, and that of the last epoch.
    _, epochs, _ = watched_run(tmp_path, epochs=500, epoch_s=0.016, test_s=0.004)
    assert (epochs[0], epochs[-1]) == (1, 500)
    assert 10 <= len(epochs) <= 12
    assert len((tmp_path / "500-0.004").read_text().splitlines()) <= 35


#: For tests in which the network does not matter; an epoch of the digits has 11 steps.
LINEAR = ("--model=linear", "--export=both", "--steps-per-execution=1")
#: The biases become infinite after step 22: the loss of that step is still finite.
DIVERGED = patched("""
import numpy as np
from training import loop

steps = loop.Loop._steps

def diverge(self):
    outcome = steps(self)
    if self.position.step == 22:
        biases = self.state.model_variables[-1]
        biases.assign(np.full(biases.shape, np.inf, np.float32))
    return outcome

loop.Loop._steps = diverge
""")


def test_a_diverged_run_leaves_no_checkpoint_and_no_model(start: Start, tmp_path: Path) -> None:
    remedy = "start again with --resume never: the checkpoint of step 11 may already be bad"
    cases = {
        "test": (["--epochs=2"], "the test loss is nan after step 22: lower --learning-rate, and "),
        "weights": (
            ["--epochs=4", "--checkpoint-every=22", "--evaluate-every=0"],
            "values of outputs/bias are not finite after step 22: lower --learning-rate, and ",
        ),
        "never": (
            ["--epochs=4", "--resume=never"],
            "the test loss is nan after step 22: lower --learning-rate\n",
        ),
    }
    run_gang(start, tmp_path / "first", *LINEAR, "--epochs=1", workers=1)
    ranks = {}
    for name, (options, _) in cases.items():
        folder = tmp_path / name
        shutil.copytree(tmp_path / "first/0/checkpoints", folder / "checkpoints")
        ranks[name] = start(folder, *LINEAR, *options, script=DIVERGED)
    for name, (_, line) in cases.items():
        rank = ranks[name]
        assert rank.end() == 1
        assert f"TrainingError: {line}" in rank.said()
        assert (remedy in rank.said()) == (name != "never")
        assert saved_steps(rank.folder / "checkpoints") == [11]
        assert not list(rank.folder.glob("model/*"))
        assert rank.records()[-1]["phase"] != "done"


def test_a_checkpoint_beyond_the_last_step_is_refused(start: Start, tmp_path: Path) -> None:
    run_gang(start, tmp_path, *LINEAR, "--epochs=3", "--checkpoint-every=30", workers=1)
    chief = tmp_path / "0"
    (chief / "checkpoints/ckpt-33.npz").unlink()
    before = content(chief / "checkpoints"), content(chief / "model")
    # The second rank keeps a copy, which must not be made either.
    copies = {1: {"TRAIN_CHECKPOINT_COPY": "1"}}
    ranks = start_gang(start, tmp_path, *LINEAR, "--epochs=2", variables=copies)
    for rank in ranks:
        assert rank.end() == 2
        assert (
            "worker.py: error: worker-0 cannot start: checkpoints/ckpt-30.npz is of step 30, but "
            "--epochs 2 ends at step 22: use --epochs 3 or more, --resume never, or another "
            "--checkpoint-dir\n"
        ) in rank.said()
    assert (content(chief / "checkpoints"), content(chief / "model")) == before
    assert not (tmp_path / "1/checkpoints").exists()
    # A run that ends later resumes from it.
    [again] = run_gang(start, tmp_path, *LINEAR, "--epochs=3", workers=1)
    assert "worker-0: resumed at step 30\n" in again.said()


def test_a_run_that_resumes_at_its_last_step_is_tested(start: Start, tmp_path: Path) -> None:
    """The checkpoint may have been written before any test."""
    every = ("--evaluate-every=0", "--checkpoint-every=11")
    run_gang(start, tmp_path, *LINEAR, *every, "--epochs=2", workers=1)
    (tmp_path / "0/checkpoints/ckpt-22.npz").unlink()
    shutil.rmtree(tmp_path / "0/model")
    [rank] = run_gang(start, tmp_path, *LINEAR, *every, "--epochs=1", workers=1)
    assert "worker-0: resumed at step 11\n" in rank.said()
    last = rank.records()[-1]
    assert (last["phase"], last["step"]) == ("done", 11)
    assert last["metrics"]["test_accuracy"] > 0
    assert list((tmp_path / "0/model").iterdir())


def write_images(*folders: Path) -> None:
    """Write four images of each of two classes, for training and for tests."""
    for folder in folders:
        for name in ("train/cat", "train/dog", "test/cat", "test/dog"):
            (folder / name).mkdir(parents=True)
            for number in range(4):
                image = tf.io.encode_png(np.full((8, 8, 3), 60 * number, np.uint8))
                (folder / name / f"{number}.png").write_bytes(image.numpy())


def test_a_corrupt_image_is_one_line(start: Start, tf_python: str, tmp_path: Path) -> None:
    parts = ("train", "test")
    folders = {part: tmp_path / "my data" / part for part in parts}
    call(tf_python, write_images, *folders.values())
    for part, folder in folders.items():
        for number in (1, 2):
            path = folder / f"{part}/dog/{number}.png"
            path.write_bytes(path.read_bytes()[:-30])
    options = [*LINEAR, "--data=images", "--batch-size=8", "--epochs=2"]
    ranks = {
        part: start(tmp_path / part, *options, f"--data-dir={folders[part]}") for part in parts
    }
    for part, rank in ranks.items():
        assert rank.end() == 2
        [line] = [line for line in rank.said().splitlines() if "could not be read" in line]
        paths = [f"{folders[part]}/{part}/dog/{number}.png" for number in (1, 2)]
        begin = "worker.py: error: images: examples could not be read or decoded: "
        # The order is that of the batch.
        assert line in [f"{begin}{a} {b}: replace or remove them" for a, b in (paths, paths[::-1])]
        assert "Traceback" not in rank.said()


#: Data that differ between the ranks in size or in contents, by an environment variable.
OWN_DATA = """
import os
import numpy as np

def build_dataset():
    size, value = map(int, os.environ["OWN"].split())
    x, y = np.full((size, 4), value, np.float32), np.arange(size) % 2
    return (x, y), (x[:10], y[:10])
"""


def test_ranks_that_differ_end_with_the_difference(start: Start, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_DATA)
    data = f"--data={tmp_path}/own.py"
    cases = {
        "size": (["100 1", "200 1"], [], "number of training examples 200, not 100; SHA-256 of "),
        "contents": (["100 1", "100 2"], [], "SHA-256 of the data "),
        "option": (["100 1", "100 1"], [["--seed=1"], ["--seed=2"]], "--seed 2, not 1: all ranks "),
    }
    ranks = {}
    for name, (values, options, _) in cases.items():
        addresses = [f"localhost:{free_port()}" for _ in values]
        for index, value in enumerate(values):
            own = {"OWN": value, "TF_CONFIG": tf_config("worker", index, worker=addresses)}
            more = [data, "--batch-size=10", *(options[index] if options else [])]
            folder = tmp_path / name / str(index)
            ranks[name, index] = start(folder, *LINEAR, *more, variables=own)
    for (name, _), rank in ranks.items():
        assert rank.end() == 2
        line = f"\nworker.py: error: worker-1 differs from worker-0: {cases[name][2]}"
        assert line in rank.said()
        assert not (rank.folder / "checkpoints").exists()
