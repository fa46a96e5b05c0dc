"""``list``, ``logs``, ``stop`` and ``clean`` over SSH, where not every host answers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.jobs import PLAIN, train
from tests.support.lab import Command, Lab, free_port
from tests.support.testbed import Rank, Testbed, docker, docker_available, running_testbed

pytestmark = pytest.mark.docker
JOBS = "/home/train/train/jobs"


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """Two hosts without TensorFlow."""
    if not docker_available():
        pytest.skip("no Docker engine answers")
    with running_testbed(2, tmp_path_factory.mktemp("bed")) as bed:
        yield bed


@pytest.fixture
def lab(bed: Testbed, tmp_path: Path) -> Lab:
    """Four ranks on the two hosts."""
    members = [
        Rank(f"node-{number}", bed.hosts[number % 2], {"train_job_port": free_port()})
        for number in range(4)
    ]
    inventory = bed.write_inventory({"worker": members}, path=tmp_path / "inventory")
    variables = {"train_job_python": "/usr/bin/python3", "train_job_max_restarts": 0}
    return Lab(inventory, tmp_path / "runs", variables)


@pytest.fixture
def left(lab: Lab) -> Callable[[str], None]:
    """Return a function that starts a job and leaves it running."""

    def start(job: str) -> None:
        command = lab.start("--job", job, "--script", str(PLAIN), arguments=["--steps", "9000"])
        running: set[str] = set()
        while len(running) < 4:
            event = command.wait_for(
                lambda event: event["event"] == "rank" and event["phase"] == "running"
            )
            running.add(event["task"])
        command.process.kill()  # what follows it ends with it
        command.process.wait()

    return start


def lose(lab: Lab, host: str) -> None:
    """Have an inventory host answer no more."""
    path = lab.inventory / "hosts.yml"
    inventory = json.loads(path.read_text())
    inventory["all"]["children"]["worker"]["hosts"][host]["ansible_host"] = "127.0.0.9"
    path.write_text(json.dumps(inventory))


def ranks_alive(bed: Testbed) -> int:
    """Return how many scripts run on the hosts, as the kernel tells."""
    pattern = "grep --files-with-matches --text TRAIN_RANK_DIR= /proc/[0-9]*/environ"
    found = [
        line
        for host in bed.hosts
        for line in bed.exec(host, "sh", "-c", pattern, check=False).stdout.splitlines()
    ]
    return len(found)


def test_four_ranks_on_two_machines(lab: Lab, bed: Testbed, left: Callable[[str], None]) -> None:
    left("night")
    done = train(*lab.words("list", "--json"))
    assert done.returncode == 0, done.stderr
    (job,) = json.loads(done.stdout)["jobs"]
    assert (job["job"], job["state"]) == ("night", "running")
    assert (job["alive"], job["total"]) == (4, 4)
    assert job["hosts"] == ["node-0", "node-1", "node-2", "node-3"]
    assert job["progress"]["steps"] == 9000

    done = train(*lab.words("logs", "night", "--tail", "1"))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(" | TF_CONFIG ")[0] for line in lines] == [f"worker-{n}" for n in range(4)]

    done = train(*lab.words("clean", "--keep", "0"))
    assert done.returncode == 0, done.stderr
    assert "kept night: worker-0 is running" in done.stdout
    assert ranks_alive(bed) == 4

    lose(lab, "node-1")
    done = train(*lab.words("list", "--json"))
    assert done.returncode == 4
    assert "node-1 is unreachable" in done.stderr
    assert json.loads(done.stdout)["jobs"][0]["alive"] == 4, "node-3 is on its machine"

    done = train(*lab.words("stop", "night"))
    assert done.returncode == 4
    assert "node-1 is unreachable" in done.stderr
    stopped = [line.partition(": ") for line in done.stdout.splitlines()]
    assert [host for host, _, _ in stopped] == ["node-0", "node-2", "node-3"]
    for _, _, report in stopped:
        assert report.startswith("running -> stopped, 1 process ended, 0 left, port ")
        assert report.endswith(" free")
    assert ranks_alive(bed) == 1


def test_old_jobs_stay_where_a_host_says_nothing(lab: Lab, bed: Testbed) -> None:
    for host in bed.hosts:
        bed.exec(host, "rm", "-rf", JOBS)
    run = lab.run("--job", "old", "--script", str(PLAIN))
    assert run.code == 0, run.error
    # It ended long ago, as far as its hosts know.
    ended = f'sed -i \'s/"ended_at": [0-9.]*/"ended_at": 1.0/\' {JOBS}/old/*/state.json'
    for host in bed.hosts:
        bed.exec(host, "sh", "-c", ended)
    whole = json.loads((lab.inventory / "hosts.yml").read_text())
    lose(lab, "node-3")
    done = train(*lab.words("clean", "--older-than", "14d"))
    assert done.returncode == 4
    assert "node-3 is unreachable" in done.stderr
    assert "kept old: node-3 reported nothing, where a rank may be alive" in done.stdout
    (lab.inventory / "hosts.yml").write_text(json.dumps(whole))
    done = train(*lab.words("clean", "--older-than", "14d"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("removed old (") == 2, "once for each machine"
    for host in bed.hosts:
        assert bed.exec(host, "ls", "-A", JOBS).stdout == ""


def test_a_host_that_is_lost_while_it_is_followed(
    lab: Lab, bed: Testbed, left: Callable[[str], None]
) -> None:
    left("lost")
    container = bed.host("host-1").container
    following = Command(*lab.words("logs", "lost", "--follow", train_job_unreachable_timeout=4))
    assert following.process.stdout is not None
    while not following.process.stdout.readline().startswith("worker-3 | "):
        pass
    docker("pause", container)
    try:
        bed.exec("host-0", "pkill", "-KILL", "-f", "main.py")
        _, error = following.process.communicate(timeout=240)
    finally:
        docker("unpause", container)
    assert following.process.returncode == 4, error
    assert "worker-1 on node-1 is unreachable: " in error
    assert "worker-3 on node-1 is unreachable: " in error
    stopped = train(*lab.words("stop", "lost"))
    assert stopped.returncode == 0, stopped.stderr
    deadline = time.monotonic() + 30
    while ranks_alive(bed):
        assert time.monotonic() < deadline
        time.sleep(0.2)
