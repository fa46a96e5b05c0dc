"""Ranks in separate processes that acquire and hold leases, for tests of leases."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from train.host import leases

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload([__name__])
PORT = {"port/12345": "port 12345"}


def holder(job: str, made: float = 1.0, *, task: str = "worker-0", attempt: int = 1) -> Any:
    """Return a rank of ``job``, created at ``made``, which determines its place in the queue."""
    return leases.Holder(made, job, task, attempt)


def spec_of(folder: Path, who: leases.Holder, resources: dict[str, str]) -> Any:
    """Return the fields of ``rank.json`` for leases, as ``stage`` writes them."""
    noted = {"created_at": who.created_at, "resources": resources, "folder": str(folder)}
    return {"job": who.job, "task": who.task, "attempt": who.attempt, "leases": noted}


def _serve(pipe: Connection) -> None:
    """Execute requests in the process of a supervisor."""
    held: Any = None
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            return
        answer = None
        try:
            if name == "held":
                held = leases.Held(*arguments)
            elif name == "due":
                held._due = 0.0
            elif name == "setuid":
                leases.entries("/nowhere")  # load modules now: that user may lack access
                os.setuid(*arguments)
                sys.executable = "/usr/bin/python3"
            else:
                source = held if name in ("confirm", "renew", "release") else leases
                answer = getattr(source, name)(*arguments)
            pipe.send(("ok", answer))
        except (leases.LeaseError, leases.HeldError) as error:
            pipe.send(("refused", str(error)))


class Supervisor:
    """A process that can be killed."""

    def __init__(self) -> None:
        self._pipe, other = _SERVER.Pipe()
        self.process = _SERVER.Process(target=_serve, args=(other,), daemon=True)
        self.process.start()
        other.close()

    def ask(self, name: str, *arguments: Any) -> Any:
        """Call a function of host.leases in it; return the result or the refusal."""
        self._pipe.send((name, arguments))
        assert self._pipe.poll(30), f"{name} does not come to an end"
        return self._pipe.recv()[1]

    def starts(self, folder: Path, who: leases.Holder, resources: dict[str, str] = PORT) -> Any:
        """Acquire leases and hold them, as a rank does; return None, or the refusal."""
        refused = self.ask("take", str(folder), resources, who)
        return refused or self.confirms(folder, who, resources)

    def confirms(self, folder: Path, who: leases.Holder, resources: dict[str, str] = PORT) -> Any:
        """Hold the acquired leases; return None, or the refusal."""
        self.ask("held", spec_of(folder, who, resources))
        return self.ask("confirm")

    def renews(self) -> None:
        """Check at once that its file exists."""
        self.ask("due")
        self.ask("renew")

    def kill(self) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()


Starter = Callable[[], Supervisor]


@pytest.fixture
def supervisor() -> Iterator[Starter]:
    """Yield a function that creates supervisors, and end all of them afterwards."""
    made: list[Supervisor] = []

    def make() -> Supervisor:
        made.append(Supervisor())
        return made[-1]

    yield make
    for one in made:
        one.process.kill()
        one.process.join()


def jobs(folder: Path) -> list[str]:
    """Return the jobs that hold leases, once for each resource."""
    return [lease["job"] for lease in leases.holders(str(folder))]


def queue(folder: Path) -> list[str]:
    found = leases.entries(str(folder))
    return [entry["job"] for entry in found if entry["state"] == leases.QUEUED]
