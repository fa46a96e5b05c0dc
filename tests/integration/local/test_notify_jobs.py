"""The reports of real jobs to a command, a webhook, Prometheus and MLflow."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.bare_ranks import wait_until
from tests.support.hook import TOKEN, Hook
from tests.support.jobs import train, write_script
from tests.support.lab import Labs
from train.cli import tracking

#: The second rank is killed in its first attempt.
SCRIPT = """
import json, os, time
print("login with", os.environ["API_TOKEN"], flush=True)
first = os.environ["TRAIN_ATTEMPT"] == "1"
for step in range(1, 21):
    record = {"phase": "training", "step": step, "loss": 1 / step, "metrics": {"accuracy": 0.5}}
    with open(os.environ["TRAIN_PROGRESS_FILE"], "a") as stream:
        stream.write(json.dumps(record) + "\\n")
    time.sleep(0.1)
    if first and step == 10 and json.loads(os.environ["TF_CONFIG"])["task"]["index"]:
        os.kill(os.getpid(), 9)
"""


def told(folder: Path, count: int) -> list[dict[str, Any]]:
    """Return the notifications that the command received, once there are ``count`` of them."""
    wait_until(lambda: len([*folder.glob("*.json")]) >= count, "the command")
    found = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return sorted(found, key=lambda event: event["time"])


def samples(path: Path, name: str) -> dict[str, float]:
    """Return the samples of a Prometheus family, by the label in which they differ."""
    families = text_string_to_metric_families(path.read_text())
    found = [sample for family in families for sample in family.samples]
    return {
        one.labels.get("rank") or one.labels.get("state", ""): one.value
        for one in found
        if one.name == f"train_job_{name}"
    }


def test_a_job_tells_of_every_event_and_of_no_secret(
    local_lab: Labs, tmp_path: Path, hook: Hook
) -> None:
    folder, uri = tmp_path / "told", f"sqlite:///{tmp_path}/mlflow.db"
    folder.mkdir()
    lab = local_lab()
    lab.doubtful = True  # its ranks open no port
    lab.variables["train_job_metrics_dir"] = str(tmp_path)
    metrics = tmp_path / "train-night.prom"
    command = lab.start(
        *("--job", "night", "--script", write_script(tmp_path, SCRIPT), "--mlflow", uri),
        train_job_environment={"API_TOKEN": "hunter2-is-secret"},
        train_job_max_restarts=1,
        train_job_restart_delay=1,
        train_job_notify_command=f"cat > {folder}/$TRAIN_EVENT.json",
        train_job_notify_webhook=hook.url,
    )
    command.wait_for(lambda event: event["event"] == "rank" and metrics.exists())
    assert samples(metrics, "state")["running"] == 1
    command.wait_for(lambda event: event["event"] == "restart")
    assert samples(metrics, "state")["restarting"] == 1
    run = command.end()
    assert (run.code, run.result["state"]) == (0, "completed"), run.error
    notices = {one["kind"] for one in run.events if one["event"] == "notice"}
    assert notices - {"alone"} == {"resumed"}  # a slow machine notices that no port is open

    events = told(folder, 4)
    assert [event["event"] for event in events] == ["start", "failure", "restart", "end"]
    assert [event["attempt"] for event in events] == [1, 1, 2, 2]
    start, failure, _, end = events
    assert (start["state"], start["job"]) == ("starting", "night")
    assert start["hosts"] == ["worker0", "worker1"]
    assert (failure["state"], failure["root_cause"]) == ("failed", "worker-1")
    assert "was killed by SIGKILL (signal 9)" in failure["message"]
    assert "login with ***" in failure["message"]
    assert (end["state"], end["metrics"]) == ("completed", {"accuracy": 0.5})
    hook.wait_for(4)
    assert sorted(event["event"] for event in hook.requests) == sorted(e["event"] for e in events)
    assert "hunter2" not in json.dumps([hook.requests, events])
    assert TOKEN not in (lab.runs_dir / "night/ansible.log").read_text()
    assert TOKEN not in (lab.runs_dir / "night/manifest.json").read_text()

    states = samples(metrics, "state")
    assert states == {**dict.fromkeys(states, 0), "completed": 1}
    assert samples(metrics, "step") == {"worker-0": 20, "worker-1": 20}
    assert samples(metrics, "attempt") == {"": 2}
    assert (samples(metrics, "ranks_wanted"), samples(metrics, "ranks_up")) == ({"": 2}, {"": 0})

    attached = train(*lab.words("attach", "--json", "--mlflow", uri, "night"))
    assert (attached.returncode, attached.stderr) == (0, "")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(tracking.EXPERIMENT)
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == ("night", "FINISHED")
    assert found.data.tags["train.attempts"] == "2"
    steps = [one.step for one in client.get_metric_history(found.info.run_id, "loss")]
    assert len(set(steps)) > 1, "it came as the job ran"
    assert found.info.artifact_uri.startswith(f"file://{tmp_path}/mlartifacts/")
    assert "report.html" in {one.path for one in client.list_artifacts(found.info.run_id)}


@pytest.mark.soak
def test_the_end_is_told_where_the_job_cannot_be_started_again(
    local_lab: Labs, tmp_path: Path
) -> None:
    folder, python = tmp_path / "told", tmp_path / "python"
    folder.mkdir()
    python.symlink_to(sys.executable)
    text = f"import os; os.unlink({str(python)!r}); os.kill(os.getpid(), 9)\n"
    lab = local_lab(worker=1)
    run = lab.run(
        *("--job", "night", "--script", write_script(tmp_path, text)),
        train_job_python=str(python),
        train_job_max_restarts=3,
        train_job_restart_delay=0,
        train_job_restart_host_timeout=0,
        train_job_notify_command=f"cat > {folder}/$TRAIN_EVENT.json",
    )
    assert run.code == 1, run.result
    failure, end = told(folder, 3)[1:]
    assert (failure["event"], end["event"], end["state"]) == ("failure", "end", "failed")
    for message in (end["message"], run.result["message"], lab.saved("night")["message"]):
        assert "was killed by SIGKILL (signal 9)" in message
        assert "could not be restarted: " in message
        assert f"no such interpreter: {python}" in message
