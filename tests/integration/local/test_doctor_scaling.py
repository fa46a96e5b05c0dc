"""``python -m train doctor --only pairs,collectives``: TensorFlow's speed, and the page."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from tests.support.browser import open_page
from tests.support.job_folders import check
from tests.support.jobs import train
from tests.support.lab import Command, Lab
from train.host import processes, rank_environment

pytestmark = [pytest.mark.tensorflow, pytest.mark.soak]

#: The message if other tests have jobs on this machine, and the seconds to wait for these.
BESIDE, PATIENCE = 'skipping the part "collectives" because of running jobs', 300.0


def ranks_of(lab: Lab) -> list[int]:
    """Return the processes of the ranks of any job."""
    marked = processes.marked(rank_environment.ENV_RANK_DIR)
    return [pid for pid, rank_dir in marked if rank_dir.startswith(str(lab.root))]


def test_an_interrupt_leaves_nothing(lab: Lab) -> None:
    end = time.monotonic() + PATIENCE
    words = lab.words("doctor", "--only", "collectives", "--json")
    command = Command(*words)
    while not ranks_of(lab):
        if command.process.poll() is not None:
            assert BESIDE in command.end().error
            command = Command(*words)
        assert time.monotonic() < end
        time.sleep(0.1)
    command.process.send_signal(signal.SIGTERM)
    done = command.end(60)
    assert done.code == 130, done.error
    assert done.events[-1].get("scaling") is None
    assert ranks_of(lab) == []
    assert list((lab.root / "jobs").iterdir()) == []


def test_sums_and_trainings_are_timed_and_nothing_stays(lab: Lab, tmp_path: Path) -> None:
    end = time.monotonic() + PATIENCE
    words = lab.words("doctor", "--only", "pairs,collectives", "--batch", "8", "--json")
    found = None
    while not found:
        done = train(*words)
        examined = json.loads(done.stdout)
        check("doctor", examined)
        found = examined["scaling"]
        assert found or (BESIDE in done.stderr and time.monotonic() < end), done.stderr
    assert {"0.1", "1", "10"} <= set(found["all_reduce_ms"])
    assert found["rate_mb"] > 0
    assert [one["hosts"] for one in found["trained"]] == [1, 2]
    alone, both = found["trained"]
    assert alone["step_ms"] == pytest.approx(alone["predicted_ms"])
    assert both["predicted_ms"] > alone["predicted_ms"]
    assert both["exchange_ms"] > alone["exchange_ms"]
    assert set(found["efficiency"]) >= {"1000000", "100000000"}
    assert list((lab.root / "jobs").iterdir()) == []
    assert [path.name for path in lab.runs_dir.iterdir()] == ["doctor"]
    # The page has maps of the paths, and curves of steps and efficiency.
    opened = open_page(lab.runs_dir / "doctor/report.html", "doctor", tmp_path)
    assert opened.console == []
    assert opened.requests == []
    assert opened.count("plot-container") == 5
    assert "mnist-cnn, 8 examples per host, 2 hosts" in opened.html
