"""A gang that loses hosts permanently: spare hosts, fewer workers, copies of checkpoints."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support import faults
from tests.support.jobs import training
from tests.support.lab import Lab, free_port
from tests.support.testbed import Rank, Testbed
from tests.support.training_ranks import Start
from tests.support.training_script import call, read_scalars, scalars

pytestmark = [pytest.mark.docker, pytest.mark.tensorflow]

JOB = faults.slow_job(10, "--summary-every", "5")


def losses(python: str, run_dir: Path) -> dict[int, float]:
    """Return the loss by step, from TensorBoard's events of the last chief."""
    folders = sorted({path.parent for path in (run_dir / "tensorboard").rglob("events*")})
    found: dict[int, float] = {}
    for tags in call(python, read_scalars, *folders, project=False):
        found |= tags.get("train/loss", {})
    return found


@pytest.mark.soak
def test_hosts_are_lost_permanently(
    testbed: Testbed, tf_python: str, start: Start, tmp_path: Path
) -> None:
    variables = {"train_job_port": free_port()}
    names = ["w0", "w1", "w2", "s0"]
    ranks = [Rank(n, host, variables) for n, host in zip(names, testbed.hosts, strict=True)]
    groups = {"worker": ranks[:3], "spare": ranks[3:]}
    inventory = testbed.write_inventory(groups, path=tmp_path / "inventory")
    lab = Lab(
        inventory,
        tmp_path / "runs",
        {"train_job_min_workers": 2, "train_job_restart_host_timeout": 0},
    )
    folder = lab.runs_dir / "elastic"

    def restarted(event: dict[str, Any]) -> bool:
        return bool(event["event"] == "restart")

    def resumed(event: dict[str, Any]) -> bool:
        """Return whether the local log of the chief shows steps since it resumed."""
        if not training(event):
            return False
        log = (folder / "logs/worker-0.log").read_text()
        step = re.search(r"resumed at step (\d+)", log)
        return step is not None and event["progress"]["step"] > int(step[1])

    with ExitStack() as lost:
        with faults.slow(testbed, testbed.hosts[2]):
            command = lab.start("--job", "elastic", **JOB)
            command.wait_for(lambda event: training(event) and event["progress"]["step"] > 10)
            # First a worker is lost, which the spare host replaces. Then the chief is lost, without
            # another spare host.
            lost.enter_context(faults.off(testbed.hosts[1]))
            command.wait_for(restarted)
            command.wait_for(resumed)
            lost.enter_context(faults.off(testbed.hosts[0]))
            command.wait_for(restarted)
        run = command.end()
    assert (run.code, run.result["state"]) == (0, "completed"), run.result
    restarts = [event for event in run.events if event["event"] == "restart"]
    causes = [(event["root_cause"], event["cause"]) for event in restarts]
    assert causes == [("worker-1", "unreachable"), ("worker-0", "unreachable")]
    last = lab.saved("elastic")
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
    # An undisturbed run in one process.
    shutil.copy(faults.SLOW_DATA, tmp_path)
    calm = start(tmp_path, *JOB["arguments"], variables={"SLOW_WHILE": "/nowhere"})
    assert calm.end() == 0, calm.said()
    expected, found = scalars(tf_python, calm)[0]["train/loss"], losses(tf_python, folder)
    common = sorted(set(found) & set(expected))
    assert len(common) > 5
    for step in common:
        assert found[step] == pytest.approx(expected[step], rel=1e-5, abs=2e-6), step
