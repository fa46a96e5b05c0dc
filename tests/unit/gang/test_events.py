"""The lines of events.jsonl."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from train.gang import events


def test_an_event_is_a_line_with_its_time(tmp_path: Path) -> None:
    began = time.time()
    events.write(tmp_path, task="worker-0", phase="running")
    events.write(tmp_path, notice={"kind": "queue", "text": "two\nlines"})
    first, second = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    assert (first["task"], second["notice"]["text"]) == ("worker-0", "two\nlines")
    assert began - 0.001 <= first["t"] <= second["t"] <= time.time() + 0.001


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic links"):
        events.write(tmp_path, phase="running")
    assert not (tmp_path / "other").exists()
