"""The files of real jobs are what the published schemas say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.support.jobs import PLAIN
from tests.support.lab import Lab
from train.gang import schemas

Labs = Callable[..., Lab]


def check(name: str, value: Any) -> None:
    schema = json.loads((schemas.FOLDER / f"{name}.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(value)


def check_files(lab: Lab, job: str) -> None:
    """Check all files of a job that have a schema, there and on its hosts."""
    run_dir, job_dir = lab.runs_dir / job, Path(lab.variables["train_job_root"], "jobs", job)
    check("manifest", json.loads((run_dir / "manifest.json").read_text()))
    check("manifest", json.loads((job_dir / "job.json").read_text()))
    for path in run_dir.rglob("result.json"):
        check("result", json.loads(path.read_text()))
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    shown = [event for event in events if "phase" in event]
    assert shown
    for event in shown:
        check("event", event)
    ranks = [path.parent for path in job_dir.glob("*-*/rank.json")]
    assert len(ranks) == 2
    for rank in ranks:
        check("rank", json.loads((rank / "rank.json").read_text()))
        check("state", json.loads((rank / "state.json").read_text()))
        lines = (rank / "progress.jsonl").read_text().splitlines()
        assert lines
        for line in lines:
            check("progress", json.loads(line))


def test_a_job_that_failed_twice(local_lab: Labs) -> None:
    lab = local_lab()
    run = lab.run(
        *("--job", "fell", "--script", str(PLAIN)),
        arguments=["--steps", "9", "--abort", "worker-1"],
        train_job_max_restarts=1,
        train_job_restart_delay=0,
    )
    assert run.result["state"] == "failed", run.error
    assert lab.saved("fell")["attempts"] == 2
    check_files(lab, "fell")


@pytest.mark.tensorflow
def test_a_training(local_lab: Labs, tf_python: str) -> None:
    lab = local_lab(chief=1, worker=1)
    run = lab.run("--job", "trained", arguments=["--epochs", "2"], train_job_python=tf_python)
    assert run.code == 0, run.result
    check_files(lab, "trained")


def test_what_no_record_has_is_refused() -> None:
    with pytest.raises(jsonschema.ValidationError, match="culprit"):
        check("result", {"version": 1, "culprit": "worker-1"})
    with pytest.raises(jsonschema.ValidationError, match="is not of type 'integer'"):
        check("result", {"attempts": "2"})
