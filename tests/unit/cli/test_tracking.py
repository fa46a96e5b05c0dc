"""Logging of invented events to MLflow, and its errors."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from train.cli import main, tracking
from train.cli.display import JsonDisplay
from train.cli.job import Event, Result

MANIFEST: dict[str, Any] = {
    **{"job": "night", "created_at": 1795244215.3, "attempt": 1, "script": "/s/main.py"},
    **{"arguments": ["--epochs", "5 6"], "seed": 3, "keras": 2, "code_sha256": "ab"},
    "git": {"commit": "c0ffee", "clean": True},
    "versions": {"python": "3.11.7", "tensorflow": ["2.21.0"]},
    "ranks": [{"task": "chief-0", "host": "node-1"}, {"task": "worker-0", "host": "node-2"}],
}
ODD = {"val/loss": 0.5, "../a b": 1.0, "100%": 2.0, "/": 3.0}


def rank(task: str, phase: str = "running", **progress: Any) -> Event:
    data = {"t": 1795244220.0 + progress.get("step", 0), "phase": phase, "progress": progress}
    return Event("rank", "night", task, data)


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "runs/night"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps(MANIFEST))
    for name, value in tracking.ENVIRONMENT.items():  # restored at the end
        monkeypatch.setenv(name, value)
    return folder


def follow(uri: str, run_dir: Path, state: str, *events: Event, **ended: Any) -> None:
    """Show events and the end of a job like `python -m train`."""
    result = {"state": state, "root_cause": None, "cause": None, **ended}
    display = tracking.TrackedDisplay(JsonDisplay(), uri, run_dir)
    for event in events:
        display.event(event)
    (run_dir / "result.json").write_text(json.dumps(result))
    (run_dir / "report.html").write_text("<p>night</p>")
    display.result(Result("night", state, "it ended", {}, [], run_dir))


def logged(uri: str) -> tuple[Any, Any]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(tracking.EXPERIMENT)
    (run,) = client.search_runs([experiment.experiment_id])
    return client, run


def test_one_run_of_a_job_with_two_attempts(run_dir: Path, tmp_path: Path) -> None:
    uri = f"file:{tmp_path / 'store'}"
    events = [
        *(Event("notice", "night", "", {"text": "x"}), rank("worker-0", "waiting")),
        rank("worker-0", step=1, loss=9.0),
        *[rank("chief-0", step=1, loss=0.75, metrics=ODD)] * 2,
        rank("chief-0", step=2, loss="NaN", metrics={"accuracy": "-Infinity"}),
        Event("restart", "night", "worker-0", {"attempt": 2}),
        rank("chief-0", "failed", step=2, loss=0.5),
    ]
    follow(uri, run_dir, "failed", *events, root_cause="worker-0", cause="signal")
    client, run = logged(uri)
    assert run.info.status == "FAILED"
    tags = {"job": "night", "attempts": "2", "cause": "signal", "root_cause": "worker-0"}
    assert run.data.tags.items() >= {f"train.{name}": tag for name, tag in tags.items()}.items()
    assert run.data.params == {
        **{"script": "/s/main.py", "arguments": "--epochs '5 6'", "hosts": "node-1, node-2"},
        **{"ranks": "2", "seed": "3", "keras": "2", "code_sha256": "ab", "git.commit": "c0ffee"},
        "framework": "tensorflow",
        **{"git.clean": "True", "versions.python": "3.11.7", "versions.tensorflow": "2.21.0"},
    }
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [one.step for one in history] == [1, 2, 2]
    assert [one.value for one in history if math.isfinite(one.value)] == [0.75, 0.5]
    assert set(run.data.metrics) == {"loss", "accuracy", "val/loss", "a b", "100_", "_"}
    names = {one.path for one in client.list_artifacts(run.info.run_id)}
    assert names == {"report.html", "result.json", "manifest.json"}
    # A user starts it again, with other hosts.
    again = {**MANIFEST, "attempt": 3, "ranks": MANIFEST["ranks"][:1]}
    (run_dir / "manifest.json").write_text(json.dumps(again))
    follow(uri, run_dir, "completed", rank("chief-0", "completed", step=9, loss=0.25))
    _, same = logged(uri)
    assert (same.info.run_id, same.info.status) == (run.info.run_id, "FINISHED")
    assert (same.data.tags["train.attempts"], same.data.params) == ("3", run.data.params)
    assert same.data.metrics["loss"] == 0.25


def test_values_of_an_epoch_of_keras_are_logged_once(run_dir: Path, tmp_path: Path) -> None:
    uri = f"file:{tmp_path / 'store'}"
    first: dict[str, Any] = {"source": "console", "loss": 0.75, "metrics": {"accuracy": 0.5}}
    within = {**first, "approximate": {"loss": 0.7}}
    last = {**first, "loss": 0.5, "metrics": {"accuracy": 0.625}}
    events = [rank("chief-0", step=10, **first)]
    events += [rank("chief-0", step=step, **within) for step in (12, 15)]
    follow(uri, run_dir, "completed", *events, rank("chief-0", step=20, **last))
    client, run = logged(uri)
    for name, values in {"loss": [0.75, 0.5], "accuracy": [0.5, 0.625]}.items():
        history = client.get_metric_history(run.info.run_id, name)
        assert [(one.step, one.value) for one in history] == list(
            zip((10, 20), values, strict=True)
        )


def test_a_job_that_was_left_still_runs(run_dir: Path, tmp_path: Path) -> None:
    uri = f"file:{tmp_path / 'store'}"
    follow(uri, run_dir, "left", rank("chief-0", step=1, loss=0.75))
    _, run = logged(uri)
    assert (run.info.status, run.data.metrics) == ("RUNNING", {"loss": 0.75})


@pytest.fixture
def deaf_server() -> Iterator[str]:
    """Yield the address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://user:hunter2@127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("request_s", "limit", "said"),
    [("1", 60.0, "timed out"), ("30", 0.1, "not finish within 0.1 s")],
)
def test_a_server_that_does_not_answer_is_one_notice_and_ends_nothing(
    run_dir: Path,
    deaf_server: str,
    request_s: str,
    limit: float,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", request_s)
    for name, value in {"WAITING": 3, "PAUSE": 0.0, "LIMIT": limit}.items():
        monkeypatch.setattr(tracking, name, value)
    follow(deaf_server, run_dir, "completed", *(rank("chief-0", step=step) for step in range(20)))
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["event"] for one in shown if one["event"] != "notice"] == ["rank"] * 20 + ["result"]
    (notice,) = [one for one in shown if one["event"] == "notice"]
    assert notice["kind"] == "mlflow"
    assert said in notice["text"]
    assert "hunter2" not in notice["text"]


def test_nothing_is_started_without_mlflow_or_with_a_wrong_uri(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    runs = tmp_path / "runs"
    words = ["run", "-e", f"train_job_runs_dir={runs}", "--hosts", "localhost", "--mlflow"]
    assert main.main([*words, "sqlite:///mlflow.db"]) == 2
    assert "pip install --require-hashes -r " in capsys.readouterr().err
    assert main.main([*words, "htp://u:hunter2@host"]) == 2
    said = "--mlflow htp://***@host is not a tracking URI: it must begin with one"
    assert said in capsys.readouterr().err
    assert not runs.exists()
