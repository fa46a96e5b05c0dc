"""Writes ``events.jsonl``, the record of a job's events in its run folder."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from train.gang.job_records import EVENTS_FILE


def write(run_dir: Path, **event: Any) -> None:
    """Append an event to ``events.jsonl``. docs/formats.md describes its fields."""
    append(run_dir / EVENTS_FILE, {"t": round(time.time(), 3), **event})


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Append a record to a file as one line of JSON. The file must not be a link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o644), "wb") as stream:
        stream.write(json.dumps(record, sort_keys=True).encode() + b"\n")
