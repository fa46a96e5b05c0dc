"""The examples of the documentation do what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.lab import Lab, clean_environment, run, write_local_inventory
from tests.support.training_ranks import PATIENCE, WORKER
from tests.unit.test_docs import TRAINING, YOUR_SCRIPT, blocks


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


@pytest.mark.tensorflow
def test_the_script_that_was_taken_to_several_machines(tf_python: str, tmp_path: Path) -> None:
    (tmp_path / "digits").mkdir()
    script = tmp_path / "digits/main.py"
    script.write_text(blocks(YOUR_SCRIPT, "python")[0])
    inventory = write_local_inventory(tmp_path / "inventory", {"worker": 2})
    given = {"train_job_root": str(tmp_path / "root"), "train_job_python": tf_python}
    done = Lab(inventory, tmp_path / "runs", given).run("--job", "moved", "--script", str(script))
    assert done.code == 0, done.result
    assert "accuracy" in done.result["metrics"]
    assert done.records("worker-1")[-1]["step"] == 2 * (1000 // 64)
    assert (tmp_path / "runs/moved/model/model.keras").is_file()
