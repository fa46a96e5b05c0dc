"""Waits on a rank's host for news of it and prints them as one line of JSON.

    python3 -S -E -m host.news RANK_DIR CURSOR WAIT INTERVAL

CURSOR is the JSON object ``{"phase": ..., "log": bytes, "progress": bytes}`` of the answer before;
WAIT the seconds after which it answers without news; INTERVAL the seconds that it gathers lines
before it answers. A change of phase is answered at once. Standard library only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Dict, Tuple

from . import ranks, records

#: Bytes of a file in one answer.
CHUNK = 262_144
_TICK = 0.1


def read_from(path: str, offset: int) -> Tuple[str, int]:
    """Return up to CHUNK bytes of ``path`` from ``offset`` and the offset after them.

    Bytes that are not UTF-8 come as surrogate escapes, so that nothing is lost. A missing file is
    an empty one.
    """
    try:
        with open(path, "rb") as stream:
            stream.seek(offset)
            data = stream.read(CHUNK)
    except FileNotFoundError:
        return "", offset
    return data.decode("utf-8", "surrogateescape"), offset + len(data)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def wait_for_news(
    rank_dir: str, cursor: Dict[str, Any], wait: float, interval: float
) -> Dict[str, Any]:
    """Return the rank's news since ``cursor``: see the module's docstring.

    Returns:
        ``state`` (see ranks.observe), ``log`` and ``progress`` (new text), ``cursor`` (for the
        next call), ``more`` (there is more to read at once), ``age`` (seconds since the last
        progress or log line, None where there is none).
    """
    log = os.path.join(rank_dir, records.LOG_FILE)
    progress = os.path.join(rank_dir, records.PROGRESS_FILE)
    began = time.monotonic()
    while True:
        # The state is read before the files: when it is final, nothing follows in the files.
        state = ranks.observe(rank_dir)
        elapsed = time.monotonic() - began
        if state["phase"] != cursor["phase"] or elapsed >= wait:
            break
        grown = _size(log) > cursor["log"] or _size(progress) > cursor["progress"]
        if grown and elapsed >= interval:
            break
        time.sleep(_TICK)
    log_text, log_offset = read_from(log, cursor["log"])
    progress_text, progress_offset = read_from(progress, cursor["progress"])
    times = [os.stat(path).st_mtime for path in (log, progress) if os.path.exists(path)]
    return {
        "state": state,
        "log": log_text,
        "progress": progress_text,
        "cursor": {"phase": state["phase"], "log": log_offset, "progress": progress_offset},
        "more": _size(log) > log_offset or _size(progress) > progress_offset,
        "age": round(max(0.0, time.time() - max(times)), 3) if times else None,
    }


def main() -> None:
    """Print the news that the command line asks for."""
    rank_dir, cursor, wait, interval = sys.argv[1:]
    rank_dir = os.path.expanduser(rank_dir)
    json.dump(wait_for_news(rank_dir, json.loads(cursor), float(wait), float(interval)), sys.stdout)
    print()


if __name__ == "__main__":
    main()
