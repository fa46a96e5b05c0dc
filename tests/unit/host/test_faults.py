"""Faults of a drill: which ranks get one, and what they need."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.job_folders import lay_out
from tests.unit.host.conftest import Starter
from train.host import faults, processes
from train.host.call_types import CallError


def ask(root: Path, job: str = "drill-1", fault: str = faults.KILL) -> Any:
    about = {"root": str(root), "host": "a", "job": job, "fault": fault, "seconds": 5}
    return faults.inject_fault(about)


def test_only_jobs_of_a_drill_get_a_fault(tmp_path: Path, start: Starter) -> None:
    child = start()
    about: dict[str, Any] = {"pid": child.pid, "pid_start": processes.start_time(child.pid)}
    for job in ("night", "drill-1"):
        lay_out(tmp_path, job, "worker-0", host="a", phase="running", **about)
    with pytest.raises(CallError, match=r"^night is not a drill job$"):
        ask(tmp_path, "night")
    with pytest.raises(CallError, match=r"^this host has no rank of job drill-2$"):
        ask(tmp_path, "drill-2")
    assert child.poll() is None
    assert ask(tmp_path) == {"changed": True, "skipped_because": "", "delay": 0.0}
    assert child.wait(10) == -signal.SIGKILL


def test_a_fault_that_is_not_possible_is_left_out_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Starter
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    # Another process has the pid now.
    lay_out(tmp_path, "drill-1", "worker-0", host="a", pid=start().pid, pid_start=1)
    assert ask(tmp_path) == {"skipped_because": "the rank is not running"}
    root = {"skipped_because": "this fault needs root: set ansible_become for the hosts"}
    assert ask(tmp_path, fault=faults.PORT) == ask(tmp_path, fault=faults.SSH) == root
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(faults.FaultError, match="the rank has no port"):
        faults.inject(faults.PORT, {"phase": "running", "port": None}, 5.0)


def test_a_frozen_rank_is_stopped_with_its_children_and_not_ended() -> None:
    words = ["sh", "-c", "sleep 60 & echo $!; wait"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as script:
        assert script.stdout is not None
        pids = script.pid, int(script.stdout.readline())
        state: Any = {"pid": script.pid, "pid_start": processes.start_time(script.pid)}
        try:
            assert faults.inject(faults.FREEZE, state, 5.0) == 0.0
            for pid in pids:
                assert processes.wait_until(functools.partial(processes.is_stopped, pid), 10, 0.01)
            assert script.poll() is None
        finally:
            os.killpg(script.pid, signal.SIGKILL)


def test_rules_for_a_port_expire_by_themselves() -> None:
    ((nft, begin),), ((_, end),) = faults._nft("/usr/sbin/nft", 12345, 2.5)
    assert nft == "/usr/sbin/nft"
    assert "add element inet train_drill ports { 12345 timeout 3s }" in begin
    assert {"dport", "sport"} <= set(begin.split()), "both directions"
    assert end == "delete table inet train_drill"


def test_without_nft_and_iptables_the_programs_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(faults.FaultError, match=r"^this fault needs nft, or iptables"):
        faults._drop(12345, 5.0)
