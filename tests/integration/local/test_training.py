"""Real training on this machine: the project's own program and scripts that know nothing of it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.support.job_folders import check_files
from tests.support.jobs import check_digits
from tests.support.lab import REPOSITORY, Lab

Labs = Callable[..., Lab]
SCRIPTS = REPOSITORY / "tests/data/scripts"
pytestmark = pytest.mark.tensorflow


def test_a_chief_and_a_worker_on_this_machine(local_lab: Labs, tf_python: str) -> None:
    lab = local_lab(chief=1, worker=1)
    run = lab.run("--job", "digits", train_job_python=tf_python)
    assert run.code == 0, run.result
    check_digits(lab, "digits", tf_python)
    check_files(lab, "digits")
    manifest = json.loads((lab.runs_dir / "digits/manifest.json").read_text())
    assert manifest["versions"]["tensorflow"] == ["2.21.0"]
    assert set(manifest["git"]) == {"commit", "clean"}
    steps = [record["step"] for record in run.records("worker-0") if record.get("step")]
    assert steps, "no progress was shown while it trained"
    assert steps == sorted(steps)


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
