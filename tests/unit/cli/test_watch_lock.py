"""The lock of the command that watches a job."""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from pathlib import Path

import pytest

from train.cli import watch_lock
from train.cli.watch_lock import WatchedError, WatchLock
from train.gang import job_records


def test_one_command_watches_a_job_and_others_know_which(tmp_path: Path) -> None:
    assert watch_lock.watcher_of(tmp_path) is None
    lock = WatchLock(tmp_path)
    assert not lock.was_killed
    lock.note(background=True)
    watcher = watch_lock.watcher_of(tmp_path)
    assert watcher is not None
    assert (watcher["pid"], watcher["background"]) == (os.getpid(), True)
    with pytest.raises(WatchedError, match=rf"pid {os.getpid()} on .* \(in the background\)") as e:
        WatchLock(tmp_path)
    assert e.value.watcher == watcher
    assert f" {tmp_path.name}`" in str(e.value)
    assert (tmp_path / watch_lock.FILE).stat().st_mode & 0o777 == 0o600
    lock.close()
    lock.close()
    assert watch_lock.watcher_of(tmp_path) is None
    assert not WatchLock(tmp_path).was_killed


def test_a_record_that_is_left_shows_that_its_process_was_killed(tmp_path: Path) -> None:
    (tmp_path / watch_lock.FILE).write_text(json.dumps({"pid": 1}))
    assert watch_lock.watcher_of(tmp_path) is None
    assert WatchLock(tmp_path).was_killed


def test_a_record_is_cleaned_and_may_be_damaged(tmp_path: Path) -> None:
    for text, said in (("[", "pid ? on ?"), ('{"pid": 7, "host": "a\\u001b[1m"}', "pid 7 on a")):
        (tmp_path / watch_lock.FILE).write_text(text)
        with (tmp_path / watch_lock.FILE).open() as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            watcher = watch_lock.watcher_of(tmp_path)
        assert watcher is not None
        assert watch_lock.described(watcher) == said


def test_a_lock_is_removed_with_its_job(tmp_path: Path) -> None:
    lock = WatchLock(tmp_path)
    lock.forget()
    assert list(tmp_path.iterdir()) == []
    again = WatchLock(tmp_path)
    lock.forget()  # it is another file
    lock.close()
    assert watch_lock.watcher_of(tmp_path) is not None
    again.close()


def test_a_moment_of_another_reader_does_not_count(tmp_path: Path) -> None:
    WatchLock(tmp_path).close()
    with (tmp_path / watch_lock.FILE).open() as stream:
        fcntl.flock(stream, fcntl.LOCK_SH)
        threading.Timer(watch_lock._PAUSE_S / 2, stream.close).start()
        WatchLock(tmp_path).close()


def test_the_processes_of_a_killed_watch_are_awaited(tmp_path: Path) -> None:
    watch_lock.await_orphans(tmp_path)  # there are none
    path = tmp_path / job_records.LOCK_FILE
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        ended: list[float] = []

        def end() -> None:
            ended.append(time.monotonic())
            stream.close()

        threading.Timer(0.3, end).start()
        watch_lock.await_orphans(tmp_path)
    assert ended
