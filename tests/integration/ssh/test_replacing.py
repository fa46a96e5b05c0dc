"""A command replaces a host that its cloud has taken back, and the job continues with it."""

from __future__ import annotations

import json
import re
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support import faults, playbook_jobs
from tests.support.bare_ranks import wait_until
from tests.support.jobs import ssh_processes, training
from tests.support.lab import Command, Lab, free_port
from tests.support.playbook_jobs import PlaybookCommand
from tests.support.testbed import Rank, Testbed

pytestmark = [pytest.mark.docker, pytest.mark.tensorflow]

#: No checkpoint is due before the notice.
JOB = faults.slow_job(6, "--checkpoint-every", "1000")
#: Gives an inventory host another address, as a new instance has one.
_MOVE = """\
import json, os, pathlib, sys
path, host, address = sys.argv[1:]
inventory = json.loads(pathlib.Path(path).read_text())
inventory["all"]["children"]["worker"]["hosts"][host]["ansible_host"] = address
pathlib.Path(path).write_text(json.dumps(inventory))
print(f"{os.environ['TRAIN_LOST_HOSTS']} of {os.environ['TRAIN_JOB']} is at {address}")
"""


def is_restart(event: dict[str, Any]) -> bool:
    return bool(event["event"] == "restart")


def notices(command: PlaybookCommand) -> list[str]:
    """Return the notices about the replacement."""
    return [one["text"] for one in command.events if one.get("kind") == "replacing"]


def lab_of(bed: Testbed, folder: Path, command: str, **more: Any) -> Lab:
    """Return a lab of two hosts, whose lost hosts are replaced by a command."""
    variables = {"train_job_port": free_port(), "train_job_preemption": False}
    ranks = [Rank(f"w{n}", bed.hosts[n], variables) for n in (0, 1)]
    inventory = bed.write_inventory({"worker": ranks}, path=folder / "inventory")
    rules = {"train_job_max_restarts": 0, "train_job_replace": command, **more}
    return Lab(inventory, folder / "runs", rules)


def preempt(lab: Lab, job: str, bed: Testbed, command: PlaybookCommand) -> dict[str, Any]:
    """Give the second host a notice of five seconds, and return the restart that follows."""
    command.wait_for(lambda event: training(event) and event["progress"]["step"] > 10)
    path = f"/home/train/train/jobs/{job}/worker-1/preempt"
    bed.exec(bed.hosts[1], "tee", path, stdin="5")
    return command.wait_for(is_restart)


def attempts_of(lab: Lab, job: str) -> list[dict[str, Any]]:
    attempts: list[dict[str, Any]] = json.loads((lab.runs_dir / job / "manifest.json").read_text())[
        "attempts"
    ]
    return attempts


@pytest.fixture
def mover(testbed: Testbed, tmp_path: Path) -> str:
    """Return a command that replaces the second host by the third one."""
    move = tmp_path / "move.py"
    move.write_text(_MOVE)
    hosts = tmp_path / "inventory/hosts.yml"
    return shlex.join([sys.executable, str(move), str(hosts), "w1", testbed.hosts[2].address])


def check_new_host(lab: Lab, job: str, bed: Testbed, command: PlaybookCommand) -> None:
    """Check that the second rank has trained on the new host, after one replacement."""
    attempts = attempts_of(lab, job)
    assert [list(one["ranks"].values()) for one in attempts] == [["w0", "w1"], ["w0", "w1"]]
    assert attempts[1]["left_out"] == {}
    began, ended = notices(command)
    log = lab.runs_dir / job / "replace.log"
    assert began == f"replacing w1 (train_job_replace), log: {log}"
    assert re.fullmatch(r"train_job_replace completed in \d+ s: attempt 2 follows", ended)
    assert f"w1 of {job} is at {bed.hosts[2].address}\n" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600
    path = f"/home/train/train/jobs/{job}/worker-1/state.json"
    state = json.loads(bed.exec(bed.hosts[2], "cat", path).stdout)
    assert (state["phase"], state["attempt"]) == ("completed", 2)
    assert ssh_processes(bed) == []


