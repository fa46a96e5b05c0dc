"""``python -m train doctor --only pairs,collectives``: what TensorFlow reaches, and its page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.browser import open_page
from tests.support.job_folders import check
from tests.support.jobs import train
from tests.support.lab import Lab, write_local_inventory


@pytest.mark.tensorflow
def test_sums_and_trainings_are_timed_and_nothing_stays(tf_python: str, tmp_path: Path) -> None:
    inventory = write_local_inventory(tmp_path / "inventory", {"worker": 2})
    root = {"train_job_root": str(tmp_path / "root"), "train_job_python": tf_python}
    lab = Lab(inventory, tmp_path / "runs", root)
    done = train(*lab.words("doctor", "--only", "pairs,collectives", "--json"))
    examined = json.loads(done.stdout)
    check("doctor", examined)
    found = examined["scaling"]
    assert {"0.1", "1", "10"} <= set(found["all_reduce_ms"])
    assert found["rate_mb"] > 0
    assert [one["hosts"] for one in found["trained"]] == [1, 2]
    alone, both = found["trained"]
    assert alone["step_ms"] == pytest.approx(alone["predicted_ms"])
    assert both["predicted_ms"] > alone["predicted_ms"]
    assert both["exchange_ms"] > alone["exchange_ms"]
    assert set(found["efficiency"]) >= {"1000000", "100000000"}
    assert list((tmp_path / "root/jobs").iterdir()) == []
    left = {path.name for path in (tmp_path / "runs").iterdir()}
    assert left == {"doctor"}
    # With maps of the paths, and the curves of steps and efficiency.
    opened = open_page(tmp_path / "runs/doctor/report.html", "doctor", tmp_path)
    assert opened.console == []
    assert opened.requests == []
    assert opened.count("plot-container") == 5
    assert "mnist-cnn, 64 examples a host, 2 hosts" in opened.html
