"""Displayed and stored numbers of an unmodified ``fit`` on several workers agree with Keras."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.jobs import train
from tests.support.lab import REPOSITORY, Lab, Labs
from tests.support.run_folders import charts_of
from train.host import progress_records

pytestmark = pytest.mark.tensorflow

SCRIPT = REPOSITORY / "tests/data/scripts/fit"
STEPS = 8
Values = dict[str, float]


def values_of(record: Any) -> Values:
    loss = {"loss": record["loss"]} if "loss" in record else {}
    return {**loss, **record.get("metrics", {})}


def keras_values(lab: Lab, job: str) -> dict[int, Values]:
    """Return the values of each epoch as the script itself has printed them."""
    log = (lab.runs_dir / job / "logs/worker-0.log").read_text()
    return dict(map(json.loads, re.findall(r"^VALUES (.*)$", log, re.MULTILINE)))


def as_printed(values: Mapping[Any, float]) -> Any:
    """Return the expected values with a tolerance, because Keras prints four decimals."""
    return pytest.approx(values, rel=1e-4, abs=0.51e-4)


def check(lab: Lab, job: str, metrics: str) -> Values:
    """Check all numbers that a job stores, and return the values of its last whole epoch."""
    epochs, folder = keras_values(lab, job), lab.runs_dir / job
    seen = progress_records.parse_progress((folder / "progress/worker-0.jsonl").read_text())
    ends = [record for record in seen if values_of(record)]
    assert [record["epoch"] for record in ends] == [*epochs]
    for record in ends:
        assert record["step"] == record["epoch"] * STEPS
        assert values_of(record) == as_printed(epochs[record["epoch"]])
    events = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    for progress in (event.get("progress", {}) for event in events):
        shown = [progress.get("approximate", {}), values_of(progress)]
        assert all(values.get("accuracy", 0.0) <= 1.0 for values in shown)
        if shown[1]:
            assert any(shown[1] == as_printed(values) for values in epochs.values())
    charts = charts_of((folder / "report.html").read_text())
    for name, chart in ((name, charts[name]) for name in epochs[1]):
        for trace in chart["traces"]:
            points = dict(zip(trace["x"], trace["y"], strict=True))
            assert points == as_printed({n * STEPS: epoch[name] for n, epoch in epochs.items()})
    last = epochs[max(epochs)]
    result = lab.saved(job)
    assert {**result["metrics"], "loss": last["loss"]} == as_printed(last)
    kept = re.findall(r'^train_job_metric\{.*rank="worker-0".*name="(.*)"\} (.*)$', metrics, re.M)
    loss = re.findall(r'^train_job_loss\{.*rank="worker-0".*\} (.*)$', metrics, re.M)
    found = {"loss": float(loss[0]), **{name: float(value) for name, value in kept}}
    assert found == as_printed(last)
    return last


@pytest.mark.soak
def test_a_job_of_two_workers_that_is_stopped_within_an_epoch(
    local_lab: Labs, tf_python: str
) -> None:
    lab = local_lab()
    lab.variables |= {"train_job_python": tf_python}
    (prometheus := lab.root.parent / "prometheus").mkdir()
    options = ("--job", "two", "--script", str(SCRIPT))
    command = lab.start(
        *options, arguments=["--epochs", "400"], train_job_metrics_dir=str(prometheus)
    )
    event = command.wait_for(
        lambda e: e["event"] == "rank" and "loss" in e["progress"].get("approximate", {})
    )
    before = event["progress"]
    assert before["epoch"] > 1
    assert before["approximate"]["loss"] == pytest.approx(before["loss"], rel=0.3)
    stopped = train(*lab.words("stop", "two"))
    assert stopped.returncode == 0, stopped.stderr
    assert command.end().result["state"] == "stopped"
    last = check(lab, "two", (prometheus / "train-two.prom").read_text())
    shown = train(*lab.words("status", "--json", "two"))
    (first, _) = json.loads(shown.stdout)["ranks"]
    assert values_of(first["progress"]) == as_printed(last)


def test_a_job_of_three_workers(local_lab: Labs, tf_python: str) -> None:
    lab = local_lab(worker=3)
    lab.variables |= {"train_job_python": tf_python}
    (prometheus := lab.root.parent / "prometheus").mkdir()
    done = lab.run("--job", "three", "--script", str(SCRIPT), train_job_metrics_dir=str(prometheus))
    assert done.code == 0, done.error
    check(lab, "three", (prometheus / "train-three.prom").read_text())


def test_keras_3_does_not_train_with_two_workers_and_that_is_named(
    local_lab: Labs, tf_python: str
) -> None:
    """TensorFlow's strategies for several workers cannot run ``fit`` of Keras 3."""
    lab = local_lab()
    lab.variables |= {"train_job_python": tf_python, "train_job_keras": 3}
    done = lab.run("--job", "three", "--script", str(SCRIPT), train_job_max_restarts=3)
    assert done.code == 1, done.result
    assert "keep train_job_keras at 2" in done.result["message"]
    saved = lab.saved("three")
    assert (saved["attempts"], saved["metrics"]) == (1, {})
