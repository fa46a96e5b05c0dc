"""Jobs side by side on this machine, through the playbooks."""

from __future__ import annotations

import signal
import stat
from pathlib import Path

import pytest

from tests.support.faults import host_variables
from tests.support.hook import TOKEN
from tests.support.jobs import PLAIN, job_processes, plain, training
from tests.support.lab import Lab, Labs
from tests.support.lease_ranks import holder, queue
from train.host import leases


@pytest.fixture
def lab(local_lab: Labs) -> Lab:
    return local_lab()


def leases_of(lab: Lab) -> Path:
    return Path(lab.variables["train_job_lease_dir"])


def held(lab: Lab) -> dict[str, str]:
    """Return the job that holds each resource."""
    return {found["resource"]: found["job"] for found in leases.holders(str(leases_of(lab)))}


def ports(lab: Lab) -> list[int]:
    """Return the ports of the lab's two ranks."""
    return [host_variables(lab, f"worker{i}")["train_job_port"] for i in (0, 1)]


def test_a_job_is_refused_or_waits_for_another_one(lab: Lab, tmp_path: Path) -> None:
    """Two users run jobs with the same ports, each with their own folders."""
    folder = tmp_path / "ben"
    variables = {**lab.variables, "train_job_root": str(folder / "hosts")}
    ben = Lab(lab.inventory, folder / "runs", variables)
    first = plain(lab, "first", "--steps 3000", "--on-interrupt", "stop")
    first.wait_for(training)
    assert held(lab) == {f"port/{number}": "first" for number in ports(lab)}

    here = plain(lab, "first").end()
    assert here.code == 2
    assert "already contains job first" in here.error
    elsewhere = plain(Lab(lab.inventory, tmp_path / "other", lab.variables), "first").end()
    assert elsewhere.code == 2
    assert "job first is already running (worker-" in elsewhere.result["message"]

    tired = plain(ben, "second", train_job_queue_timeout=1).end()
    assert tired.code == 2
    message = tired.result["message"]
    assert f"worker0: port {ports(lab)[0]} is in use by worker-0 of job first (user " in message
    assert "; gave up after 1 s (train_job_queue_timeout)" in message
    assert not (folder / "hosts/jobs").exists()
    assert not (folder / "runs/second").exists(), "its id is free again"

    second = plain(ben, "second", train_job_queue_timeout=120)
    event = second.wait_for(lambda event: event.get("phase") == "waiting")
    port = ports(lab)[int(event["task"][-1])]
    assert f"port {port} is in use by {event['task']} of job first (user " in event["reason"]
    assert set(queue(leases_of(lab))) == {"second"}
    assert not (folder / "hosts/jobs").exists()
    first.process.send_signal(signal.SIGINT)
    assert first.end().result["state"] == "stopped"
    run = second.end()
    assert run.code == 0, run.result
    assert run.result["state"] == "completed"
    assert list(leases_of(lab).iterdir()) == []
    assert job_processes(tmp_path) == []


@pytest.mark.parametrize("rank", [0, 1])
def test_where_one_rank_gets_nothing_none_does(lab: Lab, rank: int) -> None:
    """Another job has claimed one rank's port, which is noticed when the ranks are staged."""
    port = ports(lab)[rank]
    early = holder("early")
    assert leases.wait(str(leases_of(lab)), {f"port/{port}": "it"}, early, 0) == []
    done = lab.playbook("train.yml", train_job_script=str(PLAIN), train_job_id="a")
    told = " ".join(done.stdout.split())
    assert done.returncode == 2, told
    assert f"port {port} is claimed by worker-0 of job early (user " in told
    assert "nothing was started, and the job's leases were released" in told
    assert held(lab) == {}
    assert not list(lab.root.glob("jobs/*"))
    assert not list(lab.runs_dir.glob("*"))


def test_leases_and_notifications_that_fail_are_warnings_and_others_may_read_a_job(
    lab: Lab,
) -> None:
    leases_of(lab).write_text("in the way")
    done = lab.playbook(
        "train.yml",
        train_job_id="a",
        train_job_script=str(PLAIN),
        train_job_readable_by="all",
        train_job_notify_command="echo the mailbox is full; exit 7",
        train_job_notify_webhook=f"http://127.0.0.1:1/{TOKEN}",
    )
    told = " ".join(done.stdout.split())
    assert done.returncode == 0, told
    assert "job a completed; its results are in" in told
    assert lab.saved("a")["state"] == "completed"
    reason = f"{leases_of(lab)} cannot be"
    assert (
        f"the rank is running without leases, which prevent conflicts between jobs: {reason}"
        in told
    )
    assert stat.S_IMODE((lab.root / "jobs/a").stat().st_mode) == 0o755

    failed = "train_job_notify_command exited with code 7"
    assert f"end: {failed}: the mailbox is full" in told
    assert "train_job_notify_webhook: 127.0.0.1 cannot be reached: Connection refused" in told
    assert TOKEN not in done.stdout
    log = (lab.runs_dir / "a/notify.log").read_text()
    for event in ("start", "end"):
        assert f"{event}: {failed}" in log
