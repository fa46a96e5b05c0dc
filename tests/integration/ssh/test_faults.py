"""A job survives faults of its hosts and of its watch, and its weights do not change.

make soak                 50 faults, 20 kills of the follower, 300 s without network: an hour
make soak SOAK_SEED=N     the same in another order and at other times

The follower of a job is the wrapper or ``ansible-playbook``. If one is killed, the other attaches.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support import faults, playbook_jobs
from tests.support.faults import LIMIT
from tests.support.jobs import PLAIN, rank_state, ssh_processes, training
from tests.support.lab import Command, Lab, Labs
from tests.support.playbook_jobs import PlaybookCommand
from tests.support.testbed import Host, Testbed

pytestmark = [pytest.mark.docker, pytest.mark.tensorflow]

#: Each kind of fault occurs once before any of them is repeated.
FAULTS = int(os.environ.get("SOAK_FAULTS", "1"))
KILLS = int(os.environ.get("SOAK_KILLS", "1"))
SEED = int(os.environ.get("SOAK_SEED", "1"))
#: Seconds for which nothing reaches the hosts, longer than until a host counts as lost.
CUT = float(os.environ.get("CUT_SECONDS", "20"))

Cause = Callable[[Testbed, Host, str], AbstractContextManager[None]]


@dataclass(frozen=True)
class Fault:
    """A fault of a rank of the job "soak", or of its host, until the job is restarted.

    Attributes:
        cause: a regular expression for the key of causes.CAUSES that must be reported.
        message: a regular expression for the beginning of the message after rank and host.
    """

    do: Cause
    cause: str
    message: str


def sending(name: str, whose: str = "pid") -> Cause:
    """Return the fault of a signal to a rank's script, or to its supervisor."""

    @contextmanager
    def send(bed: Testbed, host: Host, task: str) -> Iterator[None]:
        pid = rank_state(bed, host.name, "soak", task)[whose]
        bed.exec(host, "kill", f"-{name}", str(pid))
        yield

    return send


def to_host(fault: Callable[[Host], AbstractContextManager[None]]) -> Cause:
    """Return a fault of a whole host."""
    return lambda bed, host, task: fault(host)


WATCH, SSHD = "watch", "sshd"
#: By name, the fault of either rank; None if it must not affect the job.
KINDS: dict[str, Fault | None] = {
    "rank": Fault(sending("KILL"), "signal", r"was killed by SIGKILL \(signal 9\)"),
    "term": Fault(sending("TERM"), "signal|exit", "(was killed by SIGTERM|exited with)"),
    "supervisor": Fault(
        sending("KILL", "supervisor_pid"),
        "supervisor",
        r"ended with its supervisor \(pid \d+\), which was killed",
    ),
    "host": Fault(
        to_host(faults.off),
        "unreachable|reboot",
        "(is unreachable|ended when its host rebooted)",
    ),
    "stopped": Fault(sending("STOP"), "frozen", "is stopped by a signal or a debugger"),
    "paused": Fault(to_host(faults.paused), "unreachable", "is unreachable"),
    "unplugged": Fault(to_host(faults.unplugged), "unreachable", "is unreachable"),
    WATCH: None,
    SSHD: None,
}
#: 40 steps for each fault, so that the job does not end before the last one.
JOB = faults.slow_job(epochs=4 * FAULTS)


def weights(lab: Lab, job: str) -> str:
    """Return the hash of the weights that all ranks ended with."""
    (found,) = {rank["weights_sha256"] for rank in lab.saved(job)["ranks"]}
    assert found
    return str(found)


