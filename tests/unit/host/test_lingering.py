"""What keeps a process from exiting: threads and children."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.host.conftest import Starter
from train.host import lingering, processes


def test_a_process_that_has_only_its_main_thread(start: Starter) -> None:
    assert lingering.describe(start().pid) == ["its main thread"]


def test_threads_and_children_are_named() -> None:
    code = (
        "import subprocess, sys, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "child = subprocess.Popen(['sleep', '61'])\n"
        "print(child.pid, flush=True)\n"
    )
    words = [sys.executable, "-S", "-c", code]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        processes.wait_until(lambda: processes.command(child) == "sleep 61", 10, 0.01)
        found = lingering.describe(process.pid)
        os.kill(child, 9)
        process.kill()
    assert found == ["1 other thread", f"process {child} (sleep 61)"]


def test_names_of_threads_are_told_but_for_those_of_tensorflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Starter
) -> None:
    """As Python 3.14 and later pass them to the kernel."""
    pid = start().pid
    names = {
        pid: "python",
        11: "loader",
        12: "tf_Compute",
        13: "python",
        14: "python",
        15: "grpc_x",
    }
    for thread, name in names.items():
        folder = tmp_path / str(pid) / "task" / str(thread)
        folder.mkdir(parents=True)
        (folder / "comm").write_text(f"{name}\n")
    (tmp_path / str(pid) / "comm").write_text("python\n")
    monkeypatch.setattr(processes, "PROC", str(tmp_path))
    monkeypatch.setattr(processes, "snapshot", dict)
    assert lingering.describe(pid) == ["thread 'loader'", "2 other threads"]


def test_a_process_that_has_ended_is_described_without_an_error(start: Starter) -> None:
    child = start()
    child.kill()
    child.wait()
    assert lingering.describe(child.pid) == ["its main thread"]
