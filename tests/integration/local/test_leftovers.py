"""All processes that a script has started end with it, and no other processes do."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.data.scripts.leaver.main import WAYS
from tests.support import bare_ranks
from tests.support.lab import REPOSITORY
from train.host import end_causes, processes, rank_files, ranks, records
from train.host.records import StopReport

SCRIPT = REPOSITORY / "tests/data/scripts/leaver/main.py"


@dataclass
class Rank:
    """A rank that leaves processes behind in one of many ways."""

    folder: Path
    mark: int

    @property
    def left(self) -> list[str]:
        return bare_ranks.marked()[self.mark]

    @property
    def beats(self) -> int:
        """The number of bytes written by processes that are too short-lived to be listed."""
        path = self.folder / "beats"
        return path.stat().st_size if path.exists() else 0

    def is_ready(self, left: list[str]) -> bool:
        """Return whether the script is ready and its supervisor has listed all processes ``left``.

        Processes that are too short-lived to be listed are an exception.
        """
        state = bare_ranks.state(self.folder)
        log = (self.folder / rank_files.LOG_FILE).read_text()
        if state.get("phase") != records.RUNNING or "ready" not in log:
            return False
        keepers = {state["supervisor_pid"], state["watchdog_pid"]}
        pids = {int(found.split()[0]) for found in left} - keepers
        with contextlib.suppress(ProcessLookupError):
            return {str(os.getsid(pid)) for pid in pids} <= {*state["sessions"]}
        return False


@dataclass
class Machine:
    """Ranks side by side, one for each way."""

    folder: Path
    marks: int = field(default_factory=lambda: random.randrange(100_000, 700_000, 100))
    ranks: dict[str, Rank] = field(default_factory=dict)

    def start(self, end: str, *ways: str) -> None:
        for way in ways:
            folder = bare_ranks.stage(self.folder, f"worker-{len(self.ranks)}", SCRIPT, way, end)
            self.ranks[way] = Rank(folder, self.marks + len(self.ranks))
            bare_ranks.start(folder, self.ranks[way].mark)

    def wait_until_ready(self) -> None:
        """Wait until all ranks have left processes behind."""

        def have_left() -> bool:
            marked = bare_ranks.marked()
            for way, rank in self.ranks.items():
                # Watchdog, supervisor, script, and the processes that it has started.
                left, churns = marked[rank.mark], way.startswith("churn")
                if len(left) < (3 if churns else 4) or not rank.is_ready([] if churns else left):
                    return False
            return True

        bare_ranks.wait_until(have_left, self.ranks, timeout=120)

    def stop(self) -> dict[str, StopReport]:
        """Stop all ranks at once, and return the reports."""
        with ThreadPoolExecutor(len(self.ranks)) as pool:
            folders = [str(rank.folder) for rank in self.ranks.values()]
            reports = pool.map(lambda folder: ranks.stop(folder, 1.0, "enough"), folders)
        return dict(zip(self.ranks, reports, strict=True))

    @property
    def left(self) -> dict[str, list[str]]:
        """Return the leftovers, by the way in which the job ended."""
        beats = {way: rank.beats for way, rank in self.ranks.items()}
        marked = bare_ranks.marked()
        left = {way: marked[rank.mark] for way, rank in self.ranks.items()}
        time.sleep(0.2)
        beating = {way for way, rank in self.ranks.items() if rank.beats > beats[way]}
        return {way: found for way, found in left.items() if found or way in beating}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """Yield ranks, next to another job's rank and a user's process, which must both continue."""
    own = subprocess.Popen(["sleep", "600"], start_new_session=True)
    other = Machine(tmp_path / "other")
    other.start("stay", "session and empty environment")
    other.wait_until_ready()
    beside = next(iter(other.ranks.values()))
    before = beside.left
    made = Machine(tmp_path / "made")
    try:
        yield made
        assert own.poll() is None
        assert beside.left == before
    finally:
        own.kill()
        own.wait()
        for rank in [beside, *made.ranks.values()]:
            for found in rank.left:
                processes.send(int(found.split()[0]), signal.SIGKILL)


def test_nothing_outlives_a_script_that_ends(machine: Machine) -> None:
    ends_well, fails = [*WAYS][::2], [*WAYS][1::2]
    machine.start("exit", *ends_well)
    machine.start("fail", *fails)
    phases = {way: bare_ranks.end(rank.folder)["phase"] for way, rank in machine.ranks.items()}
    assert {phases[way] for way in ends_well} == {records.COMPLETED}
    assert {phases[way] for way in fails} == {records.FAILED}
    bare_ranks.wait_until(lambda: not machine.left, machine.left, timeout=5)  # the watchdogs


def test_nothing_outlives_a_stop(machine: Machine) -> None:
    machine.start("stay", *WAYS)
    machine.wait_until_ready()
    for way, report in machine.stop().items():
        assert (report["was"], report["phase"]) == (records.RUNNING, records.STOPPED), way
        assert report["remaining"] == [], way
        assert report["ended"] >= (1 if way.startswith("churn") else 2), way
    assert machine.left == {}


def test_nothing_outlives_a_supervisor_that_is_killed(machine: Machine) -> None:
    machine.start("stay", *WAYS)
    machine.wait_until_ready()
    for rank in machine.ranks.values():
        os.kill(bare_ranks.state(rank.folder)["supervisor_pid"], signal.SIGKILL)
    bare_ranks.wait_until(lambda: not machine.left, "what is left", timeout=20)
    for way, rank in machine.ranks.items():
        assert bare_ranks.state(rank.folder)["cause"] == end_causes.SUPERVISOR, way


@pytest.mark.soak
def test_a_stop_finds_what_both_keepers_left(machine: Machine) -> None:
    # A chain of short processes outside of any tree cannot be caught.
    ways = [way for way in WAYS if not way.startswith("churn")]
    machine.start("stay", *ways)
    machine.wait_until_ready()
    for rank in machine.ranks.values():
        about = bare_ranks.state(rank.folder)
        os.kill(about["watchdog_pid"], signal.SIGKILL)
        os.kill(about["supervisor_pid"], signal.SIGKILL)
    # The kernel ends processes that have lost their terminal.
    assert set(machine.left) >= {*ways} - {"terminal"}, "there is nothing to end"
    reports = machine.stop()
    assert [way for way, report in reports.items() if report["remaining"]] == []
    assert machine.left == {}
