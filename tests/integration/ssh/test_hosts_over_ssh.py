"""``list``, ``logs``, ``stop`` and ``clean`` over SSH, when not all hosts answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.bare_ranks import wait_until
from tests.support.faults import host_variables, paused
from tests.support.jobs import PLAIN, ssh_processes, train, training
from tests.support.lab import Command, Lab, free_port
from tests.support.testbed import HOME, Rank, Testbed

pytestmark = pytest.mark.docker
#: A folder for these tests only, because they count its jobs.
ROOT = HOME / "listed"
#: The variables of a host that cannot be reached.
LOST = {"ansible_host": "127.0.0.9"}


@pytest.fixture
def lab(testbed: Testbed, tmp_path: Path) -> Iterator[Lab]:
    """Yield a lab of four ranks, without TensorFlow, on two hosts without jobs."""
    for host in testbed.hosts[:2]:
        testbed.exec(host, "rm", "-rf", str(ROOT))
    members = [
        Rank(f"node-{number}", testbed.hosts[number % 2], {"train_job_port": free_port()})
        for number in range(4)
    ]
    inventory = testbed.write_inventory({"worker": members}, path=tmp_path / "inventory")
    variables = {"train_job_python": "/usr/bin/python3", "train_job_max_restarts": 0}
    yield Lab(inventory, tmp_path / "runs", {**variables, "train_job_root": str(ROOT)})
    for host in testbed.hosts[:2]:
        testbed.exec(host, "pkill", "-KILL", "-f", f"host[.]supervisor|{ROOT}", check=False)


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
        command.process.kill()  # its watch ends with it
        command.process.wait()

    return start


def ranks_alive(testbed: Testbed) -> int:
    """Return the number of scripts that run on the hosts, as the kernel reports."""
    return len([line for line in ssh_processes(testbed) if line.startswith("/proc/")])


def test_four_ranks_on_two_machines(
    lab: Lab, testbed: Testbed, left: Callable[[str], None]
) -> None:
    left("night")
    done = train(*lab.words("logs", "night", "--tail", "1"))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(" | TF_CONFIG ")[0] for line in lines] == [f"worker-{n}" for n in range(4)]

    host_variables(lab, "node-1", **LOST)
    done = train(*lab.words("list", "--json"))
    assert done.returncode == 4
    assert "node-1 is unreachable" in done.stderr
    (job,) = json.loads(done.stdout)["jobs"]
    assert (job["job"], job["state"]) == ("night", "running")
    # The rank of node-1 is seen through node-3, which is on the same machine.
    assert (job["alive"], job["total"]) == (4, 4)
    assert job["hosts"] == ["node-0", "node-1", "node-2", "node-3"]
    assert job["progress"]["steps"] == 9000

    done = train(*lab.words("stop", "night"))
    assert done.returncode == 4
    assert "node-1 is unreachable" in done.stderr
    stopped = [line.partition(": ") for line in done.stdout.splitlines()]
    # It is ended through node-3, too.
    assert [host for host, _, _ in stopped] == ["node-0", "node-2", "node-3", "node-3"]
    for _, _, report in stopped:
        assert report.startswith("running -> stopped, 1 process ended, 0 left, port ")
        assert report.endswith(" free")
    assert ranks_alive(testbed) == 0

    done = train(*lab.words("clean", "--keep", "0"))
    assert done.returncode == 4
    assert "node-1 is unreachable" in done.stderr
    assert re.search(r"kept night: worker-0 ended \d+ s ago", done.stdout)


def updaters(testbed: Testbed) -> list[str]:
    """Return the processes on the two hosts that answer a watch."""
    asked = [
        testbed.exec(host, "pgrep", "-fx", ".* train[.]host[.]updates", check=False).stdout
        for host in testbed.hosts[:2]
    ]
    return [" ".join(pids.split()) for pids in asked]


def test_one_process_of_each_machine_answers_a_watch(lab: Lab, testbed: Testbed) -> None:
    command = lab.start("--job", "asked", "--script", str(PLAIN), arguments=["--steps", "9000"])
    command.wait_for(lambda event: training(event) and event["progress"]["step"] > 0)
    first = updaters(testbed)
    assert [len(pids.split()) for pids in first] == [1, 1]
    command.wait_for(lambda event: training(event) and event["progress"]["step"] > 100)
    assert updaters(testbed) == first
    # A new one is started, and no line is missing.
    testbed.exec("host-0", "kill", "-KILL", first[0])
    wait_until(lambda: len({*first, *updaters(testbed)}) == 3, "another process")
    assert updaters(testbed)[1] == first[1]
    testbed.exec("host-0", "pkill", "-TERM", "-f", "main.py")
    assert command.end(120).code == 1
    wait_until(lambda: updaters(testbed) == ["", ""], "their end", 10)
    for task in ("worker-0", "worker-2"):
        records = (lab.runs_dir / f"asked/progress/{task}.jsonl").read_text().splitlines()
        steps = [json.loads(line).get("step") for line in records]
        assert len(steps) == len({*steps}) > 100


@pytest.mark.soak
def test_a_host_that_is_lost_while_it_is_followed(
    lab: Lab, testbed: Testbed, left: Callable[[str], None]
) -> None:
    left("lost")
    following = Command(*lab.words("logs", "lost", "--follow", train_job_unreachable_timeout=4))
    assert following.process.stdout is not None
    while not following.process.stdout.readline().startswith("worker-3 | "):
        pass
    with paused(testbed.host("host-1")):
        testbed.exec("host-0", "pkill", "-KILL", "-f", "main.py")
        _, error = following.process.communicate(timeout=240)
    assert following.process.returncode == 4, error
    assert "worker-1 on node-1 is unreachable: " in error
    assert "worker-3 on node-1 is unreachable: " in error
    stopped = train(*lab.words("stop", "lost"))
    assert stopped.returncode == 0, stopped.stderr
    wait_until(lambda: not ranks_alive(testbed), "their end", timeout=30)
