"""The watch as an action: what it fetches and what it keeps of an earlier one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.gang.watch.made_up_gang import LINES, Hosts
from tests.unit.gang.watch.real_folders import MIB, Machine, lines
from train.gang.watch import watching
from train.gang.watch.polling import Limits
from train.gang.watch.views import Target


def test_to_attach_to_a_job_that_is_over_keeps_its_doubts() -> None:
    first: Any = {"state": "completed", "doubts": ["it was cut off", "NaN"]}
    again: Any = {"state": "completed", "doubts": ["NaN"]}
    assert watching._all_doubts(first, again) == first["doubts"]
    failed: Any = {**first, "state": "failed"}
    assert watching._all_doubts(failed, again) == ["NaN"]
    assert watching._all_doubts(None, again) == ["NaN"]


@pytest.mark.usefixtures("full_disk")
def test_logs_that_cannot_be_written_are_fetched_again_also_after_the_end(tmp_path: Path) -> None:
    target = Target("host-a", "worker-0", "/x/worker-0", "python3", "worker-0", False)
    given = Limits(5.0, 5.0, 0.0, log_limit=1 << 28, non_training_exit_timeout=0.5)
    hosts = Hosts(worker_0=[{"phase": "completed", "log": LINES}])
    for _ in range(2):  # the folder is free again
        logs = watching._Logs([target], tmp_path, hosts.poll, given, "busy")
        assert logs.fetch([0], True) == {"phases": {"worker-0": "completed"}, "lost": {}}
        assert (tmp_path / "logs/worker-0.log").read_text() == LINES


def test_logs_shows_a_copy_with_a_gap(machine: Machine) -> None:
    data = lines(200_000)
    machine.rank(data)
    given = Limits(5.0, 5.0, 0.0, log_limit=MIB)
    logs = watching._Logs(machine.targets, machine.run_dir, machine.poll, given, "busy")
    assert logs.fetch([0], growing=False)["lost"] == {}
    copy = machine.copy()
    assert copy.count(b"omitted here") == 1
    assert data.endswith(copy.partition(b" ...\n")[2])
    begin = len(data) - 500
    logs = watching._Logs(machine.targets, machine.run_dir, machine.poll, given, "busy")
    logs.fetch([begin], growing=False)
    assert machine.copy() == data[begin:]
