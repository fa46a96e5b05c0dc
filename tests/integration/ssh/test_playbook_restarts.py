"""``ansible-playbook`` and ``attach.yml`` restart a gang by themselves.

They do so after a rank was killed, with a spare host, and with fewer workers. ``attach.yml`` runs
in another clone, when the control node is gone.
"""

from __future__ import annotations

import dataclasses
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support import faults, playbook_jobs
from tests.support.jobs import rank_state, ssh_processes, training
from tests.support.lab import Lab, free_port
from tests.support.testbed import Rank, Testbed

pytestmark = [pytest.mark.docker, pytest.mark.tensorflow]

#: Slowed down, the rest of it outlasts an attach on busy cores.
JOB = faults.slow_job(12)
#: By the fault of worker-1, the inventory hosts that train afterwards.
HOSTS = {"killed": ["w0", "w1"], "spare": ["w0", "s0"], "fewer": ["w0"]}


@pytest.fixture(scope="module")
def undisturbed(testbed: Testbed, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the hash of the weights of an undisturbed job."""
    lab = a_lab(testbed, tmp_path_factory.mktemp("undisturbed"), "killed")
    run = lab.run("--job", "calm-restarts", **JOB)
    assert run.code == 0, run.result
    return weights(lab, "calm-restarts")


def weights(lab: Lab, job: str) -> str:
    """Return the hash of the weights that all ranks ended with."""
    (found,) = {rank["weights_sha256"] for rank in lab.saved(job)["ranks"]}
    return str(found)


def a_lab(testbed: Testbed, folder: Path, kind: str) -> Lab:
    variables = {"train_job_port": free_port()}
    names = ["w0", "w1", "s0"]
    ranks = [Rank(n, host, variables) for n, host in zip(names, testbed.hosts, strict=False)]
    groups = {"worker": ranks[:2], "spare": ranks[2:] if kind == "spare" else []}
    inventory = testbed.write_inventory(groups, path=folder / "inventory")
    least = {"train_job_min_workers": 1} if kind == "fewer" else {}
    return Lab(inventory, folder / "runs", {"train_job_restart_host_timeout": 0, **least})


@pytest.mark.parametrize(
    ("kind", "follower"),
    [
        # see also tests/integration/local/test_restarts.py
        pytest.param("killed", "train.yml", marks=pytest.mark.soak),
        ("spare", "attach.yml"),
        pytest.param("fewer", "train.yml", marks=pytest.mark.soak),  # see also test_growing.py
        pytest.param("killed", "attach.yml", marks=pytest.mark.soak),
        pytest.param("spare", "train.yml", marks=pytest.mark.soak),
        pytest.param("fewer", "attach.yml", marks=pytest.mark.soak),
    ],
)
def test_a_gang_is_started_again(
    testbed: Testbed, tmp_path: Path, undisturbed: str, kind: str, follower: str
) -> None:
    lab, job = a_lab(testbed, tmp_path, kind), f"{kind}-{follower.partition('.')[0]}"
    command = playbook_jobs.start(lab, job, **JOB)
    with ExitStack() as stack:
        stack.enter_context(faults.followed(lab, job, command))
        with faults.slow(testbed, testbed.hosts[0]):
            command.wait_for(lambda event: training(event) and event["progress"]["step"] > 10)
            if follower == "attach.yml":
                command.kill()
                # The other control node only has the inventory.
                lab = dataclasses.replace(lab, runs_dir=tmp_path / "other-runs")
                clone = playbook_jobs.cloned(tmp_path)
                # A host that joins does not have the script's environment.
                known = {name: JOB[name] for name in ["train_job_environment"]}
                command = playbook_jobs.attach(lab, job, clone, **known)
                stack.enter_context(faults.followed(lab, job, command))
                command.wait_for(training)
            if kind == "killed":
                pid = rank_state(testbed, testbed.hosts[1].name, job, "worker-1")["pid"]
                testbed.exec(testbed.hosts[1], "kill", "-KILL", str(pid))
            else:
                stack.enter_context(faults.off(testbed.hosts[1]))
            event: dict[str, Any] = command.wait_for(lambda event: event["event"] == "restart")
        assert (event["attempt"], event["root_cause"]) == (2, "worker-1")
        run = command.end()
        assert run.code == 0, run.error[-3000:]
    saved = lab.saved(job)
    assert (saved["state"], saved["attempts"]) == ("completed", 2)
    assert [rank["host"] for rank in saved["ranks"]] == HOSTS[kind]
    folder = lab.runs_dir / job
    assert "resumed at step" in (folder / "logs/worker-0.log").read_text()
    manifest = json.loads((folder / "manifest.json").read_text())
    left_out = [sorted(attempt["left_out"]) for attempt in manifest["attempts"]]
    assert left_out == [[], [] if kind == "killed" else ["w1"]]
    if kind != "fewer":  # fewer workers add in another order
        assert weights(lab, job) == undisturbed
    if kind == "killed":
        assert ssh_processes(testbed) == []
