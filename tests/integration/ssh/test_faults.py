"""A job outlives what happens to its hosts, and its numbers do not change by it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence

import pytest

from tests.support import faults
from tests.support.faults import (
    ARGUMENTS,
    ENDED,
    INCLUDE,
    LIMIT,
    UNRESPONSIVE,
    Fault,
    undisturbed_weights,
    weights,
)
from tests.support.jobs import ssh_processes, training
from tests.support.lab import Lab
from tests.support.testbed import Testbed

Labs = Callable[..., Lab]
pytestmark = [pytest.mark.docker, pytest.mark.tensorflow]

QUICK = {
    "train_job_update_interval": 0.5,
    "train_job_restart_delay": 0,
    "train_job_max_restarts": 5,
}


@pytest.fixture(scope="module")
def undisturbed(testbed: Testbed, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of the weights to which the training comes when nothing happens."""
    return undisturbed_weights(testbed, tmp_path_factory.mktemp("undisturbed"), ARGUMENTS)


@pytest.mark.parametrize("chosen", [ENDED, UNRESPONSIVE], ids=["ended", "unresponsive"])
def test_a_gang_is_started_again_and_comes_to_the_same_weights(
    ssh_lab: Labs, testbed: Testbed, undisturbed: str, chosen: Sequence[Fault]
) -> None:
    lab, job = ssh_lab(worker=2), chosen[0].name
    command = lab.start("--job", job, *INCLUDE, arguments=ARGUMENTS, **QUICK)
    with faults.followed(lab, job, command):
        for number, fault in enumerate(chosen, 1):
            command.wait_for(training)
            host, task = testbed.hosts[fault.rank], f"worker-{fault.rank}"
            began = time.monotonic()
            with fault.do(testbed, host, job, task):
                restart = command.wait_for(lambda event: bool(event["event"] == "restart"))
                seconds = time.monotonic() - began
            found = (restart["attempt"], restart["root_cause"])
            assert found == (number + 1, task), restart["message"]
            assert re.fullmatch(fault.cause, restart["cause"]), restart["message"]
            told = rf"{task} on worker{fault.rank} {fault.told}"
            assert re.match(told, restart["message"]), restart["message"]
            assert seconds < LIMIT, fault
        run = command.end()
    assert run.code == 0, run.result
    assert lab.saved(job)["attempts"] == len(chosen) + 1
    assert weights(lab, job) == undisturbed
    assert ssh_processes(testbed) == []


def test_sshd_is_down_and_a_clock_is_set_back_and_nothing_happens(
    ssh_lab: Labs, testbed: Testbed, undisturbed: str
) -> None:
    lab, host = ssh_lab(worker=2), testbed.hosts[1]
    with faults.own_clock(testbed, host):
        command = lab.start("--job", "unmoved", *INCLUDE, arguments=ARGUMENTS, **QUICK)
        with faults.followed(lab, "unmoved", command):
            command.wait_for(training)
            faults.set_clock(testbed, host, -3600.0)
            with faults.sshd_down(testbed, host):
                time.sleep(LIMIT)
            run = command.end()
        assert run.code == 0, run.result
        progress = (lab.runs_dir / "unmoved/progress/worker-1.jsonl").read_text().splitlines()
        times = [json.loads(line)["t"] for line in progress]
    assert times[-1] - times[0] < -3000, "the clock was not set back"
    saved = lab.saved("unmoved")
    assert (saved["state"], saved["attempts"]) == ("completed", 1)
    assert not [event for event in run.events if event["event"] == "restart"]
    assert weights(lab, "unmoved") == undisturbed
    assert ssh_processes(testbed) == []
