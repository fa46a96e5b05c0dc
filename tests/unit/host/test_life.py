"""The activity of a script that has not started yet."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from train.host.life import Life, Sample, sample

AT_REST = Sample(pids={7}, cpu_seconds=3.0, read=100, written=10)


@pytest.mark.parametrize(
    ("change", "idle"),
    [
        ({}, 20.0),
        ({"cpu_seconds": 3.05}, 20.0),  # the script only polls
        ({"cpu_seconds": 4.0}, 0.0),
        ({"read": 101}, 0.0),
        ({"written": 11}, 0.0),
        ({"pids": {7, 8}}, 0.0),
    ],
)
def test_signs_of_life(change: dict[str, float], idle: float) -> None:
    life = Life(0.0)
    life.add(0.0, AT_REST)
    life.add(10.0, AT_REST)
    assert life.idle(10.0) == 10.0
    life.add(20.0, AT_REST._replace(**change))  # type: ignore[arg-type]
    assert life.idle(20.0) == idle


READY = "print(1, flush=True)"


@pytest.mark.parametrize(
    ("script", "alive"),
    [
        (f"{READY}\nwhile True: pass", True),
        (
            "import subprocess, sys\n"
            f"subprocess.run([sys.executable, '-S', '-c', '{READY}\\nwhile True: pass'])",
            True,
        ),
        (f"import time\n{READY}\nwhile True: open({{file!r}}).read(); time.sleep(0.02)", True),
        (f"import time; {READY}; time.sleep(60)", False),
    ],
)
def test_what_a_real_script_does(tmp_path: Path, script: str, alive: bool) -> None:
    file = tmp_path / "data"
    file.write_text("data")
    # A process in between, because the descendants of a supervisor are sampled.
    words = [sys.executable, "-S", "-c", script.format(file=str(file))]
    code = f"import subprocess; subprocess.run({words!r})"
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.2)  # its start is over
        life, times = Life(0.0), []
        for _ in range(3):
            times.append(time.monotonic())
            life.add(times[-1], sample(process.pid, 0))
            time.sleep(0.2)
        assert life.idle(times[-1]) == (0.0 if alive else times[-1] - times[0])
    finally:
        os.killpg(process.pid, 9)
        process.communicate()
