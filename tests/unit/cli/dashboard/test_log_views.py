"""A log as it grows, and lines found in it."""

from __future__ import annotations

from pathlib import Path

from train.cli.dashboard import log_views
from train.cli.dashboard.log_views import LogFollower, search


def test_lines_are_returned_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.log"
    follower = LogFollower(path)
    assert follower.read() == []
    path.write_bytes(b"one\n10%\r20%\r\n\x1b[31mtwo\x1b[0m\nthr")
    assert follower.read() == ["one", "20%", "two"]
    assert follower.last() == "thr"
    with path.open("ab") as stream:
        stream.write(b"ee\n")
    assert follower.read() == ["three"]
    path.rename(tmp_path / "worker-0.log.1")
    path.write_text("four\n")
    assert follower.read() == ["four"]


def test_a_long_log_begins_near_its_end(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.log"
    path.write_text("".join(f"line {n}\n" for n in range(100_000)))
    lines = LogFollower(path).read()
    assert lines[-1] == "line 99999"
    assert len(lines) == log_views.LINES


def test_a_search_covers_the_older_part_and_is_no_pattern(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.log"
    (tmp_path / "worker-0.log.1").write_text("Loss: 1 (.*)\n")
    path.write_text("accuracy\nLOSS: 2\n")
    assert search(path, "loss").lines == [(1, "Loss: 1 (.*)"), (3, "LOSS: 2")]
    assert search(path, "(.*)").lines == [(1, "Loss: 1 (.*)")]
    path.write_text("x\n" * (log_views.LINES + 5))
    assert search(path, "x").more


def test_a_link_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("secret\n")
    (tmp_path / "worker-0.log").symlink_to(tmp_path / "elsewhere")
    assert LogFollower(tmp_path / "worker-0.log").read() == []
