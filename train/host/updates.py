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
import stat
import sys
import time
from typing import Dict, Tuple, cast

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
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            about = os.fstat(stream.fileno())
            if not stat.S_ISREG(about.st_mode):
                return "", offset
            offset = offset if offset <= about.st_size else 0
            stream.seek(offset)
            data = stream.read(CHUNK)
    except OSError:
        return "", offset
    return data.decode("utf-8", "surrogateescape"), offset + len(data)


def _phase(state: records.State) -> Tuple[str, bool]:
    return state["phase"], bool(state.get("frozen"))


def _sizes(folder: str) -> Dict[str, int]:
    return {name: tail.size(os.path.join(folder, file)) or 0 for name, file in _FILES.items()}


def _offsets(cursor: records.Cursor) -> Dict[str, int]:
    return {
        "log": cursor["log"],
        "progress": cursor["progress"],
        "supervisor": cursor["supervisor"],
    }


def _update(folder: str, state: records.State, cursor: records.Cursor) -> records.Update:
    """Return what is new of a rank since the cursor."""
    texts, offsets, times = {}, _offsets(cursor), []
    for name, file in _FILES.items():
        path = os.path.join(folder, file)
        texts[name], offsets[name] = read_from(path, offsets[name])
        if name != "supervisor":
            with contextlib.suppress(OSError):
                times.append(os.stat(path).st_mtime)
    is_running, pid = state["phase"] == records.RUNNING, state.get("pid")
    phase, frozen = _phase(state)
    return {
        "log": texts["log"],
        "progress": texts["progress"],
        "supervisor": texts["supervisor"],
        "state": state,
        "cursor": cast(records.Cursor, {**offsets, "phase": phase, "frozen": frozen}),
        "more": any(size > offsets[name] for name, size in _sizes(folder).items()),
        "age": round(max(0.0, time.time() - max(times)), 3) if times else None,
        "now": time.time(),
        "load": dict(load.facts(pid, folder)) if is_running and pid else {},
    }


def wait_for_updates(
    cursors: Dict[str, records.Cursor], wait: float, interval: float
) -> Dict[str, records.Update]:
    """Return the updates by rank folder; see the module's docstring."""
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
            size not in (0, _offsets(cursor)[name])
            for folder, cursor in found
            for name, size in _sizes(folder).items()
        ):
            break
        time.sleep(_TICK)
    updates = [_update(folder, state, cursor) for state, (folder, cursor) in zip(states, found)]
    return dict(zip(cursors, updates))


def main() -> None:
    """Print the updates that the command line asks for."""
    cursors, wait, interval = sys.argv[1:]
    print(json.dumps(wait_for_updates(json.loads(cursors), float(wait), float(interval))))


if __name__ == "__main__":
    main()
