"""A gang saves and continues without a host that will be reclaimed."""

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
from tests.support.lab import Lab, Run, free_port
from tests.support.metadata_servers import NOTICE, QUIET, metadata_server
from tests.support.playbook_jobs import PlaybookCommand
from tests.support.testbed import Rank, Testbed

pytestmark = [pytest.mark.docker, pytest.mark.tensorflow]

#: No checkpoint is due before the notice.
JOB = faults.slow_job(6, "--checkpoint-every", "1000")
#: A request of each cloud's notice, and the text of the notice.
CLOUDS = {
    "gcp": ("wait_for_change=true", r"notice from Google Cloud, 30 s in advance"),
    "aws": ("spot/instance-action", r"notice from AWS, 1[12]\d s in advance"),
    "azure": ("scheduledevents", r"notice from Azure, [23]\d s in advance"),
}


def rank_dir(job: str) -> str:
    """Return the folder of the second rank on its host."""
    return f"/home/train/train/jobs/{job}/worker-1"


def by_file(bed: Testbed) -> None:
    bed.exec(bed.hosts[1], "touch", f"{rank_dir('by_file')}/preempt")


def by_signal(bed: Testbed) -> None:
    state = bed.exec(bed.hosts[1], "cat", f"{rank_dir('by_signal')}/state.json").stdout
    bed.exec(bed.hosts[1], "kill", "-USR1", str(json.loads(state)["supervisor_pid"]))


def is_restart(event: dict[str, Any]) -> bool:
    return bool(event["event"] == "restart")


def lab_of(bed: Testbed, folder: Path, **of_second: Any) -> Lab:
    """Return a lab of two hosts, with more variables of the second one."""
    variables = {"train_job_port": free_port(), "train_job_preemption": False}
    given = [variables, {**variables, **of_second}]
    ranks = [Rank(f"w{n}", bed.hosts[n], values) for n, values in enumerate(given)]
    inventory = bed.write_inventory({"worker": ranks}, path=folder / "inventory")
    # A restart after a failure would count, and wait for the host.
    rules = {"train_job_min_workers": 1, "train_job_max_restarts": 0}
    return Lab(inventory, folder / "runs", rules)


def check(lab: Lab, job: str, command: PlaybookCommand, run: Run, notice: str) -> None:
    """Check that the gang has saved and continued at once without the second host."""
    (left,) = filter(is_restart, command.events)
    assert (left["attempt"], left["root_cause"], left["cause"]) == (2, None, "preempted")
    assert re.fullmatch(f"the job leaves w1: {notice}", left["message"])
    assert run.code == 0, run.error[-3000:]
    folder = lab.runs_dir / job
    attempts = json.loads((folder / "manifest.json").read_text())["attempts"]
    assert [list(one["ranks"].values()) for one in attempts] == [["w0", "w1"], ["w0"]]
    assert [one["preempted"] for one in attempts] == [False, True]
    # It still answers, so its own check has refused it.
    reasons = "a notice of preemption came|reports that this host will be reclaimed"
    assert re.search(reasons, attempts[1]["left_out"]["w1"])
    log = (folder / "logs/worker-0.log").read_text()
    resumed = re.search(r"resumed at step (\d+)", log)
    assert resumed, log
    assert int(resumed[1]) > 10, "it was saved at the notice"


@pytest.mark.parametrize(
    ("notify", "notice"),
    [
        # Slurm's requeued jobs use the file, too.
        pytest.param(by_file, "notice by the file preempt", id="file", marks=pytest.mark.soak),
        pytest.param(by_signal, "notice by SIGUSR1", id="signal", marks=pytest.mark.soak),
    ],
)
def test_a_job_leaves_a_host_after_a_notice(
    testbed: Testbed, tmp_path: Path, notify: Callable[[Testbed], None], notice: str
) -> None:
    lab, job = lab_of(testbed, tmp_path), notify.__name__
    command = playbook_jobs.start(lab, job, **JOB)
    with ExitStack() as stack:
        stack.enter_context(faults.followed(lab, job, command))
        with faults.slow(testbed, testbed.hosts[0]):
            command.wait_for(lambda event: training(event) and event["progress"]["step"] > 10)
            notify(testbed)
            command.wait_for(is_restart)
        run = command.end()
    check(lab, job, command, run, notice)
    assert ssh_processes(testbed) == []


@pytest.mark.parametrize(
    "cloud",
    ["gcp", *(pytest.param(name, marks=pytest.mark.soak) for name in ("aws", "azure"))],
)
def test_a_job_leaves_a_host_that_its_cloud_will_reclaim(
    testbed: Testbed, tmp_path: Path, cloud: str
) -> None:
    lab, job = lab_of(testbed, tmp_path, train_job_preemption=cloud), f"on-{cloud}"
    asked, notice = CLOUDS[cloud]
    with ExitStack() as stack:
        server = stack.enter_context(metadata_server(testbed, testbed.hosts[1]))
        command = playbook_jobs.start(lab, job, **JOB)
        stack.enter_context(faults.followed(lab, job, command))
        with faults.slow(testbed, testbed.hosts[0]):
            command.wait_for(lambda event: training(event) and event["progress"]["step"] > 10)
            server.become(QUIET)  # the garbled answers have ended nothing
            server.wait_for(asked)
            server.become(NOTICE)
            command.wait_for(is_restart)
        run = command.end()
    check(lab, job, command, run, notice)
    log = testbed.exec(testbed.hosts[1], "cat", f"{rank_dir(job)}/supervisor.log").stdout
    assert "TRUE</body>" in log, "the garbled answer is noted"
    state = json.loads(testbed.exec(testbed.hosts[1], "cat", f"{rank_dir(job)}/state.json").stdout)
    assert state["phase"] == "stopped"
    noticed = state["preemption"]
    assert state["ended_at"] < noticed["at"] + noticed["seconds"], "it has ended within the notice"
    assert ssh_processes(testbed) == []
