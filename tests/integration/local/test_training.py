"""Real training on this machine: the project's own program and scripts that know nothing of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.jobs import check_digits
from tests.support.lab import REPOSITORY, Lab

Labs = Callable[..., Lab]
SCRIPTS = REPOSITORY / "tests/data/scripts"
pytestmark = pytest.mark.tensorflow


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
