"""A job that other tools observe, through two attempts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.support.jobs import PLAIN
from tests.support.lab import Command, Lab
from train.cli import tracking


def test_a_job_is_seen_by_prometheus_and_mlflow(
    local_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    lab = local_lab()
    folder, uri = tmp_path / "textfiles", f"sqlite:///{tmp_path}/mlflow.db"
    folder.mkdir()
    lab.variables["train_job_metrics_dir"] = str(folder)
    path = folder / "train-seen.prom"

    def values(name: str) -> dict[str, float]:
        """Return the samples of a family by the label in which they differ."""
        families = text_string_to_metric_families(path.read_text())
        found = [sample for family in families for sample in family.samples]
        return {
            one.labels.get("rank") or one.labels.get("state", ""): one.value
            for one in found
            if one.name == f"train_job_{name}"
        }

    command = lab.start(
        *("--job", "seen", "--script", str(PLAIN), "--mlflow", uri),
        arguments=["--steps", "30", "--abort", "worker-1", "--attempts", "1"],
        train_job_max_restarts=1,
    )
    command.wait_for(lambda event: event["event"] == "rank" and path.exists())
    assert values("state")["running"] == 1
    command.wait_for(lambda event: event["event"] == "restart")
    assert values("state")["restarting"] == 1
    run = command.end()
    assert (run.code, run.result["state"]) == (0, "completed"), run.error
    assert [one for one in run.events if one["event"] == "notice"] == []
    assert values("state") == {**dict.fromkeys(values("state"), 0), "completed": 1}
    assert values("step") == {"worker-0": 30, "worker-1": 30}
    assert values("attempt") == {"": 2}
    assert (values("ranks_wanted"), values("ranks_up")) == ({"": 2}, {"": 0})
    attached = Command(*lab.words("attach", "--json", "--mlflow", uri, "seen")).end()
    assert (attached.code, attached.error) == (0, "")

    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(tracking.EXPERIMENT)
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == ("seen", "FINISHED")
    assert found.data.params["arguments"].startswith("--steps 30 ")
    assert found.data.tags["train.attempts"] == "2"
    steps = [one.step for one in client.get_metric_history(found.info.run_id, "loss")]
    assert len(set(steps)) > 1, "it came as the job ran"
    assert max(steps) == 30
    assert found.info.artifact_uri.startswith(f"file://{tmp_path}/mlartifacts/")
    assert "report.html" in {one.path for one in client.list_artifacts(found.info.run_id)}
