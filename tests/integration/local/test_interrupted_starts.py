"""An interrupted start leaves a running job or nothing, and a stopped job ends only once."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.bare_ranks import wait_until
from tests.support.jobs import PLAIN, ansible_of, job_processes, plain, rank_pid, train, training
from tests.support.lab import Command, Lab, Labs, run
from train.host import leases, rank_files

#: The tasks of a start, in order.
PLAN, STAGE, START = (
    "Plan ranks, code and manifest",
    "Stage the ranks' folders",
    "Start the ranks' supervisors",
)
FOLLOW = "Follow all ranks"
QUEUE: dict[str, Any] = {"train_job_queue_timeout": 60}


def taken(lab: Lab) -> list[str]:
    """Return the jobs that hold or wait for a port of this machine."""
    found = leases.entries(lab.variables["train_job_lease_dir"])
    return [entry["job"] for entry in found if entry["state"] != leases.STOPPED]


def listed(lab: Lab, job: str) -> str:
    """Return the state of a job as `list` reports it; empty if the job is not listed."""
    found = json.loads(train(*lab.words("list", "--json")).stdout)["jobs"]
    return next((str(one["state"]) for one in found if one["job"] == job), "")


def at_task(name: str) -> Callable[[dict[str, Any]], bool]:
    return lambda event: event["event"] == "task" and event["name"] == name


def is_nothing(lab: Lab, job: str) -> bool:
    """Return whether no part of a job is left, on hosts and here."""
    folders = [*lab.root.glob("jobs/*"), *lab.runs_dir.glob(job)]
    return not (folders or taken(lab) or job_processes(lab.root))


@pytest.mark.parametrize(
    "name",
    [
        STAGE,
        FOLLOW,
        pytest.param(PLAN, marks=pytest.mark.soak),
        pytest.param(START, marks=pytest.mark.soak),
    ],
)
def test_an_output_that_is_closed_leaves_nothing_or_a_job_that_runs(
    local_lab: Labs, name: str
) -> None:
    lab = local_lab()
    command = plain(lab, "cut", "--steps 2000", **QUEUE)
    command.wait_for(at_task(name))
    assert command.process.stdout is not None
    command.process.stdout.close()
    error = command.process.stderr
    assert error is not None
    said = error.read()
    assert command.process.wait() == 130, said
    assert "output was closed" in said
    assert ansible_of(lab) == []
    if name in (START, FOLLOW):
        assert "the job continues: attach to it with `" in said
        for task in ("worker-0", "worker-1"):
            assert rank_pid(lab.root, "cut", task)
        assert sorted(taken(lab)) == ["cut", "cut"]
        stopped = train(*lab.words("stop", "cut"))
        assert stopped.returncode == 0, stopped.stderr
        assert job_processes(lab.root) == []
    elif "the job continues" not in said:
        assert "nothing was started" in said
        assert is_nothing(lab, "cut")


@pytest.mark.soak
@pytest.mark.parametrize("name", [START, STAGE])
def test_a_job_whose_start_was_killed_is_stopped_and_started_again(
    local_lab: Labs, name: str
) -> None:
    lab = local_lab()
    command = plain(lab, "shot", "--steps 5", **QUEUE)
    command.wait_for(at_task(name))
    command.kill()
    wait_until(lambda: ansible_of(lab) == [], "the end of ansible-playbook")
    stopped = train(*lab.words("stop", "shot"))
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert taken(lab) == []
    assert job_processes(lab.root) == []
    state = listed(lab, "shot")
    assert state in ("", "stopped", "completed")
    if state == "stopped":
        seen = train(*lab.words("status", "shot"))
        assert "was stopped by" in seen.stdout
        attached = Command(*lab.words("attach", "--json", "shot")).end()
        assert (attached.code, attached.result["state"]) == (3, "stopped"), attached.result
        assert lab.saved("shot")["state"] == "stopped"
    again = Command(*lab.words("restart", "--json", "shot")).end()
    assert (again.code, again.result["state"]) == (0, "completed"), again.error


@pytest.mark.parametrize("name", [START, pytest.param(STAGE, marks=pytest.mark.soak)])
def test_ansible_that_is_killed_during_a_start_leaves_nothing_or_is_followed_up(
    local_lab: Labs, name: str
) -> None:
    lab = local_lab()
    command = plain(lab, "shot", "--steps 5", train_job_start_timeout=8, **QUEUE)
    command.wait_for(at_task(name))
    for pid in ansible_of(lab):
        os.kill(pid, signal.SIGKILL)
    run = command.end()
    if run.code == 2:
        assert is_nothing(lab, "shot"), run.result
    elif run.code == 1:  # killed between the starts of the two ranks
        assert "did not start within 8 s" in run.result["message"]
        assert job_processes(lab.root) == []
    else:
        assert (run.code, run.result["state"]) == (0, "completed"), run.result


@pytest.mark.parametrize(
    "signum", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.soak)]
)
def test_signals_stop_a_job_and_all_is_fetched(local_lab: Labs, signum: signal.Signals) -> None:
    lab = local_lab()
    command = plain(lab, "ended", "--steps 2000", "--on-interrupt", "stop")
    command.wait_for(training)
    command.process.send_signal(signum)
    run = command.end()
    assert (run.code, run.result["state"]) == (3, "stopped"), run.error
    assert run.result["message"].startswith("the job was stopped by ")
    saved = lab.saved("ended")
    assert (saved["state"], saved["message"]) == ("stopped", run.result["message"])
    for task in ("worker-0", "worker-1"):
        sent = (lab.root / "jobs/ended" / task / rank_files.LOG_FILE).read_bytes()
        assert (lab.runs_dir / "ended/logs" / f"{task}.log").read_bytes() == sent
    assert job_processes(lab.root) == []


def test_an_interrupt_in_the_queue_gives_up_the_place_in_it(local_lab: Labs) -> None:
    lab = local_lab()
    first = plain(lab, "first", "--steps 2000", "--on-interrupt", "stop")
    first.wait_for(training)
    second = plain(lab, "second", "", "--on-interrupt", "stop", **QUEUE)
    second.wait_for(lambda event: event.get("phase") == "waiting")
    second.process.send_signal(signal.SIGINT)
    run = second.end()
    assert (run.code, run.result["message"]) == (3, "nothing was started")
    assert sorted(taken(lab)) == ["first", "first"]
    assert not (lab.runs_dir / "second").exists()
    first.process.send_signal(signal.SIGINT)
    assert first.end().code == 3


def files_of(lab: Lab, job: str) -> dict[str, bytes]:
    """Return the files of a job, here and on the hosts, except those that all attempts extend."""
    folders = [lab.runs_dir / job, lab.root / "jobs" / job]
    paths = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    passing = ("events.jsonl", ".followed", "report.html", rank_files.STOP_REQUEST_FILE)
    return {str(path): path.read_bytes() for path in paths if path.name not in passing}


@pytest.mark.soak
def test_a_restart_that_waits_is_stopped_or_is_interrupted_and_leaves_the_job_as_it_was(
    local_lab: Labs,
) -> None:
    lab = local_lab()
    assert plain(lab, "again", "--fail worker-1").end().code == 1
    before = files_of(lab, "again")
    first = plain(lab, "first", "--steps 2000", "--on-interrupt", "stop")
    first.wait_for(training)
    waiting = Command(*lab.words("restart", "--json", "again", **QUEUE))
    waiting.wait_for(lambda event: event.get("phase") == "waiting")
    stopped = train(*lab.words("stop", "again"))
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    run = waiting.end()
    assert (run.code, run.result["state"]) == (3, "stopped"), run.error
    assert run.result["message"].startswith("nothing was started: the job was stopped by ")
    assert sorted(taken(lab)) == ["first", "first"]
    assert files_of(lab, "again") == before
    first.process.send_signal(signal.SIGINT)
    assert first.end().code == 3
    command = Command(*lab.words("restart", "--json", "again"))
    command.wait_for(at_task(STAGE))
    command.process.send_signal(signal.SIGINT)
    run = command.end()
    if "nothing was started" in run.result["message"]:
        assert files_of(lab, "again") == before
        assert taken(lab) == []
        again = Command(*lab.words("restart", "--json", "again")).end()
        assert again.code == 1
        assert lab.saved("again")["attempts"] == 2


def test_a_job_is_stopped_between_two_attempts(local_lab: Labs) -> None:
    lab = local_lab()
    quick: dict[str, Any] = {"train_job_max_restarts": 3, "train_job_restart_delay": 30}
    command = plain(lab, "down", "--steps 2000", "--on-interrupt", "stop", **quick)
    command.wait_for(training)
    os.kill(rank_pid(lab.root, "down", "worker-1"), signal.SIGKILL)
    command.wait_for(lambda event: event["event"] == "restart")
    command.process.send_signal(signal.SIGINT)
    run = command.end()
    assert (run.code, run.result["state"]) == (3, "stopped")
    assert "between two attempts" in run.result["message"]
    saved = lab.saved("down")
    assert (saved["state"], saved["restart"]) == ("stopped", False)
    attached = Command(*lab.words("attach", "--json", "down")).end()
    assert [event for event in attached.events if event["event"] == "restart"] == []


API = """
import json, sys
from train.cli.job import Job
given = json.loads(sys.argv[1])
job = Job.start(given["script"], ["--steps", "2000"], inventory=given["inventory"], job="api",
                 variables=given["variables"])
while not any(event.data.get("progress", {}).get("step") for event in job.events()):
    pass
print(job.stop().state)
"""


def test_a_job_is_stopped_from_python(local_lab: Labs) -> None:
    lab = local_lab()
    given = {"script": str(PLAIN), "inventory": str(lab.inventory), "variables": lab.given({})}
    done = run(sys.executable, "-c", API, json.dumps(given), timeout=120)
    assert done.stdout.strip() == "stopped", done.stderr
    assert lab.saved("api")["message"].startswith("the job was stopped by ")
