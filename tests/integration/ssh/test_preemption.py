"""A gang saves and continues without a host that will be taken away."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support import faults, playbook_jobs
from tests.support.jobs import ssh_processes, training
from tests.support.lab import Lab, free_port
from tests.support.testbed import Rank, Testbed

pytestmark = [pytest.mark.docker, pytest.mark.tensorflow]

#: No checkpoint is due before the notice.
JOB = faults.slow_job(6, "--checkpoint-every", "1000")
RANK_DIR = "/home/train/train/jobs/{}/worker-1"


def by_file(bed: Testbed, job: str) -> None:
    bed.exec(bed.hosts[1], "touch", f"{RANK_DIR.format(job)}/preempt")


def by_signal(bed: Testbed, job: str) -> None:
    state = bed.exec(bed.hosts[1], "cat", f"{RANK_DIR.format(job)}/state.json").stdout
    bed.exec(bed.hosts[1], "kill", "-USR1", str(json.loads(state)["supervisor_pid"]))


@pytest.mark.parametrize(
    ("notify", "notice"),
    [
        pytest.param(by_file, "notice by the file preempt", id="file"),
        pytest.param(by_signal, "notice by SIGUSR1", id="signal", marks=pytest.mark.soak),
    ],
)
def test_a_job_leaves_a_host_after_a_notice(
    testbed: Testbed, tmp_path: Path, notify: Callable[[Testbed, str], None], notice: str
) -> None:
    variables = {"train_job_port": free_port()}
    ranks = [Rank(n, h, variables) for n, h in zip(["w0", "w1"], testbed.hosts, strict=False)]
    inventory = testbed.write_inventory({"worker": ranks}, path=tmp_path / "inventory")
    # A restart after a failure would count, and wait for the host.
    rules = {"train_job_min_workers": 1, "train_job_max_restarts": 0}
    lab = Lab(inventory, tmp_path / "runs", rules)
    job = "left"
    command = playbook_jobs.start(lab, job, **JOB)

    def is_restart(event: dict[str, Any]) -> bool:
        return bool(event["event"] == "restart")

    with ExitStack() as stack:
        stack.enter_context(faults.followed(lab, job, command))
        with faults.slow(testbed, testbed.hosts[0]):
            command.wait_for(lambda event: training(event) and event["progress"]["step"] > 10)
            notify(testbed, job)
            left = command.wait_for(is_restart)
        run = command.end()
    assert (left["attempt"], left["root_cause"], left["cause"]) == (2, None, "preempted")
    assert left["message"] == f"the job leaves w1: {notice}"
    assert run.code == 0, run.error[-3000:]
    assert not any(is_restart(event) for event in command.events[command.events.index(left) + 1 :])
    folder = lab.runs_dir / job
    attempts = json.loads((folder / "manifest.json").read_text())["attempts"]
    assert [list(one["ranks"].values()) for one in attempts] == [["w0", "w1"], ["w0"]]
    assert [one["preempted"] for one in attempts] == [False, True]
    assert "a notice of preemption came" in attempts[1]["left_out"]["w1"]
    log = (folder / "logs/worker-0.log").read_text()
    resumed = re.search(r"resumed at step (\d+)", log)
    assert resumed, log
    assert int(resumed[1]) > 10, "it was saved at the notice"
    assert ssh_processes(testbed) == []