def test_a_job_continues_with_a_new_host(testbed: Testbed, tmp_path: Path, mover: str) -> None:
    lab, job = lab_of(testbed, tmp_path, mover), "replaced"
    with ExitStack() as stack:
        command = playbook_jobs.start(lab, job, **JOB)
        stack.enter_context(faults.followed(lab, job, command))
        with faults.slow(testbed, testbed.hosts[0]):
            left = preempt(lab, job, testbed, command)
            stack.enter_context(faults.off(testbed.hosts[1]))
            command.wait_for(training)
        run = command.end()
    assert (left["cause"], left["root_cause"]) == ("preempted", None)
    assert run.code == 0, run.error[-3000:]
    check_new_host(lab, job, testbed, command)
    log = (lab.runs_dir / job / "logs/worker-0.log").read_text()
    resumed = re.search(r"resumed at step (\d+)", log)
    assert resumed
    assert int(resumed[1]) > 10, "it was saved at the notice"


@pytest.mark.soak
def test_a_host_that_is_lost_without_a_notice_is_replaced(
    testbed: Testbed, tmp_path: Path, mover: str
) -> None:
    more = {"train_job_max_restarts": 1, "train_job_unreachable_timeout": 5}
    lab, job = lab_of(testbed, tmp_path, mover, **more), "lost"
    with ExitStack() as stack:
        command = playbook_jobs.start(lab, job, **JOB)
        stack.enter_context(faults.followed(lab, job, command))
        with faults.slow(testbed, testbed.hosts[0]):
            command.wait_for(lambda event: training(event) and event["progress"]["step"] > 10)
            stack.enter_context(faults.off(testbed.hosts[1]))
            lost = command.wait_for(is_restart)
            command.wait_for(training)
        run = command.end()
    assert (lost["cause"], lost["root_cause"]) == ("unreachable", "worker-1")
    assert run.code == 0, run.error[-3000:]
    check_new_host(lab, job, testbed, command)


@pytest.mark.soak
def test_a_job_continues_with_fewer_workers_if_the_command_fails(
    testbed: Testbed, tmp_path: Path
) -> None:
    lab, job = lab_of(testbed, tmp_path, "echo no quota; exit 3", train_job_min_workers=1), "quota"
    with ExitStack() as stack:
        command = playbook_jobs.start(lab, job, **JOB)
        stack.enter_context(faults.followed(lab, job, command))
        with faults.slow(testbed, testbed.hosts[0]):
            preempt(lab, job, testbed, command)
            stack.enter_context(faults.off(testbed.hosts[1]))
            command.wait_for(training)
        run = command.end()
    assert run.code == 0, run.error[-3000:]
    attempts = attempts_of(lab, job)
    assert [list(one["ranks"].values()) for one in attempts] == [["w0", "w1"], ["w0"]]
    log = lab.runs_dir / job / "replace.log"
    assert notices(command)[1:] == [
        f"w1 could not be replaced: train_job_replace exited with code 3, log: {log}"
    ]
    assert "no quota\n" in log.read_text()
    assert ssh_processes(testbed) == []


@pytest.mark.soak
def test_stopping_a_job_ends_the_command(testbed: Testbed, tmp_path: Path) -> None:
    told, ready = tmp_path / "environment", tmp_path / "ready"
    # The shell's child is in another session, like the workers of ansible-playbook.
    script = f"env > {told}; setsid sleep 987654 & echo $! > {ready}; wait"
    lab, job = lab_of(testbed, tmp_path, script), "halted"
    with ExitStack() as stack:
        command = lab.start("--job", job, **JOB)
        stack.enter_context(faults.followed(lab, job, command))
        stack.enter_context(faults.slow(testbed, testbed.hosts[0]))
        command.wait_for(lambda event: training(event) and event["progress"]["step"] > 10)
        path = f"/home/train/train/jobs/{job}/worker-1/preempt"
        testbed.exec(testbed.hosts[1], "tee", path, stdin="5")
        wait_until(ready.exists, "the command runs", 60)
        pid = int(ready.read_text())
        Command(*lab.words("stop", job)).end()
        run = command.end()
    assert run.result["state"] == "stopped"
    assert not Path(f"/proc/{pid}").exists()
    found = dict(line.split("=", 1) for line in told.read_text().splitlines() if "=" in line)
    assert found["TRAIN_LOST_HOSTS"] == "w1"
    assert found["TRAIN_RUN_DIR"] == str(lab.runs_dir / job)
    # A playbook of the command must not use the settings of the job's display.
    assert not {"ANSIBLE_STDOUT_CALLBACK", "AWX_ISOLATED_DATA_DIR"} & found.keys()
    assert "runner" not in found["PATH"]
    assert [one["ranks"] for one in attempts_of(lab, job)][1:] == []
    assert ssh_processes(testbed) == []
