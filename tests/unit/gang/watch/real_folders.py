"""Ranks with real folders on this machine, which are followed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from train.gang.job_records import EVENTS_FILE
from train.gang.watch.fetched import OLDER
from train.gang.watch.follow import FollowedGang
from train.gang.watch.polling import Limits, Poll
from train.gang.watch.views import Target
from train.host import json_files, rank_files, ranks, records, updates

MIB = 1 << 20
LINE = b"%07d " + b"x" * 91 + b"\n"


def lines(count: int) -> bytes:
    return b"".join(LINE % number for number in range(count))


def note(rank_dir: Path, phase: str, **state: Any) -> None:
    """Write a rank's state."""
    json_files.write_json(str(rank_dir / rank_files.STATE_FILE), {"phase": phase, **state})


class Machine:
    """Followed ranks of one machine."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.run_dir = folder, folder / "run"
        self.targets: list[Target] = []
        self.said: list[str] = []
        self.poll: Poll = lambda _, *asked: updates.wait_for_updates(*asked)
        # A living supervisor cannot be faked.
        monkeypatch.setattr(ranks, "observe", ranks.noted)

    def rank(self, log: bytes = b"", progress: bytes = b"", **state: Any) -> Path:
        task = f"worker-{len(self.targets)}"
        rank_dir = self.folder / task
        rank_dir.mkdir()
        (rank_dir / rank_files.LOG_FILE).write_bytes(log)
        (rank_dir / rank_files.PROGRESS_FILE).write_bytes(progress)
        note(rank_dir, **{"phase": records.COMPLETED, "exit_code": 0, **state})
        self.targets.append(Target("host-a", task, str(rank_dir), "python3", "here", False))
        return rank_dir

    def gang(self, log_limit: int = 256 * MIB, interval: float = 0.0) -> FollowedGang:
        given = Limits(5.0, 5.0, interval, log_limit=log_limit, straggler_factor=1.5)
        probe: Any = None
        folder, say = self.run_dir, self.said.append
        return FollowedGang(self.targets, folder, self.poll, say, given, {}, probe, "")

    def copy(self, name: str = "logs/worker-0.log") -> bytes:
        """Return the copy of a file, preceded by the previous copy."""
        older = self.run_dir / (name + OLDER)
        before = older.read_bytes() if older.exists() else b""
        return before + (self.run_dir / name).read_bytes()

    def notices(self, kind: str) -> list[str]:
        events = map(json.loads, (self.run_dir / EVENTS_FILE).read_text().splitlines())
        told = [event["notice"] for event in events if "notice" in event]
        return [notice["text"] for notice in told if notice["kind"] == kind]
