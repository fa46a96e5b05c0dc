"""Fixtures of the tests of the watch."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.gang.watch.made_up_gang import Hosts, Make
from tests.unit.gang.watch.real_folders import Machine
from train.gang.watch import polling, verdict
from train.gang.watch.fetched import FetchedFile
from train.gang.watch.follow import FollowedGang
from train.gang.watch.polling import Limits
from train.gang.watch.views import Target


@pytest.fixture
def gang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setattr(verdict, "ROOT_CAUSE_WAIT", 0.5)
    monkeypatch.setattr(verdict, "WORDS_WAIT", 1.0)
    monkeypatch.setattr(polling, "_BACKOFF", 0.05)
    monkeypatch.setattr(polling.Ranks, "longest_backoff", 0.1)

    def make(
        hosts: Hosts, peers: Any = None, probe: Any = None, metrics_dir: str = "", **limits: Any
    ) -> FollowedGang:
        beside = ("ps", "evaluator", "worker") if "ps-0" in hosts.states else ("evaluator",)
        targets = [
            Target(f"host-of-{task}", task, f"/x/{task}", "python3", task, task.startswith(beside))
            for task in hosts.states
        ]
        usual = {"start_timeout": 5.0, "unreachable_timeout": 5.0, "interval": 0.0}
        usual |= {"log_limit": 1 << 28, "straggler_factor": 1.5}
        given = Limits(**{**usual, "non_training_exit_timeout": 0.5, **limits})
        run_dir, about = tmp_path / "run", (peers or {}, probe, metrics_dir)
        return FollowedGang(targets, run_dir, hosts.poll, lambda line: None, given, *about)

    return make


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the first three writes."""
    monkeypatch.setattr(polling, "_DISK_PAUSE", 0.05)
    append, left = FetchedFile.append, iter(range(3))

    def full(self: FetchedFile, data: bytes, end: int) -> None:
        if next(left, None) is not None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(self, data, end)

    monkeypatch.setattr(FetchedFile, "append", full)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)
