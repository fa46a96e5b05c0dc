"""A gang that lost a host grows again, without a person and without a failure."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support import faults, playbook_jobs
from tests.support.jobs import ssh_processes, training
from tests.support.lab import Lab, free_port
from tests.support.testbed import Rank, Testbed
from tests.support.training_ranks import Start
from tests.support.training_script import call, read_scalars, scalars

pytestmark = [pytest.mark.docker, pytest.mark.tensorflow]

JOB = faults.slow_job(12, "--summary-every", "5")


def restarted(event: dict[str, Any]) -> bool:
    return bool(event["event"] == "restart")


def test_a_job_grows_when_a_lost_host_is_back(
    testbed: Testbed, tf_python: str, start: Start, tmp_path: Path
) -> None:
    variables = {"train_job_port": free_port()}
    ranks = [Rank(n, h, variables) for n, h in zip(["w0", "w1"], testbed.hosts, strict=False)]
    inventory = testbed.write_inventory({"worker": ranks}, path=tmp_path / "inventory")
    rules = {
        "train_job_min_workers": 1,
        "train_job_restart_host_timeout": 0,
        "train_job_grow_check": 1,
        "train_job_grow_interval": 3,
        "train_job_max_restarts": 1,  # growing does not count
    }
    lab = Lab(inventory, tmp_path / "runs", rules)
    command = playbook_jobs.start(lab, "grows", **JOB)
    with ExitStack() as stack:
        stack.enter_context(faults.followed(lab, "grows", command))
        with faults.slow(testbed, testbed.hosts[0]):
            command.wait_for(lambda event: training(event) and event["progress"]["step"] > 10)
            with faults.off(testbed.hosts[1]):
                lost = command.wait_for(restarted)
                command.wait_for(training)
            grown = command.wait_for(restarted)
            command.wait_for(training)
        run = command.end()
    assert (lost["attempt"], lost["cause"]) == (2, "unreachable")
    assert (grown["attempt"], grown["root_cause"], grown["cause"]) == (3, None, "grown")
    assert grown["message"] == "the job grows: w1 can join again"
    assert run.code == 0, run.error[-3000:]
    saved, folder = lab.saved("grows"), lab.runs_dir / "grows"
    assert [rank["host"] for rank in saved["ranks"]] == ["w0", "w1"]
    assert len({rank["weights_sha256"] for rank in saved["ranks"]}) == 1
    manifest = json.loads((folder / "manifest.json").read_text())
    attempts = manifest["attempts"]
    assert [sorted(one["left_out"]) for one in attempts] == [[], ["w1"], []]
    assert [one["grown"] for one in attempts] == [False, False, True]
    second = json.loads((folder / "attempts/2/result.json").read_text())
    assert (second["state"], second["restart"]) == ("stopped", True)
    assert "resumed at step" in (folder / "logs/worker-0.log").read_text()
    # The losses are those of an undisturbed run in one process.
    shutil.copy(faults.SLOW_DATA, tmp_path)
    calm = start(tmp_path, *JOB["arguments"], variables={"SLOW_WHILE": "/nowhere"})
    assert calm.end() == 0, calm.said()
    expected = scalars(tf_python, calm)[0]["train/loss"]
    folders = sorted({path.parent for path in (folder / "tensorboard").rglob("events*")})
    found: dict[int, float] = {}
    for tags in call(tf_python, read_scalars, *folders, project=False):
        found |= tags.get("train/loss", {})
    common = sorted(set(found) & set(expected))
    assert len(common) > 5
    for step in common:
        assert found[step] == pytest.approx(expected[step], rel=1e-5, abs=2e-6), step
    assert ssh_processes(testbed) == []


#: A file instead of the job's folder, which the check of a host does not look at.
IN_THE_WAY = "mkdir --parents ~/train/jobs && touch ~/train/jobs/alone"


@pytest.mark.soak
def test_a_job_continues_without_a_host_with_which_it_cannot_start(
    testbed: Testbed, tmp_path: Path
) -> None:
    port = {"train_job_port": free_port()}
    ranks = [Rank("w0", testbed.hosts[0], port), Rank("w1", testbed.hosts[1], port)]
    inventory = testbed.write_inventory({"worker": ranks}, path=tmp_path / "inventory")
    rules = {
        "train_job_min_workers": 1,
        "train_job_restart_host_timeout": 5,
        "train_job_grow_check": 1,
        "train_job_grow_interval": 3,
    }
    lab = Lab(inventory, tmp_path / "runs", rules)
    testbed.exec(testbed.hosts[1], "sh", "-c", IN_THE_WAY)
    with ExitStack() as stack:
        stack.callback(testbed.exec, testbed.hosts[1], "sh", "-c", "rm ~/train/jobs/alone")
        slow = stack.enter_context(ExitStack())
        slow.enter_context(faults.slow(testbed, testbed.hosts[0]))
        with faults.off(testbed.hosts[1]):
            command = playbook_jobs.start(lab, "alone", **JOB)
            stack.enter_context(faults.followed(lab, "alone", command))
            command.wait_for(lambda event: training(event) and event["progress"]["step"] > 10)
        command.wait_for(lambda event: event["event"] == "notice" and event["kind"] == "growing")
        command.wait_for(training)
        slow.close()
        run = command.end()
    assert run.code == 0, run.error[-3000:]
    attempts = json.loads((lab.runs_dir / "alone/manifest.json").read_text())["attempts"]
    assert [sorted(one["ranks"].values()) for one in attempts if one["staged"]] == [["w0"], ["w0"]]
    why = attempts[-1]["left_out"]["w1"]
    assert "jobs/alone" in why
    assert ssh_processes(testbed) == []