@pytest.fixture(scope="module")
def undisturbed(testbed: Testbed, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the hash of the weights of an undisturbed job."""
    folder = tmp_path_factory.mktemp("undisturbed")
    inventory = testbed.write_inventory({"worker": testbed.hosts[:2]}, path=folder / "inventory")
    lab = Lab(inventory, folder / "runs")
    run = lab.run("--job", "calm-faults", **JOB)
    assert run.code == 0, run.result
    return weights(lab, "calm-faults")


Following = Command | PlaybookCommand


def started(
    lab: Lab, job: str, by_playbook: bool, script: str = "", **arguments: Any
) -> tuple[Following, bool]:
    """Start a job with one of both; return also which one it was."""
    if by_playbook:
        return playbook_jobs.start(lab, job, script, **arguments), True
    options = ["--script", script] if script else []
    return lab.start("--job", job, *options, **arguments), False


def attached(lab: Lab, job: str, by_playbook: bool) -> tuple[Following, bool]:
    """Follow a job with one of both; return also which one it is."""
    if by_playbook:
        return playbook_jobs.attach(lab, job), True
    return Command(*lab.words("attach", "--json", job)), False


def wait_for_steps(command: Following, bed: Testbed, attempt: int) -> None:
    """Wait until a rank of an attempt has reported a step."""

    def wanted(event: dict[str, Any]) -> bool:
        assert event["event"] != "result", event
        if not training(event):
            return False
        return bool(rank_state(bed, "host-0", "soak", "worker-0")["attempt"] == attempt)

    command.wait_for(wanted)


def test_random_faults(ssh_lab: Labs, testbed: Testbed, undisturbed: str) -> None:
    drawn = random.Random(SEED)
    names: list[str] = []
    while len(names) < FAULTS:
        names += drawn.sample(sorted(KINDS), len(KINDS))
    lab, attempt = ssh_lab(worker=2), 1
    with faults.slow(testbed, testbed.hosts[0]):
        command, by_playbook = started(
            lab, "soak", drawn.random() < 0.5, **JOB, train_job_max_restarts=10 * FAULTS
        )
        for number, name in enumerate(names[:FAULTS]):
            wait_for_steps(command, testbed, attempt)
            time.sleep(drawn.uniform(0, 2))
            rank = drawn.randrange(2)
            fault, task, host = KINDS[name], f"worker-{rank}", testbed.hosts[rank]
            began = time.monotonic()
            outcome = "not felt"
            if name == WATCH:
                command.kill()
                command, by_playbook = attached(lab, "soak", not by_playbook)
            elif fault is None:
                with faults.sshd_down(testbed, host):
                    time.sleep(drawn.uniform(0, 10))
            else:
                with fault.do(testbed, host, task):
                    event = command.wait_for(lambda event: event["event"] in ("restart", "result"))
                    seconds = time.monotonic() - began
                outcome = f"reported after {seconds:.1f} s: {event['message']}"
                attempt += 1
                assert (event["event"], event.get("attempt")) == ("restart", attempt), event
                assert event["root_cause"] == task, event
                assert re.fullmatch(fault.cause, event["cause"]), event
                assert re.match(f"{task} on worker{rank} {fault.message}", event["message"]), event
                assert seconds < LIMIT, event
            follower = "ansible-playbook" if by_playbook else "the wrapper"
            line = f"{number}: {name} of {task}: {outcome}; followed by {follower}"
            print(line, file=sys.stderr, flush=True)
    run = command.end(240 + 20 * FAULTS)
    assert (run.code, run.result["state"]) == (0, "completed"), run.result
    assert weights(lab, "soak") == undisturbed
    assert lab.saved("soak")["attempts"] == attempt
    assert ssh_processes(testbed) == []


@pytest.mark.soak
def test_a_clock_is_set_back_and_hosts_are_cut_off_and_nothing_happens(
    ssh_lab: Labs, testbed: Testbed, undisturbed: str
) -> None:
    lab, host = ssh_lab(worker=2), testbed.hosts[1]
    gateway = host.address.rpartition(".")[0] + ".1"  # the control node's address for them
    rule = f"ip saddr {gateway} drop"
    with faults.own_clock(testbed, host):
        command = lab.start("--job", "unmoved", **JOB, train_job_unreachable_timeout=6)
        with faults.followed(lab, "unmoved", command, CUT + 600):
            with faults.slow(testbed, testbed.hosts[0]):
                command.wait_for(training)
                faults.set_clock(testbed, host, -3600.0)
                with faults.sshd_down(testbed, host):  # the other host makes steps
                    lost = command.wait_for(lambda event: event["event"] == "notice")
                back = command.wait_for(lambda event: event["event"] == "notice")
                with faults.dropping(testbed.hosts[0], rule), faults.dropping(host, rule):
                    time.sleep(CUT)
            run = command.end()
        progress = (lab.runs_dir / "unmoved/progress/worker-1.jsonl").read_text().splitlines()
        times = [json.loads(line)["t"] for line in progress]
    assert times[-1] - times[0] < -3000, "the clock was not set back"
    assert [(e["kind"], e["task"]) for e in (lost, back)] == [
        ("unreachable", "worker-1"),
        ("reachable", "worker-1"),
    ]
    kinds = [event["kind"] for event in run.events if event["event"] == "notice"]
    assert [kind for kind in kinds if "connected" in kind][:2] == ["disconnected", "connected"]
    assert not [event for event in run.events if event["event"] == "restart"]
    assert run.code == 0, run.result
    saved = lab.saved("unmoved")
    assert (saved["state"], saved["attempts"]) == ("completed", 1)
    assert weights(lab, "unmoved") == undisturbed
    assert ssh_processes(testbed) == []


@pytest.mark.soak
def test_the_follower_is_killed_at_random_moments(ssh_lab: Labs, testbed: Testbed) -> None:
    drawn = random.Random(SEED)
    lab = ssh_lab(worker=2)

    def start(job: str, by_playbook: bool) -> Following:
        # The first attempt crashes, so that the job is also restarted.
        arguments = ["--steps", "10", "--abort", "worker-1", "--attempts", "1"]
        more = {"train_job_max_restarts": 3, "train_job_restart_delay": 0.2}
        command, _ = started(lab, job, by_playbook, str(PLAIN), arguments=arguments, **more)
        while not (lab.runs_dir / job / "manifest.json").exists():
            assert command.process.poll() is None
            time.sleep(0.02)
        return command

    began = time.monotonic()
    whole = start("whole-life", by_playbook=False).end()
    assert (whole.code, lab.saved("whole-life")["attempts"]) == (0, 2), whole.result
    life = time.monotonic() - began
    for number in range(KILLS):
        job, moment, by_playbook = f"life-{number}", drawn.uniform(0, life), number % 2 == 0
        command = start(job, by_playbook)
        time.sleep(moment)
        command.kill()
        follower, _ = attached(lab, job, not by_playbook)
        run = follower.end()
        outcome = f"killed after {moment:.1f} of {life:.1f} s: {run.result['message']}"
        print(f"{number}: {outcome}", file=sys.stderr, flush=True)
        assert (run.code, run.result["state"]) == (0, "completed"), outcome
        assert [rank["task"] for rank in run.result["ranks"]] == ["worker-0", "worker-1"]
        assert lab.saved(job)["attempts"] in (2, 3), outcome  # one may not have been started
    assert ssh_processes(testbed) == []
