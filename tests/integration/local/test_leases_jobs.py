"""Jobs side by side on this machine, through the playbooks."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.jobs import PLAIN, job_processes, plain, training
from tests.support.lab import Lab
from tests.support.lease_ranks import holder, queue
from train.host import leases

LONG = "--steps 3000"


class Labs:
    """Labs of several users of one machine: the same ports, each with folders of its own."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.folder = folder
        self.leases = folder / "leases"
        self._lab = lab

    def of(self, user: str) -> Lab:
        given = {
            **self._lab.variables,
            "train_job_root": str(self.folder / user / "hosts"),
            "train_job_lease_dir": str(self.leases),
        }
        return Lab(self._lab.inventory, self.folder / user / "runs", given)

    def held(self) -> dict[str, str]:
        """Return the job that has each resource."""
        return {found["resource"]: found["job"] for found in leases.holders(str(self.leases))}


@pytest.fixture
def labs(local_lab: Callable[..., Lab], tmp_path: Path) -> Labs:
    return Labs(local_lab(), tmp_path)


def ports(lab: Lab) -> list[int]:
    """Return the ports of its two ranks."""
    hosts = json.loads((lab.inventory / "hosts.yml").read_text())["all"]["children"]["worker"]
    return [int(variables["train_job_port"]) for variables in hosts["hosts"].values()]


def test_a_job_is_refused_or_waits_for_another_one(labs: Labs) -> None:
    anna, ben = labs.of("anna"), labs.of("ben")
    first = plain(anna, "first", LONG)
    first.wait_for(training)
    port = ports(anna)[0]
    assert set(labs.held().values()) == {"first"}
    assert set(labs.held()) == {f"port/{number}" for number in ports(anna)}

    tired = plain(ben, "second", train_job_queue_timeout=1).end()
    assert tired.code == 2
    message = tired.result["message"]
    assert f"worker0: port {port} is in use by worker-0 of job first (user " in message
    assert "; waited 1 s for it (train_job_queue_timeout)" in message
    assert not (labs.folder / "ben/hosts/jobs").exists()
    assert not (labs.folder / "ben/runs/second").exists(), "its id is free again"

    second = plain(ben, "second", train_job_queue_timeout=120)
    event = second.wait_for(lambda event: event.get("phase") == "waiting")
    port = ports(anna)[int(event["task"][-1])]
    assert f"port {port} is in use by {event['task']} of job first (user " in event["reason"]
    assert set(queue(labs.leases)) == {"second"}
    assert not (labs.folder / "ben/hosts/jobs").exists()
    assert anna.playbook("stop.yml", train_job_id="first").returncode == 0
    run = second.end()
    assert run.code == 0, run.result
    assert run.result["state"] == "completed"
    assert first.end().result["state"] == "stopped"
    assert labs.held() == {}
    assert list(labs.leases.iterdir()) == []
    assert job_processes(labs.folder) == []


def test_where_one_rank_gets_nothing_none_does(labs: Labs) -> None:
    """Another job is next for one rank's port, which is noticed when the ranks are staged."""
    anna = labs.of("anna")
    port = ports(anna)[1]
    early = holder("early")
    assert leases.wait(str(labs.leases), {f"port/{port}": "it"}, early, 0) == []
    done = anna.playbook("train.yml", train_job_script=str(PLAIN), train_job_id="a")
    told = " ".join(done.stdout.split())
    assert done.returncode == 2, told
    assert f"port {port} is next for worker-0 of job early (user " in told
    assert told.count("nothing was started, and what was taken for the job is free again") >= 2
    assert labs.held() == {}
    assert not list((labs.folder / "anna").glob("hosts/jobs/*"))
    assert not list((labs.folder / "anna").glob("runs/*"))


def test_a_folder_that_cannot_be_used_is_a_warning_and_others_may_read_a_job(labs: Labs) -> None:
    anna = labs.of("anna")
    labs.leases.write_text("in the way")
    done = anna.playbook(
        "train.yml",
        train_job_script=str(PLAIN),
        train_job_id="a",
        train_job_readable_by="all",
    )
    told = " ".join(done.stdout.split())
    assert done.returncode == 0, told
    assert f"the rank runs without leases, which keep jobs apart: {labs.leases} cannot be" in told
    assert stat.S_IMODE((labs.folder / "anna/hosts/jobs/a").stat().st_mode) == 0o755
