"""Jobs of several control nodes that wait for the same hosts, over SSH."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY, Lab
from tests.testbed import HOME, Rank, Testbed, docker, docker_available, running_testbed

pytestmark = pytest.mark.docker
PLAIN = REPOSITORY / "tests/data/scripts/plain"
PORT = 12345


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Testbed]:
    if not docker_available():
        pytest.skip("no Docker engine answers")
    with running_testbed(2, tmp_path / "bed") as made:
        yield made


def lab_of(bed: Testbed, folder: Path, *hosts: str) -> Lab:
    """Return a control node with an inventory of one worker on each of ``hosts``."""
    ranks = [Rank(name, bed.host(name), {"train_job_port": PORT}) for name in hosts]
    inventory = bed.write_inventory({"worker": ranks}, path=folder / "inventory")
    given = {"train_job_python": "/usr/bin/python3", "train_job_max_restarts": 0}
    return Lab(inventory, folder / "runs", given)


def leased(bed: Testbed, host: str) -> dict[str, Any]:
    """Return what the file of a host says."""
    state: dict[str, Any] = json.loads(
        bed.exec(host, "cat", "/tmp/train-leases/leases.json").stdout
    )
    return state


def test_jobs_wait_for_one_another_on_several_hosts(bed: Testbed, tmp_path: Path) -> None:
    hosts = ["host-0", "host-1"]
    first = lab_of(bed, tmp_path / "first", *hosts)
    one = first.start("--job", "one", "--script", str(PLAIN), arguments=["--steps", "3000"])
    one.wait_for(lambda event: bool(event.get("progress", {}).get("step")))

    # Two more, which see the hosts in another order.
    waiting = []
    for job, members in (("two", hosts[::-1]), ("three", hosts)):
        lab = lab_of(bed, tmp_path / job, *members)
        command = lab.start("--job", job, "--script", str(PLAIN), train_job_wait=300)
        command.wait_for(lambda event: event.get("phase") == "waiting")
        waiting.append(command)
    for host in hosts:
        state = leased(bed, host)
        assert [lease["job"] for lease in state["leases"]] == ["one"]
        assert {lease["user"] for lease in state["leases"]} == {"train"}
        assert [ticket["job"] for ticket in state["queue"]] == ["two", "three"]
        assert bed.exec(host, "ls", str(HOME / "train/jobs")).stdout.split() == ["one"]

    # The machines of the first job are lost and come back: nothing is left of its leases.
    for host in hosts:
        docker("restart", "--time", "0", bed.host(host).container)
    assert one.end().code == 1
    two, three = (command.end() for command in waiting)
    assert (two.code, three.code) == (0, 0), (two.result, three.result)
    for host in hosts:
        state = leased(bed, host)
        assert (state["leases"], state["queue"]) == ([], [])
        cat = f"cat {HOME}/train/jobs/two/worker-?/state.json"
        before = json.loads(bed.exec(host, "sh", "-c", cat).stdout)
        after = json.loads(bed.exec(host, "sh", "-c", cat.replace("two", "three")).stdout)
        assert before["ended_at"] <= after["started_at"], "one after the other"
