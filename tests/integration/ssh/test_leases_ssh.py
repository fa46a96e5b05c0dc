"""Jobs of several control nodes that wait for the same hosts, over SSH."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import REPOSITORY, Lab
from tests.support.testbed import HOME, Rank, Testbed, docker, docker_available, running_testbed

pytestmark = pytest.mark.docker
PLAIN = REPOSITORY / "tests/data/scripts/plain"
PORT = 12345
LEASES = "/tmp/train-leases"
#: What a hostile user of the host runs: 200 writes of garbage and forged leases.
SPOIL = f"""
import glob, json, os
denied = 0
texts = []
for path in glob.glob("{LEASES}/*"):
    texts.append(open(path).read())
    for act in (os.unlink, lambda path: open(path, "w")):
        try:
            act(path)
        except PermissionError:
            denied += 1
forged = json.dumps({{
    "state": "started", "created_at": 1.0, "job": "one", "task": "worker-0", "attempt": 9,
    "since": 1.0, "net": os.readlink("/proc/self/ns/net"),
    "resources": ["port/%d" % port for port in range(12300, 12400)],
}})
for number in range(200):
    text = ["[" * 100_000, forged, *texts, forged.replace("started", "queued"), ""][number % 4]
    names = ["lease-%032x.json" % number, "leases.json", "leases-copy.json"]
    path = os.path.join("{LEASES}", names[number % 3])
    if number % 7:
        open(path, "w").write(text)
    elif not os.path.lexists(path):
        os.symlink("/etc/passwd", path)
print(denied)
"""


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Testbed]:
    if not docker_available():
        pytest.skip("no Docker engine answers")
    with running_testbed(2, tmp_path / "bed") as made:
        yield made


def lab_of(bed: Testbed, folder: Path, *hosts: str, port: int = PORT) -> Lab:
    """Return a control node with an inventory of one worker on each of ``hosts``."""
    ranks = [Rank(name, bed.host(name), {"train_job_port": port}) for name in hosts]
    inventory = bed.write_inventory({"worker": ranks}, path=folder / "inventory")
    given = {"train_job_python": "/usr/bin/python3", "train_job_max_restarts": 0}
    return Lab(inventory, folder / "runs", given)


def leased(bed: Testbed, host: str) -> list[dict[str, Any]]:
    """Return the leases and places in the queue that count on a host, by its own program."""
    program = "import json; from train.host import leases; print(json.dumps(leases.entries('{}')))"
    command = f'cd train/jobs/one/worker-?/launcher && python3 -c "{program.format(LEASES)}"'
    found: list[dict[str, Any]] = json.loads(bed.exec(host, "sh", "-c", command).stdout)
    return found


def test_jobs_wait_for_one_another_on_several_hosts(bed: Testbed, tmp_path: Path) -> None:
    hosts = ["host-0", "host-1"]
    first = lab_of(bed, tmp_path / "first", *hosts)
    one = first.start("--job", "one", "--script", str(PLAIN), arguments=["--steps", "3000"])
    one.wait_for(lambda event: bool(event.get("progress", {}).get("step")))

    # Two more, which see the hosts in another order.
    waiting = []
    for job, members in (("two", hosts[::-1]), ("three", hosts)):
        lab = lab_of(bed, tmp_path / job, *members)
        command = lab.start("--job", job, "--script", str(PLAIN), train_job_queue_timeout=300)
        command.wait_for(lambda event: event.get("phase") == "waiting")
        waiting.append(command)
    for host in hosts:
        found = [(entry["job"], entry["state"], entry["user"]) for entry in leased(bed, host)]
        assert found == [
            ("one", "started", "train"),
            ("two", "queued", "train"),
            ("three", "queued", "train"),
        ]
        assert bed.exec(host, "ls", str(HOME / "train/jobs")).stdout.split() == ["one"]

    # The machines of the first job are lost and come back: nothing is left of its leases.
    for host in hosts:
        docker("restart", "--time", "0", bed.host(host).container)
    assert one.end().code == 1
    two, three = (command.end() for command in waiting)
    messages = [run.result["message"] for run in (two, three)]
    assert messages == ["all ranks completed"] * 2
    assert (two.code, three.code) == (0, 0)
    for host in hosts:
        assert leased(bed, host) == []
        cat = f"cat {HOME}/train/jobs/two/worker-?/state.json"
        before = json.loads(bed.exec(host, "sh", "-c", cat).stdout)
        after = json.loads(bed.exec(host, "sh", "-c", cat.replace("two", "three")).stdout)
        assert before["ended_at"] <= after["started_at"], "one after the other"


def test_another_user_of_the_host_neither_ends_nor_blocks_a_job(
    bed: Testbed, tmp_path: Path
) -> None:
    hosts = ["host-0", "host-1"]
    lab = lab_of(bed, tmp_path / "first", *hosts)
    one = lab.start("--job", "one", "--script", str(PLAIN), arguments=["--steps", "500"])
    one.wait_for(lambda event: bool(event.get("progress", {}).get("step")))
    spoil = ("python3", "-c", SPOIL)
    for host in hosts:
        assert bed.exec(host, *spoil, user="nobody").stdout.split() == ["2"], "of the only file"
        assert [entry["job"] for entry in leased(bed, host)] == ["one"]
        for name in ("job.json", "worker-0", "worker-1"):
            path = str(HOME / "train/jobs/one" / name)
            assert bed.exec(host, "ls", path, user="nobody", check=False).returncode
    again = lab_of(bed, tmp_path / "again", *hosts)
    refused = again.start("--job", "again", "--script", str(PLAIN)).end()
    assert "in use by worker-0 of job one (user train" in refused.result["message"]

    # The folder is removed, and the other user is the first to create it again.
    for host in hosts:
        # The rank may write its lease again at the same time.
        begin = f"rm -r {LEASES} && mkdir {LEASES} && chown nobody {LEASES}"
        command = f"until {begin} && chmod 1777 {LEASES}; do sleep 0.1; done"
        bed.exec(host, "sh", "-c", command, user="root")
        bed.exec(host, *spoil, user="nobody")
    lab = lab_of(bed, tmp_path / "second", *hosts, port=PORT + 1)
    two = lab.start("--job", "two", "--script", str(PLAIN)).end()
    assert two.code == 0, two.result
    # And closed.
    for host in hosts:
        bed.exec(host, "chmod", "700", LEASES, user="nobody")
    three = lab.start("--job", "three", "--script", str(PLAIN)).end()
    assert three.code == 0, three.result
    run = one.end()
    assert (run.code, run.result["state"]) == (0, "completed")
