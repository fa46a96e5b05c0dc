"""A gang that loses hosts permanently: a spare host, fewer workers, the copy of the checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import faults
from tests.support.lab import Lab, free_port
from tests.support.testbed import Rank, Testbed
from tests.support.training_script import call, read_scalars

pytestmark = [pytest.mark.docker, pytest.mark.tensorflow]

#: Steps of some 50 ms, in which losses are reported that rounding changes little.
ARGUMENTS = [
    *("--data", "synthetic", "--model", "mnist-cnn", "--batch-size", "96", "--epochs", "2"),
    *("--learning-rate", "0.005", "--checkpoint-every", "10", "--summary-every", "5"),
    *("--examples", "9600", "--evaluate-every", "0"),
]


def losses(python: str, run_dir: Path) -> dict[int, float]:
    """Return the loss by step, from TensorBoard's events of the last chief."""
    folders = sorted({path.parent for path in (run_dir / "tensorboard").rglob("events*")})
    found: dict[int, float] = {}
    for tags in call(python, read_scalars, *folders, project=False):
        found |= tags.get("train/loss", {})
    return found


def beyond(step: int) -> Callable[[dict[str, Any]], bool]:
    """Return whether an event reports a later step."""
    return lambda event: event["event"] == "rank" and (event["progress"].get("step") or 0) > step


def test_hosts_are_lost_permanently(testbed: Testbed, tf_python: str, tmp_path: Path) -> None:
    variables = {"train_job_port": free_port()}
    names = ["w0", "w1", "w2", "s0"]
    ranks = [Rank(n, host, variables) for n, host in zip(names, testbed.hosts, strict=True)]
    groups = {"worker": ranks[:3], "spare": ranks[3:]}
    inventory = testbed.write_inventory(groups, path=tmp_path / "inventory")
    lab = Lab(inventory, tmp_path / "runs", {"train_job_min_workers": 2, "train_job_host_wait": 0})
    calm = lab.run("--job", "calm", arguments=ARGUMENTS)
    assert calm.code == 0, calm.error

    command = lab.start("--job", "elastic", arguments=ARGUMENTS)
    command.wait_for(beyond(15))
    # First a worker, for which the spare host steps in, then the chief, for which there is none.
    with faults.off(testbed.hosts[1]):
        command.wait_for(lambda event: event["event"] == "restart")
        command.wait_for(beyond(40))
        with faults.off(testbed.hosts[0]):
            run = command.end()
    assert (run.code, run.result["state"]) == (0, "completed"), run.result
    restarts = [event for event in run.events if event["event"] == "restart"]
    causes = [(event["root_cause"], event["cause"]) for event in restarts]
    assert causes == [("worker-1", "unreachable"), ("worker-0", "unreachable")]
    folder, last = lab.runs_dir / "elastic", lab.saved("elastic")
    second = json.loads((folder / "attempts/2/result.json").read_text())
    for result, hosts in ((second, ["w0", "w2", "s0"]), (last, ["w2", "s0"])):
        assert [rank["host"] for rank in result["ranks"]] == hosts
        tasks = [f"worker-{number}" for number in range(len(hosts))]
        assert [rank["task"] for rank in result["ranks"]] == tasks
    assert len({rank["weights_sha256"] for rank in last["ranks"]}) == 1
    for logs in ("attempts/2/logs", "logs"):
        assert "resumed at step" in (folder / logs / "worker-0.log").read_text()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert [sorted(attempt["left_out"]) for attempt in manifest["attempts"]] == [
        [],
        ["w1"],
        ["w0", "w1"],
    ]
    expected, found = (losses(tf_python, lab.runs_dir / job) for job in ("calm", "elastic"))
    common = sorted(set(found) & set(expected))
    assert len(common) > 5
    for step in common:
        assert found[step] == pytest.approx(expected[step], rel=1e-5, abs=2e-6), step
