"""Jobs of several control nodes that wait for the same hosts, over SSH."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.bare_ranks import wait_until
from tests.support.jobs import PLAIN, training
from tests.support.lab import Lab
from tests.support.testbed import HOME, Rank, Testbed, docker

pytestmark = pytest.mark.docker
HOSTS = ["host-0", "host-1"]
#: Of these tests alone: other users spoil the folder of leases.
LEASES, ROOT = "/tmp/leases-of-a-test", HOME / "leased"
#: What another user of the host does to all leases.
SPOIL = f"rm -f {LEASES}/*; echo '{{}}' > {LEASES}/lease-{'0' * 32}.json"


def lab_of(bed: Testbed, folder: Path, hosts: list[str]) -> Lab:
    """Return a control node with an inventory of one worker on each of ``hosts``."""
    ranks = [Rank(name, bed.host(name), {"train_job_port": 12345}) for name in hosts]
    inventory = bed.write_inventory({"worker": ranks}, path=folder / "inventory")
    given = {"train_job_python": "/usr/bin/python3", "train_job_max_restarts": 0}
    given |= {"train_job_root": str(ROOT), "train_job_lease_dir": LEASES}
    return Lab(inventory, folder / "runs", given)


def leased(bed: Testbed, host: str) -> list[dict[str, Any]]:
    """Return the leases and places in the queue that count on a host, by its own program."""
    program = "import json; from train.host import leases; print(json.dumps(leases.entries('{}')))"
    command = f'cd {ROOT}/jobs/one/worker-?/launcher && python3 -c "{program.format(LEASES)}"'
    found: list[dict[str, Any]] = json.loads(bed.exec(host, "sh", "-c", command).stdout)
    return found


def is_waited_for(bed: Testbed, host: str) -> bool:
    """Return whether a host's leases are as they should be. A place in the queue that is renewed at
    this moment is there twice, or not at all.
    """
    found = [(entry["job"], entry["state"], entry["user"]) for entry in leased(bed, host)]
    queued = [("two", "queued", "train"), ("three", "queued", "train")]
    return found == [("one", "started", "train"), *queued]


def test_jobs_wait_for_one_another_on_several_hosts(testbed: Testbed, tmp_path: Path) -> None:
    first = lab_of(testbed, tmp_path / "first", HOSTS)
    one = first.start("--job", "one", "--script", str(PLAIN), arguments=["--steps", "3000"])
    one.wait_for(training)

    # Two more, which see the hosts in another order.
    waiting = []
    for job, members in (("two", HOSTS[::-1]), ("three", HOSTS)):
        lab = lab_of(testbed, tmp_path / job, members)
        command = lab.start("--job", job, "--script", str(PLAIN), train_job_queue_timeout=300)
        command.wait_for(lambda event: event.get("phase") == "waiting")
        waiting.append(command)
    for host in HOSTS:
        testbed.exec(host, "sh", "-c", SPOIL, user="nobody")
        listed = testbed.exec(host, "ls", f"{ROOT}/jobs/one", user="nobody", check=False)
        assert listed.returncode, "a job's folder is its user's"
        wait_until(partial(is_waited_for, testbed, host), f"both wait for {host}")
        assert testbed.exec(host, "ls", str(ROOT / "jobs")).stdout.split() == ["one"]

    # The machines of the first job are lost and come back: nothing is left of its leases.
    for host in HOSTS:
        docker("restart", "--time", "0", testbed.host(host).container)
    assert one.end().code == 1
    two, three = (command.end() for command in waiting)
    messages = [run.result["message"] for run in (two, three)]
    assert messages == ["all ranks completed"] * 2
    assert (two.code, three.code) == (0, 0)
    for host in HOSTS:
        assert leased(testbed, host) == []
        cat = f"cat {ROOT}/jobs/two/worker-?/state.json"
        before = json.loads(testbed.exec(host, "sh", "-c", cat).stdout)
        after = json.loads(testbed.exec(host, "sh", "-c", cat.replace("two", "three")).stdout)
        assert before["ended_at"] <= after["started_at"], "one after the other"
