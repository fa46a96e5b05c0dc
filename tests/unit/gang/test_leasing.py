"""Jobs that wait for the ports and GPUs of several machines, which are folders."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.bare_ranks import wait_until
from tests.support.lease_ranks import PORT, jobs, queue
from train.gang import leasing
from train.gang.errors import UnreachableError
from train.host import leases

HOSTS = ("h1", "h2", "h3")
ALL_OF_A = {host: ["a"] for host in HOSTS}


class Machines:
    """Machines that are simulated by folders."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.down: set[str] = set()
        self.said: list[str] = []

    def ask(self, host: str, request: dict[str, Any]) -> dict[str, Any]:
        if host in self.down:
            raise UnreachableError("no route to host")
        return leases.answer(request)

    def requests(self, job: str, made: float, hosts: tuple[str, ...] = HOSTS) -> dict[str, Any]:
        manifest: Any = {
            "created_at": made,
            "job": job,
            "attempt": 1,
            "hosts": {h: {"lease_dir": str(self.root / h), "gpus": []} for h in hosts},
            "ranks": [
                {"host": host, "task": f"worker-{place}", "port": 12345, "gpus": None}
                for place, host in enumerate(hosts)
            ],
        }
        return leasing.requests_of(manifest)

    def waiting(
        self, job: str, made: float, hosts: tuple[str, ...] = HOSTS, timeout: float = 60
    ) -> leasing.Waiting:
        """Return a job that waits for the port of some of them."""
        requests = self.requests(job, made, hosts)
        return leasing.Waiting(requests, self.ask, self.said.append, unreachable_timeout=timeout)

    def held(self) -> dict[str, list[str]]:
        return {host: jobs(self.root / host) for host in HOSTS}

    def queued(self) -> dict[str, set[str]]:
        held = self.held()
        return {host: {*queue(self.root / host)} - {*held[host]} for host in HOSTS}

    def end(self, job: str, made: float, hosts: tuple[str, ...] = HOSTS) -> None:
        for host, request in self.requests(job, made, hosts).items():
            self.ask(host, dict(request, do="give_back"))


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


def test_all_machines_are_taken_at_once(machines: Machines) -> None:
    machines.waiting("a", 1.0).take(0)
    assert machines.held() == ALL_OF_A
    assert machines.said == []
    began = time.monotonic()
    with pytest.raises(leasing.LeasingError) as raised:
        machines.waiting("b", 2.0, ("h2", "h3")).take(0.3)
    assert time.monotonic() - began < 10
    assert "h2: port 12345 is reserved for worker-1 of job a (" in str(raised.value)
    assert str(raised.value).endswith("; gave up after 0.3 s (train_job_queue_timeout)")
    assert sorted(line[:16] for line in machines.said) == ["h2: waiting: por", "h3: waiting: por"]
    assert machines.held() == ALL_OF_A
    assert not any(machines.queued().values()), "its place is gone"


@pytest.mark.parametrize("at_once", [False, True])
def test_jobs_run_one_after_another(machines: Machines, at_once: bool) -> None:
    """Jobs run in the order of their creation, or at the same time on free machines."""
    if not at_once:
        machines.waiting("running", 0.0).take(0)
    order, held = [], {}
    wanted = {"d": HOSTS[::-1], "b": HOSTS, "c": ("h3", "h1"), "e": ("h2", "h3")}

    def run(job: str) -> None:
        made = 5.0 if at_once else float(ord(job))
        machines.waiting(job, made, wanted[job]).take(60)
        held[job] = machines.held()
        order.append(job)
        time.sleep(0.1)
        machines.end(job, made, wanted[job])

    with ThreadPoolExecutor(len(wanted)) as pool:
        running = [pool.submit(run, job) for job in wanted]
        if not at_once:
            expected = {host: {job for job in wanted if host in wanted[job]} for host in HOSTS}
            wait_until(lambda: machines.queued() == expected, "the queues", timeout=20)
            assert order == []
            machines.end("running", 0.0)
        for one in running:
            one.result()  # a deadlock would last for 60 s
    assert (sorted(order) if at_once else order) == ["b", "c", "d", "e"]
    for job, hosts in wanted.items():
        assert all(held[job][host] == [job] for host in hosts)
    assert not any(machines.held().values())


def test_a_machine_that_does_not_answer(machines: Machines) -> None:
    machines.down.add("h2")
    began = time.monotonic()
    with pytest.raises(leasing.LeasingError, match="h2 is unreachable: no route to host"):
        machines.waiting("a", 1.0, timeout=0.3).take(60)
    assert time.monotonic() - began < 20
    assert not any(machines.held().values())

    back = threading.Timer(0.3, machines.down.clear)
    back.start()
    machines.waiting("a", 1.0).take(30)
    back.join()
    assert machines.held() == ALL_OF_A


def test_a_machine_without_leases(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs do not wait for a machine whose folder of leases cannot be used."""
    monkeypatch.setattr(leases, "_PAUSES", (0.0,))
    (machines.root / "h3").write_text("no folder")
    machines.waiting("a", 1.0).take(60)
    assert machines.held() == {"h1": ["a"], "h2": ["a"], "h3": []}


def test_what_a_machine_answers_steers_no_terminal() -> None:
    answers: list[Any] = [
        {"blockers": ["x\x1b]0;owned\x07", "y" * 10_000, ["z"]]},
        {"blockers": 3},
        {},
    ]
    said: list[str] = []
    requests = {"h1": {"resources": PORT}}
    leasing.Waiting(requests, lambda host, request: answers.pop(0), said.append).take(60)
    assert said == [f"h1: waiting: x?]0;owned?; {'y' * 300}; ['z']", "h1: no longer waiting"]


def test_a_job_that_wants_nothing_waits_for_nobody() -> None:
    leasing.Waiting({"h1": {"resources": {}}}, lambda *_: pytest.fail("asked")).take(0)


def test_a_job_that_is_stopped_while_it_waits_ends(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leasing, "POLL_S", 0.5)
    machines.waiting("running", 0.0).take(0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(machines.waiting("next", 1.0).take, 60)
        wait_until(lambda: machines.queued()["h2"] == {"next"}, "the queue", timeout=20)
        assert leases.stop_job(str(machines.root / "h2"), "next", "was stopped by anna") == 1
        with pytest.raises(leasing.JobStoppedError, match=r"^was stopped by anna$"):
            waiting.result(timeout=20)
    assert not any(machines.queued().values())
    assert all(held == ["running"] for held in machines.held().values())
    machines.end("running", 0.0)
    assert leases.stop_job(str(machines.root / "h2"), "next", "again") == 0
