"""The calls that the launcher makes on hosts, and their results."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import run
from tests.unit.host.conftest import lay_out_on
from train.host import (
    calls,
    leases,
    rank_files,
)


def test_each_call_has_a_function_of_its_own() -> None:
    functions = [calls.find(call) for call in calls.CALLS]
    assert all(callable(function) and function.__doc__ for function in functions)
    assert len(set(functions)) == len(functions)


def test_a_host_imports_what_the_call_needs() -> None:
    script = """
import sys
from train.host import calls
names = ("checkup", "links", "staging", "tensorboard")
calls.find("rank_stages")
print(*[name for name in names if "train.host." + name in sys.modules])
"""
    assert run(sys.executable, "-c", script).stdout == "staging\n"


@pytest.mark.parametrize(("attempt", "left"), [(1, True), (2, False)])
def test_a_stop_of_an_attempt(rank_dir: Path, chief: Any, attempt: int, left: bool) -> None:
    """A stop of an earlier attempt does not stop a later one."""
    path = rank_dir / rank_files.RANK_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "attempt": 2}))
    about = {"root": str(rank_dir.parents[2]), "job": "night", "host": "a", "check": False}
    report = calls.stop({**about, "attempt": attempt, "grace": 0, "reason": "enough"})
    assert report["stop_report"]["was"] == ("absent" if left else "running")
    assert report["changed"] == (not left)
    assert (chief.poll() is None) == left


def test_what_a_job_without_any_folder_has_taken_is_given_back(tmp_path: Path) -> None:
    folder = str(tmp_path / "leases")
    leases.take(folder, {"port/1": "port 1"}, leases.Holder(1.0, "night", "worker-0", 1))
    about: dict[str, Any] = {"root": str(tmp_path), "job": "night", "host": "a", "check": False}
    about.update(lease_dir=folder, permanent=True, grace=0, reason="x")
    done = calls.stop(about)
    assert (done["stop_report"]["was"], done["stop_report"]["given_back"]) == ("absent", 1)
    assert done["changed"]
    assert leases.holders(folder) == []
    assert not calls.stop(about)["changed"]


def test_all_ranks_of_a_host_are_reported_and_stopped(tmp_path: Path) -> None:
    for index in (0, 1):
        lay_out_on(tmp_path, f"worker-{index}", f"10.0.0.{index}")
    given = {"root": str(tmp_path), "job": "night", "host": "x", "beside": ["x"], "names": ["x"]}
    seen = calls.state(given)
    tasks = [one["rank"]["task"] for one in (seen, *seen["more"])]
    assert tasks == ["worker-0", "worker-1"]
    done = calls.stop({**given, "check": False, "permanent": True, "grace": 0, "reason": "x"})
    assert [one["was"] for one in (done["stop_report"], *done["more"])] == ["completed"] * 2
    assert (tmp_path / "jobs/night" / rank_files.STOP_REQUEST_FILE).exists()
    assert not done["changed"]


def test_the_hosts_of_a_machine_share_its_ranks(tmp_path: Path) -> None:
    """Ranks that were started under other names are stopped by one host each, and only once."""
    for index in range(3):
        lay_out_on(tmp_path, f"worker-{index}", f"10.0.0.{index}")
    hosts = {name: {"root": str(tmp_path), "grace": 0} for name in ("x", "y")}
    given = {"job": "night", "beside": ["x", "y"], "names": ["x", "y"], "hosts": hosts}
    seen = calls.states(given)["hosts"].values()
    tasks = [one["rank"]["task"] for found in seen for one in (found, *found["more"])]
    assert sorted(tasks) == ["worker-0", "worker-1", "worker-2"]
    done = calls.stop_all({**given, "check": False, "permanent": True, "reason": "x"})["hosts"]
    stopped = [one for found in done.values() for one in (found["stop_report"], *found["more"])]
    assert [report["was"] for report in stopped] == ["completed"] * 3
