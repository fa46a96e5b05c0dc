"""Waits on a host for updates of the ranks there and prints them as one line of JSON.

    python3 -S -E -m train.host.updates CURSORS WAIT INTERVAL

CURSORS is a JSON object of cursors (records.Cursor) by rank folder, each of the answer before. WAIT
is the seconds after which it answers without updates, INTERVAL the seconds in which it gathers
lines. A change of phase is reported at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import Any, Dict, Tuple

from . import load, ranks, records, tail

#: Bytes of a file in one answer.
CHUNK = 262_144
_TICK = 0.2
_FILES = {
    "log": records.LOG_FILE,
    "progress": records.PROGRESS_FILE,
    "supervisor": records.SUPERVISOR_LOG_FILE,
}


def read_from(path: str, offset: int) -> Tuple[str, int]:
    """Return up to CHUNK bytes of ``path`` from ``offset``, others than UTF-8 as surrogate escapes,
    and the offset after them. A file that became shorter is read from its beginning.
    """
    try:
        with open(tail.open_file(path), "rb") as stream:
            offset = offset if offset <= os.fstat(stream.fileno()).st_size else 0
            stream.seek(offset)
            data = stream.read(CHUNK)
    except OSError:
        return "", offset
    return data.decode("utf-8", "surrogateescape"), offset + len(data)


def _phase(state: records.State) -> Tuple[str, bool]:
    return state["phase"], bool(state.get("frozen"))


def _sizes(folder: str) -> Dict[str, int]:
    return {name: tail.size(os.path.join(folder, file)) or 0 for name, file in _FILES.items()}


def _update(folder: str, state: records.State, cursor: Dict[str, Any]) -> Dict[str, Any]:
    texts, after, times = {}, {}, []
    for name, file in _FILES.items():
        path = os.path.join(folder, file)
        texts[name], after[name] = read_from(path, cursor[name])
        if name != "supervisor":
            with contextlib.suppress(OSError):
                times.append(os.stat(path).st_mtime)
    is_running, pid = state["phase"] == records.RUNNING, state.get("pid")
    phase, frozen = _phase(state)
    return {
        **texts,
        "state": state,
        "cursor": {**after, "phase": phase, "frozen": frozen},
        "more": any(size > after[name] for name, size in _sizes(folder).items()),
        "age": round(max(0.0, time.time() - max(times)), 3) if times else None,
        "now": time.time(),
        "load": load.facts(pid, folder) if is_running and pid else {},
    }


def wait_for_updates(
    cursors: Dict[str, Dict[str, Any]], wait: float, interval: float
) -> Dict[str, Dict[str, Any]]:
    """Return the updates (records.Update) by rank folder; see the module's docstring."""
    found = [(os.path.expanduser(rank_dir), cursor) for rank_dir, cursor in cursors.items()]
    began = time.monotonic()
    while True:
        # Before the files: when a state is final, nothing follows in them.
        states = [ranks.observe(folder) for folder, _ in found]
        elapsed = time.monotonic() - began
        if elapsed >= wait or any(
            _phase(state) != (cursor["phase"], cursor["frozen"])
            for state, (_, cursor) in zip(states, found)
        ):
            break
        if elapsed >= interval and any(
            size not in (0, cursor[name])
            for folder, cursor in found
            for name, size in _sizes(folder).items()
        ):
            break
        time.sleep(_TICK)
    updates = [_update(folder, state, cursor) for state, (folder, cursor) in zip(states, found)]
    return dict(zip(cursors, updates))


if __name__ == "__main__":
    cursors, wait, interval = sys.argv[1:]
    print(json.dumps(wait_for_updates(json.loads(cursors), float(wait), float(interval))))
