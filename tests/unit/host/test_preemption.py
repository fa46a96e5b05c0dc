"""Notices of preemption in files, how long they apply, and what a supervisor does after one."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support import bare_ranks
from tests.support.job_folders import lay_out
from train.host import preemption, processes, rank_files, ranks

#: Saves on SIGTERM, like a training script.
SAVING = """
import signal, sys, time

def save(*_):
    with open(sys.argv[1], "w") as stream:
        stream.write("saved")
    sys.exit(143)

signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("", None),
        ("90\n", 90.0),
        *((wrong, None) for wrong in ("soon", "-5", "1e3", "nan", "9" * 100, "\x00", "²")),
    ],
)
def test_a_file_is_a_notice_whatever_it_contains(
    tmp_path: Path, text: str, seconds: float | None
) -> None:
    assert preemption.from_file(str(tmp_path)) is None
    (tmp_path / rank_files.PREEMPT_FILE).write_text(text)
    found = preemption.from_file(str(tmp_path))
    assert found is not None
    assert (found["source"], found.get("seconds")) == ("file", seconds)


def test_a_special_file_is_a_notice_and_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / rank_files.PREEMPT_FILE)
    found = preemption.from_file(str(tmp_path))
    assert found is not None
    assert "seconds" not in found


def test_ranks_save_within_the_notice() -> None:
    noticed: Any = {"source": "gcp", "at": 1000.0, "seconds": 30.0}
    left = [preemption.seconds_left(noticed, now) for now in (990.0, 1000.0, 1010.0, 2000.0)]
    assert left == [27.0, 27.0, 17.0, 1.0]
    assert preemption.seconds_left({"source": "file", "at": 1000.0}, 1000.0) is None
    assert preemption.patience(noticed) < 30.0


HERE: dict[str, Any] = {"boot_id": processes.boot_id(), "init_start": processes.start_time(1)}


@pytest.mark.parametrize(
    ("age", "seconds", "about", "applies"),
    [
        (5, {}, HERE, True),
        (40, {}, HERE, True),
        (60, {}, HERE, False),
        (60, {"seconds": 120.0}, HERE, True),
        (5, {}, {**HERE, "boot_id": "another"}, False),
        (5, {}, {**HERE, "init_start": 1}, False),
    ],
)
def test_a_notice_applies_until_a_reboot_or_some_time_after_its_end(
    tmp_path: Path, age: float, seconds: dict[str, float], about: dict[str, Any], applies: bool
) -> None:
    noticed = {"source": "file", "at": time.time() - age, **seconds}
    rank_dir = lay_out(tmp_path, "night", "worker-0", host="a", preemption=noticed, **about)
    lay_out(tmp_path, "night", "worker-1", host="b", **HERE)
    assert bool(preemption.of_job(str(tmp_path), "night")) == applies
    # A later attempt, on a host that has the same home, moves the state.
    ranks.set_aside(str(rank_dir))
    assert bool(preemption.of_job(str(tmp_path), "night")) == applies
    assert preemption.of_job(str(tmp_path), "other") is None


@pytest.fixture
def script(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    path = folder / "main.py"
    path.write_text(SAVING)
    return path


def started(tmp_path: Path, script: Path, **fields: Any) -> tuple[Path, Path]:
    """Start a rank without a control node; return its folder, and the file in which it saves."""
    saved = tmp_path / "saved"
    given = {"grace": 30.0, "framework": "none", **fields}
    rank_dir = bare_ranks.stage(tmp_path, "worker-0", script, str(saved), **given)
    bare_ranks.start(rank_dir)
    log = rank_dir / rank_files.LOG_FILE
    bare_ranks.wait_until(lambda: log.exists() and log.read_text() == "ready\n", "the script")
    return rank_dir, saved


def test_a_rank_saves_after_a_notice_if_no_control_node_follows_it(
    tmp_path: Path, script: Path
) -> None:
    rank_dir, saved = started(tmp_path, script)
    (rank_dir / rank_files.PREEMPT_FILE).write_text("3")
    ended = bare_ranks.end(rank_dir)
    assert (ended["phase"], ended["cause"]) == ("stopped", "preempted")
    assert ended["preemption"]["seconds"] == 3.0
    assert saved.read_text() == "saved"


def test_sigusr1_is_a_notice_and_does_not_end_the_script(tmp_path: Path, script: Path) -> None:
    rank_dir, saved = started(tmp_path, script)
    about = bare_ranks.state(rank_dir)
    for pid in (about["pid"], about["supervisor_pid"]):  # a batch system signals all processes
        os.kill(pid, signal.SIGUSR1)
    bare_ranks.wait_until(lambda: "preemption" in bare_ranks.state(rank_dir), "the notice")
    noticed = bare_ranks.state(rank_dir)
    assert (noticed["preemption"]["source"], noticed["phase"]) == ("signal", "running")
    assert not saved.exists(), "the control node is waited for"
    report = ranks.stop(str(rank_dir), 30.0, "was stopped because the job leaves a")
    assert report["phase"] == "stopped"
    assert bare_ranks.state(rank_dir)["reason"] == "was stopped because the job leaves a"
    assert saved.read_text() == "saved"


class _Server(BaseHTTPRequestHandler):
    answer = b"FALSE"

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.answer)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(_Server, "answer", b"FALSE")
    server = HTTPServer(("127.0.0.1", 0), _Server)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/notice"
    server.shutdown()
    server.server_close()


def test_a_rank_saves_if_its_host_shuts_down_before_the_next_request(
    tmp_path: Path, script: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank_dir, saved = started(tmp_path, script, preemption=url)
    monkeypatch.setattr(_Server, "answer", b"TRUE")
    os.kill(bare_ranks.state(rank_dir)["supervisor_pid"], signal.SIGTERM)
    ended = bare_ranks.end(rank_dir)
    assert (ended["phase"], ended["cause"]) == ("stopped", "preempted")
    assert ended["preemption"]["source"] == "url"
    assert saved.read_text() == "saved"


@pytest.mark.parametrize("answer", [b"FALSE", b"<html>TRUE</html>"])
def test_a_rank_that_is_signaled_without_a_notice_is_stopped(
    tmp_path: Path, script: Path, url: str, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank_dir, _ = started(tmp_path, script, preemption=url)
    monkeypatch.setattr(_Server, "answer", answer)
    os.kill(bare_ranks.state(rank_dir)["supervisor_pid"], signal.SIGTERM)
    ended = bare_ranks.end(rank_dir)
    assert (ended["cause"], ended["reason"]) == ("stopped", "its supervisor received SIGTERM")
    assert "preemption" not in json.loads((rank_dir / rank_files.STATE_FILE).read_text())
