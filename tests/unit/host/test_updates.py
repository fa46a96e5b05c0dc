"""A host's answers with its ranks' files: bounded, without holes, byte for byte."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import REPOSITORY
from train.host import processes, rank_files, records, tail, updates

START = {"phase": "", "frozen": False, "log": 0, "progress": 0, "supervisor": 0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return rank(tmp_path / "worker-0")


def rank(folder: Path, **state: Any) -> Path:
    folder.mkdir(exist_ok=True)
    noted = {"phase": records.COMPLETED, **state}
    (folder / rank_files.STATE_FILE).write_text(json.dumps(noted))
    return folder


def ask(*folders: Path, **cursor: Any) -> list[dict[str, Any]]:
    cursors = {str(folder): {**START, **cursor} for folder in folders}
    return list(updates.wait_for_updates(cursors, 0.0, 0.0).values())


def fetch(folder: Path, answer: int) -> tuple[bytes, int]:
    """Return a whole log, fetched piece by piece, and the number of pieces."""
    found, pieces, cursor = b"", 0, {**START, "answer": answer}
    while True:
        (update,) = ask(folder, **cursor)
        data = update["log"].encode("utf-8", "surrogateescape")
        assert len(data) <= answer
        found += data
        pieces += 1
        cursor = {**update["cursor"], "answer": answer}
        if not update["more"]:
            return found, pieces


def test_a_log_comes_in_pieces_whatever_its_bytes(folder: Path) -> None:
    data = bytes(range(256)) * 300 + "é€𝄞".encode() * 9_000 + b"no newline" * 5_000
    (folder / rank_files.LOG_FILE).write_bytes(data)
    found, pieces = fetch(folder, 10_000)
    assert found == data
    assert pieces == -(-len(data) // 10_000)


def test_the_files_of_an_answer_share_its_bytes(tmp_path: Path) -> None:
    folders = [rank(tmp_path / f"worker-{index}") for index in range(3)]
    for folder in folders:
        (folder / rank_files.LOG_FILE).write_bytes(b"x" * 1_000_000)
    (folders[0] / rank_files.PROGRESS_FILE).write_bytes(b"y" * 1_000_000)
    found = ask(*folders, answer=400_000)
    assert [len(update["log"]) for update in found] == [100_000] * 3
    assert [len(update["progress"]) for update in found] == [100_000, 0, 0]
    assert found[0]["left"] == {"log": 900_000, "progress": 900_000, "supervisor": 0}
    assert found[0]["sizes"]["log"] == 1_000_000
    (folders[1] / rank_files.PROGRESS_FILE).write_bytes(b"y" * 1_000)
    (alone,) = ask(folders[1], answer=400_000)
    assert [len(alone["log"]), len(alone["progress"])] == [399_000, 1_000]


def test_the_end_of_a_log_comes_ahead(folder: Path) -> None:
    text = "".join(f"line {number}\n" for number in range(100_000))
    (folder / rank_files.LOG_FILE).write_text(text)
    (update,) = ask(folder, answer=5_000)
    assert text.endswith(update["last"])
    assert "line 99999\n" in update["last"]
    (update,) = ask(folder, log=len(text) - 5)
    assert (update["log"], update["last"], update["more"]) == ("9999\n"[-5:], "", False)


HOLE = (10_000, 90_000)


@pytest.fixture
def with_hole(folder: Path) -> bytes:
    """Write the log of a rank, with a hole, and return its contents."""
    data = b"a" * HOLE[0] + bytes(HOLE[1] - HOLE[0]) + b"z" * 10_000
    (folder / rank_files.LOG_FILE).write_bytes(data)
    rank(folder, left_out={"log": HOLE})
    return data


@pytest.mark.parametrize("answer", [4_096, 15_000, 1_000_000])
def test_a_hole_is_skipped(folder: Path, with_hole: bytes, answer: int) -> None:
    assert fetch(folder, answer)[0] == with_hole.replace(b"\0", b"")


@pytest.mark.parametrize("offset", [*HOLE, 50_000, 89_999])
def test_a_cursor_in_a_hole(folder: Path, with_hole: bytes, offset: int) -> None:
    (update,) = ask(folder, log=offset)
    assert update["log"] == "z" * 10_000
    assert update["cursor"]["log"] == len(with_hole)
    assert not update["more"]


def test_what_is_left_does_not_count_a_hole(folder: Path, with_hole: bytes) -> None:
    (update,) = ask(folder, answer=4_096)
    assert update["left"]["log"] == 20_000 - 4_096
    assert update["sizes"]["log"] == len(with_hole)


def test_a_hole_that_is_made_while_it_is_read(
    folder: Path, with_hole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank(folder)
    read_from = updates.read_from

    def noted_meanwhile(path: str, *more: int) -> tuple[bytes, int]:
        found = read_from(path, *more)
        rank(folder, left_out={"log": HOLE})
        return found

    monkeypatch.setattr(updates, "read_from", noted_meanwhile)
    assert fetch(folder, 1_000_000)[0] == with_hole.replace(b"\0", b"")


def test_a_log_that_the_script_has_emptied_begins_again(folder: Path, with_hole: bytes) -> None:
    (folder / rank_files.LOG_FILE).write_bytes(b"new\0" * 5_000)  # the hole is still stored
    (update,) = ask(folder, log=len(with_hole))
    assert update["log"] == "new\0" * 5_000
    assert update["cursor"]["log"] == tail.size(str(folder / rank_files.LOG_FILE))


def test_a_notice_of_preemption_is_reported_at_once(folder: Path) -> None:
    noticed = {"source": "file", "at": 1.0}
    rank(folder, phase=records.COMPLETED, preemption=noticed)
    cursor = {**START, "phase": records.COMPLETED, "preempted": False}
    (update,) = updates.wait_for_updates({str(folder): cursor}, 600.0, 600.0).values()
    assert update["state"]["preemption"] == noticed
    assert update["cursor"]["preempted"] is True
    # A control node of an earlier version does not return the field.
    cursor = {name: value for name, value in update["cursor"].items() if name != "preempted"}
    began = time.monotonic()
    updates.wait_for_updates({str(folder): cursor}, 0.5, 0.5)
    assert time.monotonic() - began >= 0.5


def serving() -> subprocess.Popen[str]:
    words = [sys.executable, "-S", "-E", "-m", "train.host.updates"]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, cwd=REPOSITORY, stdin=pipe, stdout=pipe, text=True)


def test_requests_are_answered_until_the_input_ends(folder: Path) -> None:
    log, cursor = folder / rank_files.LOG_FILE, dict(START)
    with serving() as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for text in ("one\n", "two\n"):
            with log.open("a") as stream:
                stream.write(text)
            request = {"cursors": {str(folder): cursor}, "wait": 0.0, "interval": 0.0}
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            update = json.loads(process.stdout.readline())[str(folder)]
            assert update["log"] == text
            cursor = update["cursor"]
        process.stdin.close()
        assert process.wait(10) == 0
        assert process.stdout.read() == ""


def test_a_program_with_half_a_request_ends() -> None:
    program = "from train.host import updates; updates._STUCK_S = 0.2; updates.main([])"
    pipe = subprocess.PIPE
    words = [sys.executable, "-S", "-E", "-c", program]
    with subprocess.Popen(words, cwd=REPOSITORY, stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        process.stdin.write(b'{"cursors": ')
        process.stdin.flush()
        assert process.wait(10) == -signal.SIGALRM


def test_a_program_without_requests_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    monkeypatch.setattr(updates, "_IDLE_S", 0.05)
    with os.fdopen(reader) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        updates.main([])  # the connection still exists
    os.close(writer)
    assert capsys.readouterr().out == ""


def alive(folder: Path, supervisor_pid: int) -> Path:
    """Create a rank that runs: this process is its script."""
    return rank(
        folder,
        phase=records.RUNNING,
        pid=os.getpid(),
        supervisor_pid=supervisor_pid,
        supervisor_start=processes.start_time(supervisor_pid),
        boot_id=processes.boot_id(),
    )


def test_the_load_comes_every_few_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [alive(tmp_path / f"worker-{index}", os.getpid()) for index in range(2)]
    first = ask(*folders)
    assert all(update["load"]["cpu_s"] > 0 for update in first)
    later = ask(*folders, **first[0]["cursor"])
    assert [update["load"] for update in later] == [{}, {}]
    assert later[0]["cursor"] == first[0]["cursor"]
    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + 5)
    assert all(update["load"] for update in ask(*folders, **later[0]["cursor"]))


def test_a_killed_supervisor_is_noticed_without_a_change_of_a_file(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as supervisor:
        folder = alive(tmp_path / "worker-0", supervisor.pid)
        cursor = ask(folder)[0]["cursor"]
        threading.Timer(0.5, supervisor.kill).start()
        (update,) = updates.wait_for_updates({str(folder): cursor}, 30.0, 0.0).values()
    assert update["state"]["phase"] == records.FAILED
