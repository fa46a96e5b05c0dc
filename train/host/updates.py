"""Waits on a host for updates of its ranks and prints them as one line of JSON.

    python3 -S -E launcher/programs.zip train.host.updates [CURSORS WAIT INTERVAL]

CURSORS is a JSON object of cursors (records.Cursor) by rank folder, from the previous answer. WAIT
is the maximum number of seconds to wait for updates. New lines are collected for INTERVAL seconds
before they are printed, but a change of phase is reported at once. All files of an answer share its
maximum size, so that a rank with much output does not delay the others.

Without arguments, it answers each line of its standard input, a JSON object with ``cursors``,
``wait`` and ``interval``. It ends with the input, after a minute without a request, or if a request
or an answer is stuck.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from . import load, rank_files, ranks, records, tail
from .masking import Mask

#: Default size in bytes of all files in one answer, and minimum size of a file.
ANSWER = 1_048_576
_LEAST = 4_096
#: Bytes of a log's end that are sent before earlier data that is still waiting.
LAST = 32_768
#: Seconds between two checks of the files of the ranks, and between two of their processes. A file
#: does not show that a script is frozen, or that supervisor and watchdog were killed.
_TICK, _PROCESSES_EVERY = 0.2, 1.0
#: Minimum seconds between two reports of a rank's load, which take longer than the rest.
_LOAD_EVERY = 4.0
#: Maximum number of seconds between an answer and the next request.
_IDLE_S = 60.0
#: Maximum number of seconds to receive a request or to send an answer.
_STUCK_S = 600.0
_FILES = {
    "log": rank_files.LOG_FILE,
    "progress": rank_files.PROGRESS_FILE,
    "supervisor": rank_files.SUPERVISOR_LOG_FILE,
}


def read_from(path: str, offset: int, count: int) -> Tuple[bytes, int]:
    """Return up to ``count`` bytes of ``path`` from ``offset``, and the offset after them.

    A file that became shorter is read from its beginning.
    """
    try:
        with open(tail.open_file(path), "rb") as stream:
            offset = offset if offset <= os.fstat(stream.fileno()).st_size else 0
            stream.seek(offset)
            data = stream.read(count)
    except OSError:
        return b"", offset
    return data, offset + len(data)


def as_text(data: bytes) -> str:
    """Return bytes as text, with invalid UTF-8 as surrogate escapes."""
    return data.decode("utf-8", "surrogateescape")


def _phase(state: records.RankState) -> Tuple[str, bool, bool]:
    return state["phase"], bool(state.get("frozen")), "preemption" in state


def _has_changed(state: records.RankState, cursor: Dict[str, Any]) -> bool:
    """Return whether a change must be reported at once."""
    phase, frozen, preempted = _phase(state)
    # Control nodes of earlier versions do not return the last one.
    known = cursor["phase"], cursor["frozen"], cursor.get("preempted", preempted)
    return (phase, frozen, preempted) != known


def _version(folder: str) -> Optional[Tuple[int, int]]:
    """Return a value that differs for each version of a rank's state; None without a state."""
    with contextlib.suppress(OSError):
        about = os.stat(os.path.join(folder, rank_files.STATE_FILE))
        return about.st_ino, about.st_mtime_ns
    return None


def _sizes(folder: str) -> Dict[str, int]:
    return {name: tail.size(os.path.join(folder, file)) or 0 for name, file in _FILES.items()}


def _new(folder: str, cursor: Dict[str, Any]) -> List[int]:
    """Return the number of new bytes in each file of a rank, without files that have none."""
    sizes = [(size, cursor[name]) for name, size in _sizes(folder).items() if size]
    # A file that became shorter counts as new.
    return [size - at if size > at else size for size, at in sizes if size != at]


def _hole(folder: str, name: str) -> Optional[Sequence[int]]:
    """Return the hole of a rank's file (limited.Hole), or None if it has none."""
    holes = ranks.noted(folder).get("left_out")
    return holes.get(name) if isinstance(holes, dict) else None


def _read(folder: str, name: str, offset: int, count: int) -> Tuple[bytes, int]:
    """Read a rank's file with ``read_from``, but skip its hole.

    Data before and after the hole are never returned together.
    """
    path = os.path.join(folder, _FILES[name])
    while True:
        data, end = read_from(path, offset, count)
        begin = end - len(data)
        # A hole is stored before it is made, so data read from it is detected here.
        hole = _hole(folder, name) if data else None
        if not hole or end <= hole[0] or begin >= hole[1] or hole[1] > (tail.size(path) or 0):
            return data, end
        if begin < hole[0]:
            return data[: hole[0] - begin], hole[0]
        offset = hole[1]


def _left(folder: str, name: str, offset: int, size: int) -> int:
    """Return the number of bytes of a file after ``offset``, without its hole."""
    hole = _hole(folder, name) if size > offset else None
    freed = max(0, hole[1] - max(offset, hole[0])) if hole and hole[1] <= size else 0
    return max(0, size - offset - freed)


