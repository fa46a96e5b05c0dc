"""The examples of the documentation do what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.lab import run
from tests.support.training_ranks import PATIENCE, WORKER, clean_environment
from tests.unit.test_docs import TRAINING, blocks


@pytest.mark.tensorflow
def test_the_example_of_an_own_network_trains(tf_python: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(blocks(TRAINING, "python")[0])
    options = ["--data=mine.py", "--model=mine.py", "--batch-size=100", "--epochs=1"]
    env = clean_environment(TF_CPP_MIN_LOG_LEVEL="2")
    done = run(tf_python, str(WORKER), *options, cwd=tmp_path, env=env, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    told = re.search(r"epoch 1/1: loss [0-9.]+, test_loss ([0-9.]+), test_accuracy", done.stdout)
    # log 2 is what a coin would reach.
    assert told is not None, done.stdout
    assert float(told[1]) < 0.69, done.stdout
    assert (tmp_path / "model/model.keras").is_file()
    assert [path.name for path in tmp_path.glob("checkpoints/*")] == ["ckpt-20.npz"]
