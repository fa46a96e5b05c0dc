"""Waits on a host for updates of the ranks there and prints them as one line of JSON.

    python3 -S -E -m host.updates CURSORS WAIT INTERVAL

CURSORS is a JSON object of ``{"phase": ..., "frozen": bool, "log": bytes, "progress": bytes,
"supervisor": bytes}`` by rank folder, each of the answer before; WAIT the seconds after which it
answers without; INTERVAL the seconds that it gathers lines before it answers. A change of
phase is answered at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
import time
from typing import Any, Dict, Tuple

from . import load, ranks, records

#: Bytes of a file in one answer.
CHUNK = 262_144
_TICK = 0.2


def read_from(path: str, offset: int) -> Tuple[str, int]:
    """Return up to CHUNK bytes of ``path`` from ``offset`` and the offset after them.

    Bytes that are not UTF-8 come as surrogate escapes, so that nothing is lost. A file that became
    shorter is read from its beginning. One that cannot be read, or is none, is empty.
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


def _size(path: str) -> int:
    try:
        about = os.stat(path)
    except OSError:
        return 0
    return about.st_size if stat.S_ISREG(about.st_mode) else 0


class Rank:
    """One rank's folder, and what is known of it already.

    Args:
        rank_dir: the folder.
        cursor: ``phase`` of its state, ``frozen``, whether its process was stopped, and ``log``,
            ``progress`` and ``supervisor``, bytes read of its files.
    """

    def __init__(self, rank_dir: str, cursor: Dict[str, Any]) -> None:
        self.rank_dir = os.path.expanduser(rank_dir)
        self.cursor = cursor
        self.state: Dict[str, Any] = {}
        self._files = {
            "log": os.path.join(self.rank_dir, records.LOG_FILE),
            "progress": os.path.join(self.rank_dir, records.PROGRESS_FILE),
            "supervisor": os.path.join(self.rank_dir, records.SUPERVISOR_LOG_FILE),
        }

    def look(self) -> None:
        """Look at the state; before the files: when it is final, nothing follows in them."""
        self.state = ranks.observe(self.rank_dir)

    @property
    def changed(self) -> bool:
        """Whether the phase is another than the cursor's, or the process was stopped or goes on."""
        frozen = bool(self.state.get("frozen"))
        return bool(self.state["phase"] != self.cursor["phase"]) or frozen != self.cursor["frozen"]

    @property
    def grown(self) -> bool:
        """Whether a file has another length than the cursor says."""
        return any(_size(path) not in (0, self.cursor[name]) for name, path in self._files.items())

    def update(self) -> Dict[str, Any]:
        """Return what is new since the cursor; see wait_for_updates."""
        texts = {name: read_from(path, self.cursor[name]) for name, path in self._files.items()}
        cursor = {name: offset for name, (_, offset) in texts.items()}
        times = []
        for name in ("log", "progress"):
            with contextlib.suppress(OSError):
                times.append(os.stat(self._files[name]).st_mtime)
        return {
            **{name: text for name, (text, _) in texts.items()},
            "state": self.state,
            "cursor": dict(
                cursor, phase=self.state["phase"], frozen=bool(self.state.get("frozen"))
            ),
            "more": any(_size(path) > cursor[name] for name, path in self._files.items()),
            "age": round(max(0.0, time.time() - max(times)), 3) if times else None,
            "now": time.time(),
            "load": self._load(),
        }

    def _load(self) -> Dict[str, Any]:
        if self.state["phase"] != records.RUNNING or not self.state.get("pid"):
            return {}
        return load.facts(self.state["pid"], self.rank_dir)


def wait_for_updates(
    cursors: Dict[str, Dict[str, Any]], wait: float, interval: float
) -> Dict[str, Dict[str, Any]]:
    """Return the updates of the ranks of ``cursors``: see the module's docstring.

    Returns:
        For each rank folder ``state`` (see ranks.observe), ``log``, ``progress`` and
        ``supervisor`` (new text),
        ``cursor`` (for the next call), ``more`` (there is more to read at once), ``age`` (seconds
        since the last progress or log line, None where there is none), ``now`` (the host's clock),
        ``load`` (see load.facts; empty unless it runs).
    """
    found = {rank_dir: Rank(rank_dir, cursor) for rank_dir, cursor in cursors.items()}
    began = time.monotonic()
    while True:
        for rank in found.values():
            rank.look()
        elapsed = time.monotonic() - began
        if elapsed >= wait or any(rank.changed for rank in found.values()):
            break
        if elapsed >= interval and any(rank.grown for rank in found.values()):
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