def _share(found: Iterable[Tuple[str, Dict[str, Any]]]) -> int:
    """Return the maximum number of bytes of a file in the answer.

    Files that need less than an equal share leave the rest to larger ones.
    """
    pairs = list(found)
    left = max([int(cursor.get("answer", ANSWER)) for _, cursor in pairs], default=ANSWER)
    sizes = sorted(size for folder, cursor in pairs for size in _new(folder, cursor))
    share = left
    for place, size in enumerate(sizes):
        share = left // (len(sizes) - place)
        if size > share:
            break
        left -= size
    return max(_LEAST, share)


def _masked(path: str, data: bytes, end: int, mask: Mask) -> bytes:
    """Return ``data``, which was read from a file up to the offset ``end``, without secrets."""
    begin = end - len(data)
    first = max(0, begin - mask.longest)
    before, _ = read_from(path, first, begin - first)
    after, _ = read_from(path, end, mask.longest)
    return mask.log(data, before, after)


def _update(
    folder: str, state: records.RankState, cursor: Dict[str, Any], count: int
) -> Dict[str, Any]:
    texts, after, times = {}, {}, []
    mask = Mask([ranks.specification(folder).get("environment", {})])
    for name, file in _FILES.items():
        data, after[name] = _read(folder, name, cursor[name], count)
        if name != "progress" and data and mask.longest:  # records have to stay valid
            data = _masked(os.path.join(folder, file), data, after[name], mask)
        texts[name] = as_text(data)
        if name != "supervisor":
            with contextlib.suppress(OSError):
                times.append(os.stat(os.path.join(folder, file)).st_mtime)
    phase, frozen, preempted = _phase(state)
    sizes = _sizes(folder)
    left = {name: _left(folder, name, after[name], size) for name, size in sizes.items()}
    last = b""
    if left["log"]:
        last = tail.read_last(os.path.join(folder, rank_files.LOG_FILE), LAST + mask.longest)
        last = mask.log(last)[-LAST:]
    return {
        **texts,
        "state": state,
        "cursor": {**after, "phase": phase, "frozen": frozen, "preempted": preempted},
        "more": any(left.values()),
        "left": left,
        "sizes": sizes,
        "last": as_text(last),
        "age": round(max(0.0, time.time() - max(times)), 3) if times else None,
        "now": time.time(),
        "load": {},
    }


def _add_load(found: Dict[str, Dict[str, Any]], cursors: Dict[str, Dict[str, Any]]) -> None:
    """Add the load of running ranks to their updates, and its time to the cursors, if it is due."""
    now = time.monotonic()
    for folder, update in found.items():
        state, measured = update["state"], cursors[folder].get("measured")
        if measured is not None and 0 <= now - measured < _LOAD_EVERY:
            update["cursor"]["measured"] = measured
        elif state["phase"] == records.RUNNING and state.get("pid"):
            update["load"] = load.facts(state["pid"], os.path.expanduser(folder))
            update["cursor"]["measured"] = now


def wait_for_updates(
    cursors: Dict[str, Dict[str, Any]], wait: float, interval: float
) -> Dict[str, Dict[str, Any]]:
    """Return the updates (records.Update) by rank folder; see the module's docstring."""
    found = [(os.path.expanduser(rank_dir), cursor) for rank_dir, cursor in cursors.items()]
    began, observed = time.monotonic(), float("-inf")
    states: List[records.RankState] = []
    versions: List[Optional[Tuple[int, int]]] = []
    while True:
        elapsed, before = time.monotonic() - began, versions
        versions = [_version(folder) for folder, _ in found]
        if versions != before or elapsed - observed >= _PROCESSES_EVERY:
            # Read before the files: after a final state, nothing is added to them.
            states, observed = [ranks.observe(folder) for folder, _ in found], elapsed
        if elapsed >= wait or any(
            _has_changed(state, cursor) for state, (_, cursor) in zip(states, found)
        ):
            break
        if elapsed >= interval and any(_new(folder, cursor) for folder, cursor in found):
            break
        time.sleep(_TICK)
    count = _share(found)
    updates = [
        _update(folder, state, cursor, count) for state, (folder, cursor) in zip(states, found)
    ]
    answer = dict(zip(cursors, updates))
    _add_load(answer, cursors)
    return answer


def answer_requests() -> None:
    """Answer the requests on standard input, see the module's docstring."""
    # A connection that was lost may not end for hours.
    while select.select([sys.stdin], [], [], _IDLE_S)[0]:
        with _limited_time():
            line = sys.stdin.readline()
        if not line:
            return
        request = json.loads(line)
        found = wait_for_updates(request["cursors"], request["wait"], request["interval"])
        with _limited_time():
            print(json.dumps(found), flush=True)


@contextlib.contextmanager
def _limited_time() -> Iterator[None]:
    """End this process, with SIGALRM, if the block takes longer than _STUCK_S seconds."""
    signal.setitimer(signal.ITIMER_REAL, _STUCK_S)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)


def main(arguments: Sequence[str]) -> None:
    """Print updates once, or answer requests; see the module's docstring."""
    if arguments:
        cursors, wait, interval = arguments
        print(json.dumps(wait_for_updates(json.loads(cursors), float(wait), float(interval))))
    else:
        answer_requests()


if __name__ == "__main__":
    main(sys.argv[1:])
