"""Waits on a host for updates of the ranks there and prints them as one line of JSON.

    python3 -S -E -m train.host.updates CURSORS WAIT INTERVAL

CURSORS is a JSON object of cursors by rank folder, each of the answer before: ``phase``,
``frozen``, and the bytes that were read of ``log``, ``progress`` and ``supervisor``. WAIT is the
seconds after which it answers without updates, INTERVAL the seconds in which it gathers lines. A
change of phase is reported at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
import time
from typing import Any, Dict, Tuple

from . import load, ranks, records, tail

#: Bytes of a file in one answer.
CHUNK = 262_144
_TICK = 0.2


def read_from(path: str, offset: int) -> Tuple[str, int]:
    """Return up to CHUNK bytes of ``path`` from ``offset`` and the offset after them.

    Bytes that are not UTF-8 become surrogate escapes. A file that became shorter is read from its
    beginning. One that cannot be read, or is none, is empty.
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


class Rank:
    """One rank's folder, and the cursor of the answer before."""

    def __init__(self, rank_dir: str, cursor: Dict[str, Any]) -> None:
        self.rank_dir = os.path.expanduser(rank_dir)
        self.cursor = cursor
        self.state: Dict[str, Any] = {}
        self._files = {
            "log": os.path.join(self.rank_dir, records.LOG_FILE),
            "progress": os.path.join(self.rank_dir, records.PROGRESS_FILE),
            "supervisor": os.path.join(self.rank_dir, records.SUPERVISOR_LOG_FILE),
        }

    def observe(self) -> None:
        """Read the state; before the files: when it is final, nothing follows in them."""
        self.state = ranks.observe(self.rank_dir)

    def _phase(self) -> Dict[str, Any]:
        return {"phase": self.state["phase"], "frozen": bool(self.state.get("frozen"))}

    def has_changed(self) -> bool:
        """Return whether the phase is another, or the process was stopped or resumed."""
        return any(self.cursor[name] != value for name, value in self._phase().items())

    def has_grown(self) -> bool:
        """Return whether a file has another length than in the cursor."""
        sizes = {name: tail.size(path) for name, path in self._files.items()}
        return any(size and size != self.cursor[name] for name, size in sizes.items())

    def update(self) -> Dict[str, Any]:
        """Return what is new since the cursor; see wait_for_updates."""
        texts = {name: read_from(path, self.cursor[name]) for name, path in self._files.items()}
        cursor = {name: offset for name, (_, offset) in texts.items()}
        times = []
        for name in ("log", "progress"):
            with contextlib.suppress(OSError):
                times.append(os.stat(self._files[name]).st_mtime)
        is_running, pid = self.state["phase"] == records.RUNNING, self.state.get("pid")
        return {
            **{name: text for name, (text, _) in texts.items()},
            "state": self.state,
            "cursor": {**cursor, **self._phase()},
            "more": any((tail.size(p) or 0) > cursor[name] for name, p in self._files.items()),
            "age": round(max(0.0, time.time() - max(times)), 3) if times else None,
            "now": time.time(),
            "load": load.facts(pid, self.rank_dir) if is_running and pid else {},
        }


def wait_for_updates(
    cursors: Dict[str, Dict[str, Any]], wait: float, interval: float
) -> Dict[str, Dict[str, Any]]:
    """Return the updates of the ranks of ``cursors``: see the module's docstring.

    Returns:
        For each rank folder ``state`` (see ranks.observe), ``log``, ``progress`` and
        ``supervisor`` (new text), ``cursor`` (for the next call), ``more`` (there is more to read
        at once), ``age`` (seconds since the last progress or log line, None where there is none),
        ``now`` (the host's clock), ``load`` (see load.facts; empty unless it runs).
    """
    found = {rank_dir: Rank(rank_dir, cursor) for rank_dir, cursor in cursors.items()}
    began = time.monotonic()
    while True:
        for rank in found.values():
            rank.observe()
        elapsed = time.monotonic() - began
        if elapsed >= wait or any(rank.has_changed() for rank in found.values()):
            break
        if elapsed >= interval and any(rank.has_grown() for rank in found.values()):
            break
        time.sleep(_TICK)
    return {rank_dir: rank.update() for rank_dir, rank in found.items()}


def main() -> None:
    """Print the updates that the command line asks for."""
    cursors, wait, interval = sys.argv[1:]
    json.dump(wait_for_updates(json.loads(cursors), float(wait), float(interval)), sys.stdout)
    print()


if __name__ == "__main__":
    main()
