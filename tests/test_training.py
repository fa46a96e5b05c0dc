"""Real training on this machine: the project's own program and scripts that know nothing of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY, Lab
from tests.training_script import result_of

Labs = Callable[..., Lab]
SCRIPTS = REPOSITORY / "tests/data/scripts"
pytestmark = pytest.mark.tensorflow

PREDICT = """
import json, sys
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
digits = load_digits()
model = tf.keras.models.load_model(sys.argv[1])
images = digits.images.astype("float32") / 16.0
shape = (-1, *model.input_shape[1:])
predicted = np.argmax(model.predict(images.reshape(shape), verbose=0), axis=1)
print("RESULT" + json.dumps(float(np.mean(predicted == digits.target))))
"""


def check_digits(lab: Lab, job: str, tf_python: str) -> dict[str, Any]:
    """Assert all that a digits job leaves behind, and return its result."""
    result = lab.saved(job)
    assert result["state"] == "completed"
    assert result["metrics"]["test_accuracy"] >= 0.95
    training = [r for r in result["ranks"] if r["task"].split("-")[0] in ("chief", "worker")]
    hashes = {rank["weights_sha256"] for rank in training}
    assert len(hashes) == 1, result["ranks"]
    assert len(hashes.pop()) == 64
    assert all(rank["exit_code"] == 0 for rank in training)
    folder = lab.runs_dir / job
    for rank in training:
        assert (folder / "logs" / f"{rank['task']}.log").stat().st_size > 0
        assert (folder / "progress" / f"{rank['task']}.jsonl").stat().st_size > 0
    model = folder / "model" / "model.keras"
    assert result_of(tf_python, PREDICT, str(model), project=False) >= 0.95
    return result


def test_two_workers_on_this_machine(local_lab: Labs, tf_python: str) -> None:
    lab = local_lab()
    run = lab.run("--job", "digits", train_job_python=tf_python)
    assert run.code == 0, run.result
    check_digits(lab, "digits", tf_python)
    manifest = json.loads((lab.runs_dir / "digits/manifest.json").read_text())
    assert manifest["versions"]["tensorflow"] == ["2.21.0"]
    assert set(manifest["git"]) == {"commit", "clean"}
    steps = [record["step"] for record in run.records("worker-0") if record.get("step")]
    assert steps, "no progress was shown while it trained"
    assert steps == sorted(steps)


def test_one_worker(local_lab: Labs, tf_python: str) -> None:
    lab = local_lab(worker=1)
    run = lab.run("--job", "one", train_job_python=tf_python)
    assert run.code == 0, run.result
    check_digits(lab, "one", tf_python)


def test_the_multi_worker_tutorial_unmodified(local_lab: Labs, tf_python: str) -> None:
    lab = local_lab()
    script = SCRIPTS / "tutorial" / "main.py"
    run = lab.run(
        *("--job", "tutorial", "--script", str(script)),
        train_job_python=tf_python,
        train_job_update_interval=0.5,
    )
    assert run.code == 0, run.result
    shown = run.records("worker-1")
    assert len({record["step"] for record in shown if record.get("step")}) >= 3
    assert shown[-1]["step"] == 210
    assert (shown[-1]["epoch"], shown[-1]["epochs"]) == (3, 3)
    assert run.result["metrics"]["accuracy"] > 0.3
    assert (lab.runs_dir / "tutorial/logs/worker-0.log").read_text().count("Epoch ") == 3


def test_an_old_script_with_the_experimental_strategy(local_lab: Labs, tf_python: str) -> None:
    lab = local_lab()
    script = SCRIPTS / "experimental" / "train_old.py"
    run = lab.run("--script", str(script), train_job_python=tf_python)
    assert run.code == 0, run.result
    for task in ("worker-0", "worker-1"):
        last = run.records(task)[-1]
        assert last["epoch"] == 2
        assert last["loss"] > 0
    assert "mae" in run.result["metrics"]


def test_the_playbook_alone_trains(local_lab: Labs, tf_python: str) -> None:
    lab = local_lab(chief=1, worker=1)
    done = lab.playbook("train.yml", train_job_python=tf_python, train_job_id="plain")
    assert done.returncode == 0, done.stdout
    assert "job plain completed" in done.stdout
    check_digits(lab, "plain", tf_python)
    assert Path(lab.runs_dir / "plain/model").is_dir()
